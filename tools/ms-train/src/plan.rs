//! `--dry-run`: the plan of a run, or layouts of its ranks that fit.

use anyhow::Result;
use ms_cli::megatron::Args;
use ms_options::plan::{Layouts, plan};
use ms_options::training::{Options, Resolved};
use serde_json::Value;
use std::io::Write;

/// Keys that say something of every rank or element; the table leaves them to `--json`.
const LONG: [&str; 4] = ["groups", "zero1", "ranks", "cp"];

/// Prints the plan: a table, or one JSON object with `--json`.
///
/// # Errors
/// If the model cannot be cut for this grid.
pub(crate) fn print(args: &Args, resolved: &Resolved) -> Result<()> {
    let plan = plan(resolved)?;
    let mut out = std::io::stdout().lock();
    if args.json() {
        writeln!(out, "{plan}")?;
        return Ok(());
    }
    let shown = |key: &String, value: &Value| {
        !LONG.contains(&key.as_str()) && !value.as_array().is_some_and(Vec::is_empty)
    };
    for (key, value) in plan.as_object().into_iter().flatten().filter(|(key, value)| shown(key, value)) {
        match value {
            Value::Object(inner) => {
                writeln!(out, "{key}:")?;
                for (k, v) in inner {
                    match v.as_array().filter(|lines| lines.iter().any(Value::is_string)) {
                        Some(lines) => {
                            for (i, line) in lines.iter().enumerate() {
                                writeln!(
                                    out,
                                    "  {:<28} {}",
                                    format!("{k} {i}"),
                                    line.as_str().unwrap_or("")
                                )?;
                            }
                        }
                        None => writeln!(out, "  {k:<28} {v}")?,
                    }
                }
            }
            other => writeln!(out, "{key:<30} {other}")?,
        }
    }
    Ok(())
}

/// Prints the layouts whose ranks each need at most `limit`: lines, or one JSON object with `--json`.
///
/// # Errors
/// An invalid size, or no layout that fits, with the smallest one.
pub(crate) fn print_layouts(args: &Args, o: &Options, r: &Resolved, limit: &str) -> Result<()> {
    let found = Layouts::find(o, r, limit)?;
    let mut out = std::io::stdout().lock();
    if args.json() {
        writeln!(out, "{}", found.to_json())?;
    } else {
        writeln!(out, "{found}")?;
    }
    Ok(())
}
