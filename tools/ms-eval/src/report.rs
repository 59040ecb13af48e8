//! Scores: a table on stdout, `results.json` and `samples.jsonl` in `--output`.

use crate::options::Options;
use crate::pandas::float_text;
use crate::question::Question;
use anyhow::Result;
use ms_cli::megatron::Args;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Score of one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) subject: String,
    pub(crate) questions: u64,
    pub(crate) correct: u64,
    /// Right with log-likelihoods per character, where the benchmark counts that.
    pub(crate) correct_norm: Option<u64>,
}

impl Row {
    pub(crate) fn new(subject: String) -> Self {
        Self { subject, questions: 0, correct: 0, correct_norm: None }
    }

    pub(crate) fn count(&mut self, sample: &Sample) {
        self.questions += 1;
        self.correct += u64::from(sample.right);
        if let Some(right) = sample.right_norm {
            *self.correct_norm.get_or_insert(0) += u64::from(right);
        }
    }
}

/// One answered question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) id: String,
    pub(crate) prompt_sha256: String,
    pub(crate) output: String,
    pub(crate) picked: Option<String>,
    pub(crate) gold: String,
    pub(crate) right: bool,
    /// Is the likeliest per character right?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) right_norm: Option<bool>,
    /// For every choice; empty if an answer was generated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) log_likelihood: Vec<f64>,
    #[serde(skip)]
    labels: &'static [&'static str],
}

impl Sample {
    /// A question without an answer yet.
    pub(crate) fn new(q: &Question, prompt_sha256: String) -> Self {
        Self {
            id: q.id.clone(),
            prompt_sha256,
            output: String::new(),
            picked: None,
            gold: q.labels[q.gold].to_owned(),
            right: false,
            right_norm: None,
            log_likelihood: Vec::new(),
            labels: q.labels,
        }
    }

    /// What `--json` says of a question whose choices were compared.
    fn item(&self) -> Value {
        let index = |label: &str| self.labels.iter().position(|l| *l == label);
        json!({
            "id": self.id,
            "loglikelihood": self.log_likelihood,
            "picked": self.picked.as_deref().and_then(index),
            "gold": index(&self.gold),
        })
    }
}

fn accuracy(correct: u64, questions: u64) -> f64 {
    correct as f64 / questions.max(1) as f64
}

/// Prints the score and writes the files. `overlong` prompts, with the answer, are longer than the model was made for.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(
    args: &Args,
    o: &Options,
    task: &str,
    output: Option<&Path>,
    rows: &[Row],
    samples: &[Sample],
    overlong: u64,
) -> Result<()> {
    let questions: u64 = rows.iter().map(|r| r.questions).sum();
    let correct: u64 = rows.iter().map(|r| r.correct).sum();
    let acc = accuracy(correct, questions);
    let stderr = |acc: f64| (acc * (1.0 - acc) / (questions.max(2) - 1) as f64).sqrt();
    let norm: Option<u64> = rows.iter().map(|r| r.correct_norm).sum();
    let subjects: Vec<Value> = rows
        .iter()
        .map(|r| json!({"subject": r.subject, "question_n": r.questions, "acc": accuracy(r.correct, r.questions)}))
        .collect();
    let mut results = json!({
        "task": task,
        "model": o.loading.source.folder(),
        "protocol": o.asked.protocol,
        "question_n": questions,
        "correct": correct,
        "acc": acc,
        "stderr": stderr(acc),
        "overlong_prompts": overlong,
        "subjects": subjects,
    });
    if let Some(norm) = norm.map(|n| accuracy(n, questions)) {
        results["acc_norm"] = norm.into();
        results["stderr_norm"] = stderr(norm).into();
    }
    if let Some(dir) = output {
        ms_cli::make_folder(dir)?;
        let mut lines = Vec::new();
        for sample in samples {
            serde_json::to_writer(&mut lines, sample)?;
            lines.push(b'\n');
        }
        let [first, second] = ["results.json", "samples.jsonl"].map(|name| dir.join(name));
        ms_files::write_files(&[(&first, &serde_json::to_vec_pretty(&results)?), (&second, &lines)])?;
    }
    if samples.iter().any(|s| !s.log_likelihood.is_empty()) {
        results["items"] = samples.iter().map(Sample::item).collect();
    }
    let mut out = std::io::stdout().lock();
    if args.json() {
        writeln!(out, "{results}")?;
        return Ok(());
    }
    let width = rows.iter().map(|r| r.subject.len()).max().unwrap_or(0).max("subject".len());
    // As upstream's log line has it.
    let ratio = |n: u64| format!("{n}/{questions}={}", float_text(accuracy(n, questions)));
    writeln!(out, "{task} acc = {}", ratio(correct))?;
    if let Some(norm) = norm {
        writeln!(out, "{task} acc_norm = {}", ratio(norm))?;
    }
    writeln!(out, "{:<width$} {:>10} {:>8}", "subject", "question_n", "acc")?;
    for r in rows {
        writeln!(out, "{:<width$} {:>10} {:>8.4}", r.subject, r.questions, accuracy(r.correct, r.questions))?;
    }
    writeln!(out, "{:<width$} {questions:>10} {acc:>8.4}", "total")?;
    if overlong > 0 {
        writeln!(out, "{:<width$} {overlong:>10}", "overlong")?;
    }
    Ok(())
}
