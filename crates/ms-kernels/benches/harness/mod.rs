//! Shared by the benchmarks: data, timing by processor time, one line per case.

use ms_kernels::choice::Choice;
use ms_kernels::machine::{Gauge, measure, process_cpu_seconds};
use ms_kernels::memory::Block;
use ms_kernels::{Cpu, Element};

/// What a case is measured against.
#[derive(Clone, Copy)]
pub(crate) enum Peak {
    /// Multiply-adds of f32 operands, GFLOP/s.
    F32,
    /// Multiply-adds of bf16 operands, GFLOP/s.
    Bf16,
    /// Reading, GB/s.
    Read,
    /// Updating in place, GB/s.
    ReadWrite,
    /// Copying, GB/s.
    Copy,
}

/// Options of every benchmark: `--json`, `--threads N`, `--quick`, and words that a case's name must contain.
pub(crate) struct Bench {
    pub(crate) cpu: Cpu,
    gauge: Gauge,
    json: bool,
    quick: bool,
    filters: Vec<String>,
    shares: Vec<f64>,
}

impl Bench {
    /// Reads the command line and measures the machine.
    pub(crate) fn from_args() -> Self {
        let (mut json, mut quick, mut threads, mut asked, mut filters) = (false, false, 1, None, Vec::new());
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => json = true,
                "--quick" => quick = true,
                "--bench" => {} // cargo adds it
                "--threads" => {
                    threads = args.next().and_then(|n| n.parse().ok()).expect("--threads takes a number");
                }
                "--arithmetic" => {
                    asked = Some(
                        args.next()
                            .and_then(|n| n.parse().ok())
                            .expect("--arithmetic takes pair, tile32 or bfdot"),
                    );
                }
                word => filters.push(word.to_owned()),
            }
        }
        let choice =
            Choice::of_process(asked, None).expect("MS_ISA names an instruction set of this processor");
        let cpu =
            Cpu::with_arithmetic(threads, choice.isa, choice.arithmetic).expect("threads can be started");
        if !json {
            let p = measure(&cpu, true);
            println!(
                "{}, {}, {threads} threads: f32 {:.1}, bf16 {:.1} GFLOP/s; read {:.1}, read+write {:.1}, copy {:.1} GB/s",
                p.isa, p.arithmetic, p.f32_gflops, p.bf16_gflops, p.read_gbps, p.rw_gbps, p.copy_gbps
            );
        }
        let gauge = Gauge::new(&cpu, true);
        Self { cpu, gauge, json, quick, filters, shares: Vec::new() }
    }

    /// Whether the command line asks for this case.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filters.iter().all(|f| name.contains(f.as_str()))
    }

    /// Times `work`, which does `amount` GFLOP or GB, in turns with the peak, and prints rate and share: the median
    /// over rounds of rate / peak of the same round, by processor time per thread.
    pub(crate) fn case(&mut self, name: &str, peak: Peak, amount: f64, mut work: impl FnMut()) {
        work();
        let (least, rounds) = if self.quick { (0.002, 5) } else { (0.02, 15) };
        let mut calls = 1u32;
        let mut taken = Vec::new();
        while taken.len() < rounds {
            let start = process_cpu_seconds();
            for _ in 0..calls {
                work();
            }
            let seconds = process_cpu_seconds() - start;
            if seconds < least {
                calls *= 2;
                continue;
            }
            let rate = amount * f64::from(calls) / seconds * self.cpu.threads() as f64;
            let peak = match peak {
                Peak::F32 => self.gauge.f32_gflops(),
                Peak::Bf16 => self.gauge.bf16_gflops(),
                Peak::Read => self.gauge.read_gbps(),
                Peak::ReadWrite => self.gauge.rw_gbps(),
                Peak::Copy => self.gauge.copy_gbps(),
            };
            taken.push((rate / peak, rate, peak));
        }
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (share, rate, peak_rate) = taken[rounds / 2];
        let best = taken[rounds - 1].0;
        let fastest = taken.iter().map(|t| t.1).fold(0.0, f64::max);
        self.shares.push(share);
        let unit = if matches!(peak, Peak::F32 | Peak::Bf16) { "GFLOP/s" } else { "GB/s" };
        if self.json {
            let line = serde_json::json!({
                "case": name, "isa": self.cpu.isa().to_string(),
                "arithmetic": self.cpu.arithmetic().to_string(), "threads": self.cpu.threads(), "unit": unit,
                "rate": rate, "peak": peak_rate, "share": share, "best_share": best, "best_rate": fastest,
            });
            println!("{line}");
        } else {
            println!("{name:44} {rate:8.1} {unit:7} {:5.1} %  (best {:5.1} %)", share * 100.0, best * 100.0);
        }
    }

    /// Prints the median share of the cases since the last call.
    pub(crate) fn median(&mut self, what: &str) {
        self.shares.sort_by(f64::total_cmp);
        if let (false, Some(share)) = (self.json, self.shares.get(self.shares.len() / 2)) {
            println!("{what}: median {:.1} %\n", share * 100.0);
        }
        self.shares.clear();
    }
}

/// Numbers of roughly normal distribution with variance 1 from a fixed seed.
pub(crate) fn random<E: Element>(len: usize, seed: u64) -> Vec<E> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| E::from_f32((uniform() + uniform() + uniform()) * 2.0)).collect()
}

/// A copy in memory as a training step has it.
pub(crate) fn on_huge_pages<E: Element>(data: &[E]) -> Block {
    let mut block = Block::new(size_of_val(data));
    block.bytes_mut().copy_from_slice(bytemuck::cast_slice(data));
    block
}
