//! `ms-profile cpu`.

use anyhow::Result;
use ms_kernels::{Cpu, Isa, machine};
use serde_json::json;
use std::io::Write;

/// Measures and prints.
///
/// # Errors
/// If `MS_ISA` names an instruction set that this machine does not have, or stdout is closed.
pub(crate) fn run(threads: Option<usize>, quick: bool, as_json: bool) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = Cpu::new(threads.unwrap_or(cores).max(1), Isa::from_env()?)?;
    let p = machine::measure(&cpu, quick);
    let available: Vec<String> = Isa::all_available().iter().map(ToString::to_string).collect();
    let mut out = std::io::stdout().lock();
    if as_json {
        let report = json!({
            "isa": p.isa.to_string(),
            "available": available,
            "threads": p.threads,
            "cores": cores,
            "f32_gflops": p.f32_gflops,
            "bf16_gflops": p.bf16_gflops,
            "read_gbps": p.read_gbps,
            "read_write_gbps": p.rw_gbps,
            "copy_gbps": p.copy_gbps,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "instruction set   {} (available: {})", p.isa, available.join(", "))?;
    writeln!(out, "threads           {} of {cores} cores", p.threads)?;
    writeln!(out, "f32 peak          {:8.1} GFLOP/s", p.f32_gflops)?;
    writeln!(out, "bf16 peak         {:8.1} GFLOP/s", p.bf16_gflops)?;
    writeln!(out, "memory, read      {:8.1} GB/s", p.read_gbps)?;
    writeln!(out, "memory, in place  {:8.1} GB/s", p.rw_gbps)?;
    writeln!(out, "memory, copy      {:8.1} GB/s", p.copy_gbps)?;
    Ok(())
}
