//! `ms-profile cpu`.

use anyhow::Result;
use ms_kernels::choice::{self, Choice};
use ms_kernels::{Arithmetic, Cpu, Isa, machine};
use serde_json::json;
use std::io::Write;

/// Measures and prints.
///
/// # Errors
/// If `MS_ISA` names an instruction set that this machine does not have, or stdout is closed.
pub(crate) fn run(threads: Option<usize>, quick: bool, as_json: bool) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let chosen = Choice::of_process(None, ms_cli::processor_choice().as_deref())?;
    let cpu = Cpu::with_arithmetic(threads.unwrap_or(cores).max(1), chosen.isa, chosen.arithmetic)?;
    let bodies: Vec<choice::Rate> =
        Arithmetic::ALL.into_iter().flat_map(|arithmetic| choice::rates(Some(arithmetic))).collect();
    let p = machine::measure(&cpu, quick);
    let available: Vec<String> = Isa::all_available().iter().map(ToString::to_string).collect();
    let mut out = std::io::stdout().lock();
    if as_json {
        let report = json!({
            "isa": p.isa.to_string(),
            "arithmetic": p.arithmetic.to_string(),
            "bf16_products": bodies.iter().map(|body| json!({
                "isa": body.choice.isa.to_string(),
                "arithmetic": body.choice.arithmetic.to_string(),
                "gflops": body.gflops,
                "exact": body.exact,
            })).collect::<Vec<_>>(),
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
    writeln!(out, "sums of bf16      {}", p.arithmetic)?;
    writeln!(out, "threads           {} of {cores} cores", p.threads)?;
    writeln!(out, "f32 peak          {:8.1} GFLOP/s", p.f32_gflops)?;
    writeln!(out, "bf16 peak         {:8.1} GFLOP/s", p.bf16_gflops)?;
    writeln!(out, "memory, read      {:8.1} GB/s", p.read_gbps)?;
    writeln!(out, "memory, in place  {:8.1} GB/s", p.rw_gbps)?;
    writeln!(out, "memory, copy      {:8.1} GB/s", p.copy_gbps)?;
    writeln!(out, "a bf16 product of 96 x 512 x 512 on one thread, by instruction set and order of sums:")?;
    for body in &bodies {
        let Choice { isa, arithmetic } = body.choice;
        let chosen = if body.choice == chosen { "  (in use)" } else { "" };
        let wrong = if body.exact { "" } else { "  gives other bits than it should: never used" };
        writeln!(
            out,
            "  {:<10} {:<7} {:8.1} GFLOP/s{chosen}{wrong}",
            isa.to_string(),
            arithmetic.to_string(),
            body.gflops
        )?;
    }
    Ok(())
}
