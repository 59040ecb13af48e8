//! A whole training step: tokens per second and share of the machine's peak, by the CPU time of all threads divided by their
//! number.
//!
//! `cargo bench -p ms-trainer --bench step [-- --json] [--size=A] [--threads=N] [--arithmetic=pair|tile32|bfdot]`. The sizes are
//! those of the project's targets: A (hidden 384, 6 layers, 6 heads, FFN 1024, 512 tokens x 4, vocabulary 32000, tied) and B
//! (768, 12, 12 heads in 4 groups, 2048, 1024 x 2). E is A with eight experts of 512, top-2, so that a token is multiplied by
//! as many weights as in A. Before anything is timed, ten steps must have lowered the loss on a repeated batch.
//!
//! With `--by-line` (one size, `--dtype=bf16|f32`) one step is run for every input line, and its processor and wall seconds
//! are printed, so that another program can alternate with it (`docs/benchmarks/compare_torch.py`).
//!
//! The peak is measured in the same process right before and after; the share refers to the mean of the two.

#![allow(clippy::print_stdout, missing_docs)] // a benchmark reports on stdout

#[allow(dead_code)] // each benchmark uses its part of it
mod shape;

use ms_core::{DType, Device};
use ms_cpu::{Choice, CpuBackend};
use ms_dist::ParallelCtx;
use ms_kernels::{Cpu, machine};
use ms_trainer::Engine;
use shape::{A, Size};

const SIZES: [Size; 3] = [
    A,
    Size { name: "B", hidden: 768, layers: 12, heads: 12, groups: 4, ffn: 2048, seq: 1024, batch: 2, ..A },
    Size { name: "E", ffn: 512, experts: 8, ..A },
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let json = args.iter().any(|a| a == "--json");
    let only = args.iter().find_map(|a| a.strip_prefix("--size=").map(str::to_owned));
    let value = |name: &str| args.iter().find_map(|a| a.strip_prefix(name).map(str::to_owned));
    let threads: usize = value("--threads=").map_or(1, |n| n.parse().expect("--threads=N"));
    let asked = value("--arithmetic=").map(|name| name.parse().expect("--arithmetic=pair, tile32 or bfdot"));
    let choice = Choice::of_process(asked, None).expect("MS_ISA names an instruction set of this machine");
    for s in SIZES.iter().filter(|s| only.as_deref().is_none_or(|o| o == s.name)) {
        for dtype in [DType::Bf16, DType::F32] {
            if args.iter().any(|a| a == "--by-line") {
                if value("--dtype=").is_none_or(|name| name == dtype.name()) {
                    by_line(s, dtype, choice, threads);
                    return;
                }
                continue;
            }
            if s.name == "B" && dtype == DType::F32 {
                continue;
            }
            run(s, dtype, choice, threads, json);
        }
    }
}

/// A step for every line of standard input, after three to settle.
fn by_line(s: &Size, dtype: DType, choice: Choice, threads: usize) {
    let config = s.config(dtype);
    let device = Device::new(CpuBackend::with(threads, choice).expect("threads can be had"));
    let mut engine = Engine::new(&config, device, ParallelCtx::single()).expect("the model is sound");
    let batch = [s.micro_batch()];
    let mut iteration = 0;
    let mut step = || {
        iteration += 1;
        engine.step(iteration, &batch, (1e-3, 0.1)).expect("the step is sound").loss
    };
    for _ in 0..3 {
        step();
    }
    println!("{{\"isa\": \"{}\", \"arithmetic\": \"{}\"}}", choice.isa, choice.arithmetic);
    for _ in std::io::stdin().lines() {
        let (wall, cpu) = (std::time::Instant::now(), machine::process_cpu_seconds());
        let loss = step();
        let (cpu, wall) = (machine::process_cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
        println!("{}", serde_json::json!({"cpu": cpu, "wall": wall, "loss": loss}));
    }
}

/// Pages that the system has given to this process: what memory costs that is taken anew.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may hold spaces; minor faults are the eighth field after it.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.nth(7).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn run(s: &Size, dtype: DType, choice: Choice, threads: usize, json: bool) {
    let Choice { isa, arithmetic } = choice;
    let config = s.config(dtype);
    let device = Device::new(CpuBackend::with(threads, choice).expect("threads can be had"));
    let mut engine = Engine::new(&config, device.clone(), ParallelCtx::single()).expect("the model is sound");
    let batch = [s.micro_batch()];
    let mut iteration = 0;
    let mut step = |engine: &mut Engine| {
        iteration += 1;
        engine.step(iteration, &batch, (1e-3, 0.1)).expect("the step is sound").loss
    };
    let warm = if s.name == "B" { 3 } else { 10 };
    let first = step(&mut engine);
    step(&mut engine);
    let settled = device.arena().stats().system_allocations;
    let faults_before = page_faults();
    let last = (2..warm).map(|_| step(&mut engine)).last().expect("at least one step");
    let faults = (page_faults() - faults_before) / (warm - 2);
    assert!(last < first, "the loss must fall on a repeated batch: {first} -> {last}");

    let cpu = Cpu::with_arithmetic(threads, isa, arithmetic).expect("threads can be had");
    let peak = |p: machine::Peaks| if dtype == DType::Bf16 { p.bf16_gflops } else { p.f32_gflops };
    let before = peak(machine::measure(&cpu, true));
    let mut seconds: Vec<f64> = (0..5)
        .map(|_| {
            let start = machine::process_cpu_seconds();
            step(&mut engine);
            (machine::process_cpu_seconds() - start) / threads as f64
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let after = peak(machine::measure(&cpu, true));
    let peak = (before + after) / 2.0;
    let median = seconds[2];
    let full = config.flops_per_sample * s.batch as f64;
    let causal = ms_spec::flops::head(&config.model, 1, s.seq) * s.batch as f64;
    let tokens = (s.seq * s.batch) as f64 / median;
    let (mfu, mfu_causal) = (full / median / 1e9 / peak, causal / median / 1e9 / peak);
    let stats = device.arena().stats();
    let late = stats.system_allocations - settled;
    if json {
        println!(
            "{}",
            serde_json::json!({"bench": "step", "size": s.name, "dtype": dtype.name(), "isa": isa.to_string(), "arithmetic": arithmetic.to_string(), "threads": threads,
                "tokens_per_cpu_second": tokens, "mfu_full": mfu, "mfu_causal": mfu_causal, "peak_gflops": peak,
                "seconds": median, "peak_tensor_bytes": stats.peak_bytes, "late_allocations": late,
                "page_faults_per_step": faults})
        );
    } else {
        println!(
            "step {} {}: {tokens:7.0} tokens/s, MFU {:.3} full / {:.3} causal of {peak:.1} GFLOP/s ({isa}, {arithmetic}, {threads} threads), \
             {median:.3} s, {:.0} MiB, {late} blocks and {faults} pages a step from the system after step 2",
            s.name,
            dtype,
            mfu,
            mfu_causal,
            stats.peak_bytes as f64 / f64::from(1 << 20),
        );
    }
}
