//! Chrome traces: what Perfetto and `chrome://tracing` open.
//!
//! # Source
//! "Trace Event Format", the JSON array form with complete events (`ph: X`) and process names (`ph: M`).

use crate::error::at;
use crate::{Category, Error, Event, Result};
use ms_files::AtomicFile;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Writes events as a Chrome trace, a process per rank and a thread per category; `labels` go into every
/// process name, such as `cpu (avx512, pair, 1 threads)`.
///
/// The file appears under its name only when it is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, events: &[Event], label: &str) -> Result<()> {
    let mut out = AtomicFile::create(path)?;
    write_to(&mut out, events, label).map_err(at(path))?;
    Ok(out.commit()?)
}

fn write_to(out: &mut impl Write, events: &[Event], label: &str) -> std::io::Result<()> {
    let mut ranks: Vec<usize> = events.iter().map(|e| e.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    write!(out, "[")?;
    let mut first = true;
    let mut line = |out: &mut dyn Write, value: &Value| {
        let separator = if std::mem::take(&mut first) { "\n" } else { ",\n" };
        write!(out, "{separator}{value}")
    };
    for &rank in &ranks {
        let name = json!({ "name": format!("rank {rank}: {label}") });
        line(out, &json!({"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": name}))?;
        line(
            out,
            &json!({"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank}}),
        )?;
        for category in [Category::Step, Category::Op, Category::Communication] {
            let name = json!({ "name": category.name() });
            line(
                out,
                &json!({"ph": "M", "pid": rank, "tid": thread(category), "name": "thread_name", "args": name}),
            )?;
        }
    }
    for e in events {
        let args = json!({"flops": e.flops, "bytes": e.bytes, "detail": e.detail});
        let event = json!({
            "ph": "X", "name": e.name, "cat": e.category.name(), "pid": e.rank, "tid": thread(e.category),
            "ts": e.start_us, "dur": e.duration_us, "args": args,
        });
        line(out, &event)?;
    }
    writeln!(out, "\n]")
}

fn thread(category: Category) -> u64 {
    match category {
        Category::Step => 1,
        Category::Op => 2,
        Category::Communication => 3,
    }
}

/// Reads the complete events of a trace that [`write()`] or a program like it wrote: a JSON array of events, or an
/// object with `traceEvents`. Events of other kinds are passed over.
///
/// # Errors
/// If the file cannot be read or is not a trace.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let bytes = std::fs::read(path).map_err(at(path))?;
    let wrong = |found: String| Error::Format {
        path: path.to_owned(),
        expected: "a Chrome trace (a JSON array of events, or an object with traceEvents)",
        found,
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
    let list = match &value {
        Value::Array(list) => list,
        Value::Object(map) => match map.get("traceEvents") {
            Some(Value::Array(list)) => list,
            _ => return Err(wrong("an object without traceEvents".to_owned())),
        },
        other => return Err(wrong(format!("{other:.40}"))),
    };
    // Times may be numbers or strings of microseconds.
    let number = |v: Option<&Value>| {
        let number: Option<f64> = match v? {
            Value::String(s) => s.parse().ok(),
            v => v.as_f64(),
        };
        number.filter(|n| n.is_finite())
    };
    let mut events = Vec::new();
    for (i, e) in list.iter().enumerate().filter(|(_, e)| e["ph"] == "X") {
        let (Some(start_us), Some(name)) = (number(e.get("ts")), e["name"].as_str()) else {
            return Err(wrong(format!("event {i} without a name or a time")));
        };
        let category = match e["cat"].as_str() {
            Some("communication") => Category::Communication,
            Some("step") => Category::Step,
            _ => Category::Op,
        };
        let args = &e["args"];
        events.push(Event {
            name: name.to_owned(),
            category,
            rank: e["pid"].as_u64().unwrap_or(0) as usize,
            start_us,
            duration_us: number(e.get("dur")).unwrap_or(0.0),
            flops: args["flops"].as_u64().unwrap_or(0),
            bytes: args["bytes"].as_u64().unwrap_or(0),
            detail: args["detail"].as_str().unwrap_or_default().to_owned(),
        });
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_reads_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace_view.json");
        let event = |rank, name: &str, category, start_us| Event {
            name: name.into(),
            category,
            rank,
            start_us,
            duration_us: 2.5,
            flops: 12,
            bytes: 7,
            detail: "m=3".into(),
        };
        let events =
            [event(0, "linear", Category::Op, 1.25), event(1, "all_gather", Category::Communication, 3.0)];
        write(&path, &events, "cpu").unwrap();
        assert_eq!(read(&path).unwrap(), events);
        assert!(!dir.path().join("trace_view.json.part").exists());
    }

    #[test]
    fn what_is_not_a_trace_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        let endless = r#"[{"ph":"X","name":"a","ts":"inf"}]"#;
        for text in ["", "[", "3", "{\"a\":1}", "[{\"ph\":\"X\"}]", endless] {
            std::fs::write(&path, text).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("t.json") && message.contains("Chrome trace"), "{text}: {message}");
        }
    }
}
