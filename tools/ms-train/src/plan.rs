//! `--dry-run`: the plan of a run, or layouts of its ranks that fit.

mod report;

use anyhow::Result;
use ms_cli::megatron::Args;
use ms_options::plan::{Layouts, plan};
use ms_options::training::{Options, Resolved};
use std::io::Write;

/// Prints the plan: a report, or one JSON object with `--json`.
///
/// # Errors
/// If the model cannot be cut for this grid.
pub(crate) fn print(args: &Args, resolved: &Resolved) -> Result<()> {
    let plan = plan(resolved)?;
    let mut out = std::io::stdout().lock();
    if args.json() {
        writeln!(out, "{plan}")?;
    } else {
        out.write_all(report::report(&plan).as_bytes())?;
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
