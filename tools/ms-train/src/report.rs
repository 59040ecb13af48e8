//! Output of a run: log lines on stdout in Megatron's format, everything else on stderr.

use crate::safeguards::Counts;
use anyhow::Result;
use indicatif::ProgressBar;
use ms_cli::megatron::Args;
use ms_cli::{LogFormat, Verbosity, refuse, start_logging_with};
use ms_options::training::Resolved;
use ms_trainer::Observer;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Starts logging with the recorder of the profile. A rank that does not report says errors only.
pub(crate) fn start_logging(args: &Args, reports: bool, recorder: Option<ms_trace::Recorder>) {
    let verbosity = if reports { args.verbosity() } else { Verbosity::Silent };
    start_logging_with(verbosity, args.log_format(), recorder);
}

/// Writes a line to stdout; a closed pipe ends only the talking, not the run.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The terminal of a run: Megatron's lines on stdout (on stderr with `--json`), a progress bar on stderr.
pub(crate) struct Console {
    json: bool,
    /// Messages on stderr are objects.
    objects: bool,
    bar: ProgressBar,
    counts: Arc<Counts>,
}

impl Console {
    /// The console of a run of `iterations`.
    pub(crate) fn new(args: &Args, iterations: u64) -> Self {
        let bar = args.progress().bar(iterations, "training");
        let objects = args.log_format() == LogFormat::Json;
        Self { json: args.json(), objects, bar, counts: Arc::default() }
    }

