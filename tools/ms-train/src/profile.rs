//! The profile of a run: a trace that Perfetto opens, and the metadata needed to read it.
//!
//! The folder has the names of Ascend's profiler, so that its readers find the trace:
//! `{host}_{pid}_{time}_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json` and `profiler_metadata.json`.

use anyhow::Result;
use ms_core::{Axis, DType};
use ms_kernels::choice::Choice;
use ms_kernels::{Cpu, machine};
use ms_options::training::Resolved;
use ms_options::training::Topology;
use ms_trace::{Event, chrome};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Writes the recorded events and the machine's peaks, measured now; returns the trace's path.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn write(resolved: &Resolved, events: &[Event], choice: Choice) -> Result<PathBuf> {
    let time = chrono::Utc::now().format("%Y%m%d%H%M%S%3f");
    let name = format!("{}_{}_{time}_ascend_pt", host(), std::process::id());
    let root = resolved.profile_dir.join(name);
    let dir = root.join("ASCEND_PROFILER_OUTPUT");
    ms_cli::make_folder(&dir)?;
    let trace = dir.join("trace_view.json");
    let c = &resolved.config;
    let label = match c.dtype {
        DType::F64 => "reference (f64)".to_owned(),
        _ => format!("cpu ({}, {}, {} threads)", choice.isa, choice.arithmetic, resolved.threads_per_rank),
    };
    let peaks = machine::measure(&Cpu::with_arithmetic(1, choice.isa, choice.arithmetic)?, true);
    let metadata = json!({
        "device": label,
        "dtype": c.dtype.name(),
        "ranks": resolved.world,
        "threads_per_rank": resolved.threads_per_rank,
        "parallel": parallel(&resolved.topology),
        "iterations": c.profile.as_ref().map(|p| [p.start, p.end]),
        "tokens_per_iteration": c.batch.global * c.seq_length,
        "model_flops_per_iteration": c.flops_per_sample * c.batch.global as f64,
        "peak_per_thread": {
            "f32_gflops": peaks.f32_gflops,
            "bf16_gflops": peaks.bf16_gflops,
            "read_gbps": peaks.read_gbps,
            "copy_gbps": peaks.copy_gbps,
        },
    });
    // The trace comes last: a reader that finds it finds the rest too.
    let path = root.join("profiler_metadata.json");
    ms_files::write_file(&path, &serde_json::to_vec_pretty(&metadata)?)?;
    chrome::write(&trace, events, &label)?;
    Ok(trace)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

/// How the ranks share the work.
fn parallel(t: &Topology) -> Value {
    let size = |axis| t.grid.size(axis);
    json!({
        "tp": size(Axis::Tp), "pp": size(Axis::Pp), "dp": size(Axis::Dp), "cp": size(Axis::Cp), "ep": size(Axis::Ep),
        "sequence_parallel": t.parallel.sequence_parallel,
    })
}
