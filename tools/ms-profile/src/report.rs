//! `ms-profile report`: from a trace to a table.

use anyhow::{Context, Result, bail};
use ms_trace::{Category, Event, chrome};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Time of one kind of operation over all recorded iterations and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Name of the operation.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// Microseconds in all.
    pub total_us: f64,
    /// Longest run in microseconds.
    pub max_us: f64,
    /// Floating-point operations in all.
    pub flops: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// Where the time of recorded iterations went.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Ranks in the trace.
    pub ranks: usize,
    /// Iterations recorded per rank.
    pub iterations: usize,
    /// Iterations of all ranks together, which may have different numbers of them.
    pub windows: usize,
    /// Mean microseconds of an iteration.
    pub iteration_us: f64,
    /// Mean microseconds of an iteration in operations.
    pub computing_us: f64,
    /// Mean microseconds of an iteration in collectives.
    pub communication_us: f64,
    /// Mean microseconds of an iteration in neither: bookkeeping, data, waiting.
    pub free_us: f64,
    /// Operations, the longest first.
    pub rows: Vec<Row>,
}

/// Sums up the events of recorded iterations; events outside every iteration are left out.
pub(crate) fn summarize(events: &[Event]) -> Report {
    let mut report = Report::default();
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let mut ranks: BTreeMap<usize, Vec<&Event>> = BTreeMap::new();
    for event in events {
        ranks.entry(event.rank).or_default().push(event);
    }
    report.ranks = ranks.len();
    for of_rank in ranks.values() {
        let mut iterations: Vec<(f64, f64)> = of_rank
            .iter()
            .filter(|e| e.category == Category::Step && e.name == "iteration")
            .map(|e| (e.start_us, e.start_us + e.duration_us))
            .collect();
        report.iterations = report.iterations.max(iterations.len());
        report.windows += iterations.len();
        report.iteration_us += iterations.iter().map(|(a, b)| b - a).sum::<f64>();
        // By their starts, each with the latest end so far: a time that is before this end lies in one of them.
        iterations.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut latest = f64::NEG_INFINITY;
        for (_, end) in &mut iterations {
            latest = latest.max(*end);
            *end = latest;
        }
        for e in of_rank.iter().filter(|e| e.category != Category::Step) {
            let middle = e.start_us + e.duration_us / 2.0;
            let begun = iterations.partition_point(|&(start, _)| start <= middle);
            if !begun.checked_sub(1).is_some_and(|last| middle <= iterations[last].1) {
                continue;
            }
            match e.category {
                Category::Communication => report.communication_us += e.duration_us,
                _ => report.computing_us += e.duration_us,
            }
            let row = rows.entry(&e.name).or_insert_with(|| Row { name: e.name.clone(), ..Row::default() });
            row.count += 1;
            row.total_us += e.duration_us;
            row.max_us = row.max_us.max(e.duration_us);
            // Of a damaged trace, which has any numbers.
            row.flops = row.flops.saturating_add(e.flops);
            row.bytes = row.bytes.saturating_add(e.bytes);
        }
    }
    let n = report.windows.max(1) as f64;
    report.iteration_us /= n;
    report.computing_us /= n;
    report.communication_us /= n;
    report.free_us = (report.iteration_us - report.computing_us - report.communication_us).max(0.0);
    report.rows = rows.into_values().collect();
    report.rows.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
    report
}

/// Reads a trace, the newest of a folder, and writes the report: the `top` operations that took longest.
///
/// # Errors
/// If there is no trace or it cannot be read.
pub fn write(out: &mut impl Write, path: &Path, top: usize, as_json: bool) -> Result<()> {
    let trace = find_trace(path)?;
    let report = summarize(&chrome::read(&trace)?);
    if report.iterations == 0 {
        bail!(
            "{}: no recorded iteration; run ms-train with --profile and enough iterations",
            trace.display()
        );
    }
    let metadata = trace.ancestors().nth(2).map(|root| root.join("profiler_metadata.json"));
    let metadata = metadata.filter(|m| m.is_file());
    let run: Value = match &metadata {
        Some(path) => {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?
        }
        None => Value::Null,
    };
    let value = to_json(&report, &run, &trace, top);
    if as_json {
        writeln!(out, "{value}")?;
    } else {
        print(out, &report, &value, top)?;
    }
    Ok(())
}