    /// Iterations done and saved, kept up to date.
    pub(crate) fn progress_so_far(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Ends the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Console {
    fn line(&self, text: &str) {
        self.bar.suspend(|| {
            if self.json && self.objects {
                tracing::info!("{text}");
            } else if self.json {
                let _ = writeln!(std::io::stderr(), "{text}");
            } else if std::io::stdout().is_terminal() {
                say(&short(text));
            } else {
                say(text);
            }
        });
    }

    fn progress(&self, iteration: u64, _of: u64, loss: f64) {
        self.bar.set_position(iteration);
        self.bar.set_message(format!("loss {loss:.4}"));
    }

    fn iteration(&self, iteration: u64) {
        self.counts.done.store(iteration, Ordering::Relaxed);
    }

    fn saved(&self, iteration: u64) {
        self.counts.saved.store(iteration, Ordering::Relaxed);
    }
}

/// A line of Megatron's log for eyes: what fits a terminal of 80 columns. Other lines stay as they are.
fn short(line: &str) -> String {
    let Some(at) = line.find("] iteration ").filter(|_| line.starts_with(" [")) else {
        return line.to_owned();
    };
    let parts: Vec<&str> = line[at + 2..].split('|').map(str::trim).collect();
    let value = |name: &str| {
        let part = parts.iter().find_map(|part| part.strip_prefix(name))?;
        Some(part.trim_start_matches(':').trim().replace(' ', ""))
    };
    let number = |name: &str| value(name).and_then(|text| text.parse::<f64>().ok());
    let mut out = format!("iteration {}", value("iteration").unwrap_or_default());
    if let Some(loss) = number("lm loss") {
        out += &format!("  loss {loss:.4}");
    }
    if let Some(norm) = number("grad norm") {
        out += &format!("  norm {norm:.3}");
    }
    if let Some(rate) = number("learning rate") {
        out += &format!("  lr {rate:.3e}");
    }
    if let Some(ms) = number("elapsed time per iteration (ms)") {
        out += &format!("  {ms:.0} ms");
    }
    out
}

/// Checks that what a run reports can be written where its flags say, before anything is read.
///
/// # Errors
/// Names the flag and what stands in the way.
pub(crate) fn check(resolved: &Resolved) -> Result<()> {
    let config = &resolved.config;
    let wants = |flag: &str, path: &Path, wanted: &str| {
        if path.as_os_str() == "-" {
            refuse!("{flag} -: expected the name of {wanted}\nhint: ./- names it");
        }
        // The first of the path and its folders that is there.
        let there = path.ancestors().find(|at| at.exists());
        let found = match there {
            Some(at) if at == path && wanted == "a file" => at.is_dir().then_some("a folder"),
            Some(at) => at.is_file().then_some("a file"),
            None => None,
        };
        let Some(found) = found else { return Ok(()) };
        let at = there.filter(|at| *at != path).map_or(String::new(), |at| format!(" at {}", at.display()));
        refuse!("{flag} {}: expected {wanted}, found {found}{at}", path.display())
    };
    if let Some(path) = &config.logging.metrics_file {
        wants("--metrics-file", path, "a file")?;
    }
    if config.profile.is_some() {
        wants("--profile-save-path", &resolved.profile_dir, "a folder")?;
    }
    match &config.logging.tensorboard {
        Some((path, _)) => wants("--tensorboard-dir", path, "a folder"),
        None => Ok(()),
    }
}

/// The closing report: one JSON object with `--json`, else a few lines.
pub(crate) fn summary(args: &Args, summary: &Value) {
    if args.json() {
        say(&summary.to_string());
        return;
    }
    let number = |key: &str| summary[key].as_f64().unwrap_or(0.0);
    let mut line = format!(
        "done: {} iterations, {} samples, {:.0} tokens/s, {:.3} TFLOP/s, peak {:.0} MiB of tensors per rank",
        summary["iteration"],
        summary["consumed_samples"],
        number("tokens_per_second"),
        number("tflops_per_second"),
        number("peak_tensor_bytes_per_rank") / f64::from(1 << 20),
    );
    if summary["weights_from"] == "random weights" {
        line.push_str(", from random weights");
    }
    if let Some(n) = summary["failed_saves"].as_u64().filter(|&n| n > 0) {
        line = format!("{line}; {n} checkpoints could NOT be written when they were due");
    }
    if let Some(reason) = summary["stopped"].as_str() {
        line = format!("{line}; stopped: {reason}");
    }
    for (key, what) in [("save", "checkpoint"), ("trace", "trace")] {
        if let Some(path) = summary[key].as_str() {
            line = format!("{line}\n{what}: {path}");
        }
    }
    say(&line);
}

/// Prints every value and where it came from, and what was resolved of them.
///
/// # Errors
/// If a value has no form in JSON.
pub(crate) fn print_config(args: &Args, resolved: &Resolved) -> Result<()> {
    let mut values = Map::new();
    for (dest, value, origin) in args.all() {
        let entry = json!({"value": value, "from": format!("{origin:?}").to_lowercase()});
        values.insert(dest.to_owned(), entry);
    }
    let resolved = json!({
        "model": resolved.config.model,
        "model_from": resolved.model_from,
        "schedule": resolved.config.schedule,
        "train_iters": resolved.config.train_iters,
        "global_batch_size": resolved.config.batch.global,
        "ranks": resolved.world,
        "threads_per_rank": resolved.threads_per_rank,
    });
    say(&serde_json::to_string_pretty(&json!({"flags": values, "resolved": resolved}))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn a_line_for_eyes_fits_a_terminal() {
        let line = " [2024-02-29 23:59:59] iteration   123456/ 2000000 | consumed samples:          160 | elapsed time per \
                    iteration (ms): 123456.7 | learning rate: 1.250000E-06 | global batch size:    16 | lm loss: \
                    1.050000E+01 | loss scale: 1.0 | grad norm: 1234.567 | number of skipped iterations:   0 | number of \
                    nan iterations:   0 |";
        let said = short(line);
        assert_eq!(said, "iteration 123456/2000000  loss 10.5000  norm 1234.567  lr 1.250e-6  123457 ms");
        assert!(said.len() <= 80);
        assert_eq!(short("saved iteration 3 to out"), "saved iteration 3 to out");
    }
}
