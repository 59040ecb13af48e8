//! Checks and their findings.

use serde_json::{Value, json};
use std::io::Write;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    /// Something that is not needed is missing.
    Note,
    Failed,
    /// Not tried, because of what failed before.
    Skipped,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Failed => "FAIL",
            Status::Skipped => "skip",
        }
    }
}

struct Finding {
    topic: &'static str,
    name: String,
    status: Status,
    found: String,
    /// What to do; empty where there is nothing to do.
    hint: String,
}

/// All findings in the order in which they were made.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, topic: &'static str, name: &str, status: Status, found: &str, hint: &str) {
        let (name, found, hint) = (name.to_owned(), found.to_owned(), hint.to_owned());
        self.0.push(Finding { topic, name, status, found, hint });
    }

    pub(crate) fn ok(&mut self, topic: &'static str, name: &str, found: &str) {
        self.add(topic, name, Status::Ok, found, "");
    }

    /// A failure whose message may carry a hint of its own on a further line.
    pub(crate) fn failed(&mut self, topic: &'static str, name: &str, e: &dyn std::fmt::Display) {
        let text = e.to_string();
        let (found, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
        self.add(topic, name, Status::Failed, found, hint);
    }

    pub(crate) fn count(&self, status: Status) -> usize {
        self.0.iter().filter(|f| f.status == status).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn json(&self) -> Value {
        let one = |f: &Finding| {
            let status = f.status.name().to_lowercase();
            json!({"topic": f.topic, "name": f.name, "status": status, "found": f.found, "hint": f.hint})
        };
        self.0.iter().map(one).collect()
    }

    /// A line per finding, and one for each hint.
    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut topic = "";
        for f in &self.0 {
            if f.topic != topic {
                topic = f.topic;
                writeln!(out, "\n{topic}")?;
            }
            let found = f.found.replace('\n', "\n        ");
            writeln!(out, "{:4}  {:26} {found}", f.status.name(), f.name)?;
            if !f.hint.is_empty() {
                writeln!(out, "      -> {}", f.hint)?;
            }
        }
        let count = |s| self.count(s);
        writeln!(
            out,
            "\n{} ok, {} notes, {} failed, {} skipped",
            count(Status::Ok),
            count(Status::Note),
            count(Status::Failed),
            count(Status::Skipped)
        )
    }
}
