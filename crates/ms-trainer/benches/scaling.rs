//! How the time of a training step grows with tokens, layers, width, experts and ranks, compared with the amount of work.
//!
//! `cargo bench -p ms-trainer --bench scaling [-- AXIS ...]`; axes: `sequences`, `tokens`, `layers`, `width`, `experts`,
//! `data`, `tensor`, `split` (two threads of one rank against two ranks). The formula is what the step must do at the limits
//! of this machine, which are measured in the same process before and after: FLOPs (causal attention) over the bf16 peak,
//! plus bytes of weights, gradients and optimizer state over the read-write bandwidth. The cases of an axis keep their models
//! and alternate; times are processor seconds of the whole process, medians of the rounds. For each case the output gives
//! time and formula relative to the axis' first case, their quotient and the formula's share of the time; for each axis, the
//! exponent `e` of the fit `time ~ formula^e`: above 1, time grows faster than the work.

#![allow(clippy::print_stdout, missing_docs)] // a benchmark reports on stdout

#[allow(dead_code)] // each benchmark uses its part of it
mod shape;

use ms_core::{DType, Device, Grid, GridRules, GridSizes};
use ms_cpu::{Choice, CpuBackend};
use ms_dist::{ParallelCtx, ParallelOptions, threads};
use ms_kernels::{Cpu, machine};
use ms_trainer::Engine;
use shape::{A, Size};

/// Bytes that a parameter takes from and to memory in a step: its weight is read forward and backward, its gradient made zero,
/// added to, summed by squares and read by the optimizer, which reads and writes three f32 and writes the bf16 copy.
const BYTES: f64 = 4.0 + 4.0 + 8.0 + 4.0 + 30.0;
const ROUNDS: usize = 5;

/// A point of an axis: its value, model and batch, and how many ranks share it.
struct Case {
    value: usize,
    size: Size,
    sizes: GridSizes,
    world: usize,
    /// Kernel threads of a rank.
    threads: usize,
}

impl Case {
    fn alone(value: usize, size: Size) -> Self {
        Self { value, size, sizes: GridSizes::default(), world: 1, threads: 1 }
    }

    /// FLOPs and bytes of a step of all ranks.
    fn work(&self, parameters: usize) -> (f64, f64) {
        let config = self.size.config(DType::Bf16);
        let replicas = (self.world / self.sizes.tp) as f64;
        let flops = ms_spec::flops::head(&config.model, self.size.batch, self.size.seq);
        (replicas * flops, replicas * parameters as f64 * BYTES)
    }
}

fn axes() -> Vec<(&'static str, &'static str, Vec<Case>)> {
    let small = Size { batch: 2, ..A };
    let alone = |values: &[usize], of: &dyn Fn(usize) -> Size| -> Vec<Case> {
        values.iter().map(|&v| Case::alone(v, of(v))).collect()
    };
    let wide =
        |h: usize| Size { hidden: h, heads: h / 64, groups: h / 64, ffn: h / 3 * 8, layers: 4, ..small };
    let experts = |experts: usize| Size { ffn: 512, experts, ..small };
    let ranks = |tp: usize, world: usize| Case {
        value: world,
        size: Size { heads: 4, groups: 4, hidden: 512, ..small },
        sizes: GridSizes { tp, ..GridSizes::default() },
        world,
        threads: 1,
    };
    // The same batch on two cores: kernel threads of one rank, then ranks, twice.
    let split = [1, 2, 1, 2].map(|world| Case {
        world,
        threads: 2 / world,
        ..Case::alone(world, Size { batch: A.batch / world, ..A })
    });
    vec![
        ("sequences", "sequences of 512 tokens", alone(&[1, 2, 4, 8], &|batch| Size { batch, ..A })),
        (
            "tokens",
            "tokens of one sequence",
            alone(&[256, 512, 1024, 2048, 4096], &|seq| Size { seq, batch: 1, ..A }),
        ),
        ("layers", "layers", alone(&[2, 4, 8, 16], &|layers| Size { layers, ..small })),
        ("width", "hidden size, four layers", alone(&[192, 384, 768, 1536], &wide)),
        ("experts", "experts of 512, two of a token", alone(&[2, 4, 8, 16, 32], &experts)),
        ("data", "data-parallel ranks", [1, 2, 4].map(|n| ranks(1, n)).into()),
        ("tensor", "tensor-parallel ranks", [1, 2, 4].map(|n| ranks(n, n)).into()),
        ("split", "ranks on two cores", split.into()),
    ]
}