/// The newest `trace_view.json` in or below a folder, or the file itself.
fn find_trace(path: &Path) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let mut found: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() && depth < 3 {
                folders.push((entry.path(), depth + 1));
            } else if entry.file_name() == "trace_view.json" {
                found.push((meta.modified()?, entry.path()));
            }
        }
    }
    found.sort();
    match found.pop() {
        Some((_, trace)) => Ok(trace),
        None => bail!("{}: expected a folder with trace_view.json in it, found none", path.display()),
    }
}

fn peak(run: &Value) -> Option<f64> {
    let key = if run["dtype"] == "bf16" { "bf16_gflops" } else { "f32_gflops" };
    let threads = run["ranks"].as_f64()? * run["threads_per_rank"].as_f64()?;
    Some(run["peak_per_thread"][key].as_f64()? * threads)
}

fn to_json(report: &Report, run: &Value, trace: &Path, top: usize) -> Value {
    let seconds = report.iteration_us / 1e6;
    let peak = peak(run);
    let flops = run["model_flops_per_iteration"].as_f64();
    let per_thread = peak.map(|p| p / run["ranks"].as_f64().unwrap_or(1.0));
    let rows = report.rows.iter().take(top).map(|r| {
        let gflops = r.flops as f64 / r.total_us.max(1e-9) / 1e3;
        json!({
            "name": r.name,
            "count": r.count,
            "total_us": r.total_us,
            "max_us": r.max_us,
            "share": r.total_us / (report.iteration_us * report.windows as f64),
            "gflops": gflops,
            "share_of_peak": per_thread.map(|p| gflops / p),
            "gbps": r.bytes as f64 / r.total_us.max(1e-9) / 1e3,
        })
    });
    json!({
        "trace": trace,
        "device": run["device"],
        "ranks": report.ranks,
        "iterations": report.iterations,
        "iteration_us": report.iteration_us,
        "computing_us": report.computing_us,
        "communication_us": report.communication_us,
        "free_us": report.free_us,
        "tokens_per_second": run["tokens_per_iteration"].as_f64().map(|t| t / seconds),
        "tflops_per_second": flops.map(|f| f / seconds / 1e12),
        "peak_gflops": peak,
        "mfu": flops.zip(peak).map(|(f, p)| f / seconds / 1e9 / p),
        "operations": rows.collect::<Vec<_>>(),
    })
}

