//! Peak rates of this machine, and processor time: the yardstick of benchmarks.

mod bandwidth;
mod flops;

use crate::{Arithmetic, Cpu, Isa};

/// Rates that a perfect kernel would reach on a [`Cpu`], all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Instruction set that was measured.
    pub isa: Isa,
    /// Order of sums of bf16 products that was measured.
    pub arithmetic: Arithmetic,
    /// Threads that ran at once.
    pub threads: usize,
    /// f32 multiply-adds from registers, two operations each, in GFLOP/s.
    pub f32_gflops: f64,
    /// The same for bf16 operands: the dot or the tile instruction where products use it, otherwise equal to
    /// `f32_gflops`, for operands are then widened.
    pub bf16_gflops: f64,
    /// Reading memory, in GB/s.
    pub read_gbps: f64,
    /// Reading and writing back in place, bytes read plus bytes written, in GB/s.
    pub rw_gbps: f64,
    /// Copying from one place to another, bytes read plus bytes written, in GB/s.
    pub copy_gbps: f64,
}

/// Measures the peaks of `cpu` by processor time; about half a second, with `quick` a tenth of that.
///
/// Bandwidth is measured over blocks on huge pages that are larger than the caches (256 MiB, with `quick` 64).
pub fn measure(cpu: &Cpu, quick: bool) -> Peaks {
    let mut gauge = Gauge::new(cpu, quick);
    let best = |mut one: Box<dyn FnMut() -> f64 + '_>| (0..5).map(|_| one()).fold(0.0, f64::max);
    let f32_gflops = best(Box::new(|| gauge.f32_gflops()));
    let bf16_gflops = match flops::bf16_loop(cpu) {
        Some(_) => best(Box::new(|| gauge.bf16_gflops())),
        None => f32_gflops,
    };
    Peaks {
        isa: cpu.isa(),
        arithmetic: cpu.arithmetic(),
        threads: cpu.threads(),
        f32_gflops,
        bf16_gflops,
        read_gbps: best(Box::new(|| gauge.read_gbps())),
        rw_gbps: best(Box::new(|| gauge.rw_gbps())),
        copy_gbps: best(Box::new(|| gauge.copy_gbps())),
    }
}

/// Measures one rate at a time, so that a benchmark can alternate between a kernel and the machine's peak: on a shared host
/// both vary from second to second.
#[derive(Debug)]
pub struct Gauge {
    cpu: Cpu,
    seconds: f64,
    blocks: Option<bandwidth::Blocks>,
    bytes: usize,
}

impl Gauge {
    /// A gauge for `cpu`; a rate takes some 20 ms, with `quick` 2.
    pub fn new(cpu: &Cpu, quick: bool) -> Self {
        let (seconds, bytes) = if quick { (0.002, 64 << 20) } else { (0.02, 256 << 20) };
        Self { cpu: cpu.clone(), seconds, blocks: None, bytes }
    }

    /// f32 multiply-adds from registers, all threads together, in GFLOP/s.
    pub fn f32_gflops(&mut self) -> f64 {
        flops::rate(&self.cpu, self.seconds, flops::f32_loop(self.cpu.isa()))
    }

    /// bf16 multiply-adds from registers as [`Peaks::bf16_gflops`] defines them.
    pub fn bf16_gflops(&mut self) -> f64 {
        let run = flops::bf16_loop(&self.cpu).unwrap_or_else(|| flops::f32_loop(self.cpu.isa()));
        flops::rate(&self.cpu, self.seconds, run)
    }

    /// Reading a block larger than the caches, in GB/s.
    pub fn read_gbps(&mut self) -> f64 {
        self.blocks.get_or_insert_with(|| bandwidth::Blocks::new(self.bytes)).read(&self.cpu)
    }

    /// Updating a block in place, bytes read plus bytes written, in GB/s.
    pub fn rw_gbps(&mut self) -> f64 {
        self.blocks.get_or_insert_with(|| bandwidth::Blocks::new(self.bytes)).read_write(&self.cpu)
    }

    /// Copying a block, bytes read plus bytes written, in GB/s.
    pub fn copy_gbps(&mut self) -> f64 {
        self.blocks.get_or_insert_with(|| bandwidth::Blocks::new(self.bytes)).copy(&self.cpu)
    }
}

/// Processor seconds that the calling thread has used.
pub fn thread_cpu_seconds() -> f64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor seconds that all threads of this process have used.
pub fn process_cpu_seconds() -> f64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec to the address of one.
    let status = unsafe { libc::clock_gettime(id, &raw mut time) };
    assert_eq!(status, 0, "processor-time clocks exist on every supported system");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    // Which rate is higher, and how high they are, are facts of a machine: a test asserts none of them.
    #[test]
    fn peaks_are_numbers_above_zero_on_every_instruction_set() {
        for isa in Isa::all_available() {
            let peaks = measure(&Cpu::new(1, isa).unwrap(), true);
            let rates =
                [peaks.f32_gflops, peaks.bf16_gflops, peaks.read_gbps, peaks.rw_gbps, peaks.copy_gbps];
            assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{peaks:?}");
        }
    }

    #[test]
    fn processor_time_advances_with_work() {
        let (thread, process) = (thread_cpu_seconds(), process_cpu_seconds());
        let mut x = 1u64;
        while thread_cpu_seconds() <= thread || process_cpu_seconds() <= process {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }
}