/// A model that stays, and makes a step when told to.
fn alone(case: &Case, choice: Choice) -> (usize, Box<dyn FnMut() -> f64>) {
    let device = Device::new(CpuBackend::with(1, choice).expect("threads can be had"));
    let config = case.size.config(DType::Bf16);
    let mut engine = Engine::new(&config, device, ParallelCtx::single()).expect("the model is sound");
    let parameters = engine.store.layout().ids().map(|id| engine.store.layout().shape(id).numel()).sum();
    let batch = [case.size.micro_batch()];
    let mut iteration = 0;
    let step = move || {
        iteration += 1;
        let start = machine::process_cpu_seconds();
        engine.step(iteration, &batch, (1e-3, 0.1)).expect("the step is sound");
        machine::process_cpu_seconds() - start
    };
    (parameters, Box::new(step))
}

/// Processor seconds of a step of ranks that are threads, the median of some.
fn together(case: &Case, choice: Choice) -> f64 {
    let grid = Grid::new(case.world, &case.sizes, GridRules::V2).expect("ranks fit");
    let config = case.size.config(DType::Bf16);
    let batch = [case.size.micro_batch()];
    let of_rank = |fabric: threads::ThreadFabric| -> ms_trainer::Result<Vec<f64>> {
        let device = Device::new(CpuBackend::with(case.threads, choice).expect("threads can be had"));
        let ctx = ParallelCtx::new(grid.clone(), ParallelOptions::default(), &fabric)?;
        let mut engine = Engine::new(&config, device, ctx)?;
        let mut taken = Vec::new();
        for iteration in 1..=2 + ROUNDS as u64 {
            // Ranks end a step together, for they wait for each other's gradients.
            let start = machine::process_cpu_seconds();
            engine.step(iteration, &batch, (1e-3, 0.1))?;
            taken.push(machine::process_cpu_seconds() - start);
        }
        Ok(taken.split_off(2))
    };
    let of_all = threads::run(case.world, of_rank).map_err(|(rank, e)| format!("rank {rank}: {e}"));
    median(of_all.expect("the steps are sound").swap_remove(0))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let choice = Choice::of_process(None, None).expect("MS_ISA names an instruction set of this machine");
    let cpu = Cpu::with_arithmetic(1, choice.isa, choice.arithmetic).expect("threads can be had");
    println!("{}, {}\n", choice.isa, choice.arithmetic);
    for (name, what, cases) in axes() {
        if !asked.is_empty() && !asked.iter().any(|a| a == name) {
            continue;
        }
        let before = machine::measure(&cpu, true);
        let (parameters, seconds) = times(&cases, choice);
        let after = machine::measure(&cpu, true);
        let peak = (before.bf16_gflops + after.bf16_gflops) / 2.0 * 1e9;
        let bandwidth = (before.rw_gbps + after.rw_gbps) / 2.0 * 1e9;
        let formula: Vec<f64> = cases
            .iter()
            .zip(parameters)
            .map(|(case, n)| case.work(n))
            .map(|(flops, bytes)| flops / peak + bytes / bandwidth)
            .collect();
        println!("| {what} | seconds | time, relative | formula, relative | quotient | of the limit |");
        println!("|---|---|---|---|---|---|");
        for ((case, s), f) in cases.iter().zip(&seconds).zip(&formula) {
            let (time, work) = (s / seconds[0], f / formula[0]);
            let share = f / s * 100.0;
            println!(
                "| {} | {s:.3} | {time:.2} | {work:.2} | {:.2} | {share:.0} % |",
                case.value,
                time / work
            );
        }
        match exponent(&formula, &seconds) {
            Some(e) => println!("\n{name}: time ~ formula^{e:.2}\n"),
            None => println!("\n{name}: the work is the same\n"),
        }
    }
}

/// Parameters and seconds of each case.
fn times(cases: &[Case], choice: Choice) -> (Vec<usize>, Vec<f64>) {
    if cases.iter().any(|case| case.world > 1) {
        let parameters = cases.iter().map(|case| alone(case, choice).0).collect();
        return (parameters, cases.iter().map(|case| together(case, choice)).collect());
    }
    let mut steps: Vec<_> = cases.iter().map(|case| alone(case, choice)).collect();
    let mut taken = vec![Vec::new(); cases.len()];
    for round in 0..2 + ROUNDS {
        for (i, (_, step)) in steps.iter_mut().enumerate() {
            let seconds = step();
            if round >= 2 {
                taken[i].push(seconds);
            }
        }
    }
    (steps.iter().map(|(n, _)| *n).collect(), taken.into_iter().map(median).collect())
}

/// The slope of a line through the logarithms, by least squares; `None` where the formula does not grow.
fn exponent(formula: &[f64], seconds: &[f64]) -> Option<f64> {
    let mean = |of: &[f64]| of.iter().map(|v| v.ln()).sum::<f64>() / of.len() as f64;
    let (x, y) = (mean(formula), mean(seconds));
    let with = |a: &[f64], b: &[f64], c: f64, d: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a.ln() - c) * (b.ln() - d)).sum()
    };
    let spread = with(formula, formula, x, x);
    (spread > 1e-9).then(|| with(formula, seconds, x, y) / spread)
}