fn print(out: &mut impl Write, report: &Report, value: &Value, top: usize) -> Result<()> {
    let ms = |us: f64| us / 1e3;
    let share = |us: f64| 100.0 * us / report.iteration_us.max(1e-9);
    writeln!(
        out,
        "{} ranks, {} iterations each, {}",
        report.ranks,
        report.iterations,
        value["device"].as_str().unwrap_or("device unknown")
    )?;
    writeln!(out, "iteration      {:10.2} ms", ms(report.iteration_us))?;
    for (name, us) in [
        ("computing", report.computing_us),
        ("communication", report.communication_us),
        ("free", report.free_us),
    ] {
        writeln!(out, "  {name:<13}{:10.2} ms {:5.1} %", ms(us), share(us))?;
    }
    let number = |key: &str| value[key].as_f64();
    if let Some(tokens) = number("tokens_per_second") {
        writeln!(out, "tokens/s       {tokens:10.0}")?;
    }
    if let (Some(mfu), Some(peak)) = (number("mfu"), number("peak_gflops")) {
        writeln!(out, "MFU            {:10.1} % of {peak:.0} GFLOP/s measured after the run", 100.0 * mfu)?;
    }
    writeln!(
        out,
        "\n{:<22} {:>8} {:>11} {:>7} {:>9} {:>7} {:>8}",
        "operation", "count", "total ms", "share", "GFLOP/s", "peak", "GB/s"
    )?;
    for row in value["operations"].as_array().into_iter().flatten().take(top) {
        let n = |key: &str| row[key].as_f64().unwrap_or(0.0);
        writeln!(
            out,
            "{:<22} {:>8} {:>11.2} {:>6.1}% {:>9.1} {:>6.1}% {:>8.1}",
            row["name"].as_str().unwrap_or(""),
            row["count"],
            n("total_us") / 1e3,
            100.0 * n("share"),
            n("gflops"),
            100.0 * n("share_of_peak"),
            n("gbps"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(rank: usize, name: &str, category: Category, start_us: f64, duration_us: f64) -> Event {
        Event {
            name: name.into(),
            category,
            rank,
            start_us,
            duration_us,
            flops: 1000,
            bytes: 10,
            detail: String::new(),
        }
    }

    #[test]
    fn shares_are_of_the_iterations_that_every_rank_has() {
        let events = [(0, 0.0), (0, 100.0), (1, 0.0)].map(|(rank, start)| {
            [
                event(rank, "iteration", Category::Step, start, 100.0),
                event(rank, "add", Category::Op, start, 50.0),
            ]
        });
        let value = to_json(&summarize(&events.concat()), &Value::Null, Path::new("t"), 9);
        assert_eq!(
            (value["iterations"].as_u64(), value["operations"][0]["share"].as_f64()),
            (Some(2), Some(0.5))
        );
    }

    #[test]
    fn any_numbers_and_many_ranks_are_summed_up() {
        let step = |rank, start, length| event(rank, "iteration", Category::Step, start, length);
        let mut events = vec![step(0, 0.0, 100.0), step(0, 10.0, 20.0), step(0, 200.0, -300.0)];
        for (start, length) in [(50.0, 2.0), (60.0, 2.0), (90.0, 30.0), (150.0, 1.0), (-9.0, 1.0)] {
            events.push(Event { flops: u64::MAX, ..event(0, "linear", Category::Op, start, length) });
        }
        // So many ranks and iterations that looking at each for each event takes minutes.
        events.extend((1..40_000).map(|rank| event(rank, "add", Category::Op, 1.0, 1.0)));
        events.extend((0..40_000).flat_map(|i| {
            let start = 2.0 * f64::from(i);
            [step(40_000, start, 1.0), event(40_000, "add", Category::Op, start, 1.0)]
        }));
        let r = summarize(&events);
        assert_eq!((r.ranks, r.iterations, r.rows.len()), (40_001, 40_000, 2));
        let counted: Vec<(&str, u64, u64)> =
            r.rows.iter().map(|row| (row.name.as_str(), row.count, row.flops)).collect();
        assert_eq!(counted, [("add", 40_000, 40_000_000), ("linear", 2, u64::MAX)]);
    }

    #[test]
    fn computing_communication_and_free_make_the_iteration() {
        let mut events = Vec::new();
        for rank in 0..2 {
            events.extend([
                event(rank, "linear", Category::Op, 1.0, 5.0),
                event(rank, "iteration", Category::Step, 10.0, 100.0),
                event(rank, "linear", Category::Op, 11.0, 60.0),
                event(rank, "add", Category::Op, 71.0, 10.0),
                event(rank, "collective", Category::Communication, 82.0, 20.0),
            ]);
        }
        let r = summarize(&events);
        assert_eq!((r.ranks, r.iterations), (2, 1));
        assert_eq!(
            (r.iteration_us, r.computing_us, r.communication_us, r.free_us),
            (100.0, 70.0, 20.0, 10.0)
        );
        assert_eq!(
            r.rows[0],
            Row { name: "linear".into(), count: 2, total_us: 120.0, max_us: 60.0, flops: 2000, bytes: 20 }
        );
    }
}
