//! Reading, updating and copying blocks that no cache holds.

use std::hint::black_box;
use std::time::Instant;

use super::thread_cpu_seconds;
use crate::Cpu;
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::memory::Block;

/// Rates in GB/s.
pub(super) struct Bandwidth {
    pub(super) read: f64,
    pub(super) read_write: f64,
    pub(super) copy: f64,
}

mod body {
    const LANES: usize = 128;

    /// Sum of 64-bit words: reads and does little else.
    #[inline(always)]
    pub(super) fn read(x: &[u64]) -> u64 {
        let mut acc = [0u64; LANES];
        let (blocks, _) = x.as_chunks::<LANES>();
        for b in blocks {
            for l in 0..LANES {
                acc[l] ^= b[l];
            }
        }
        acc.iter().fold(0, |a, b| a ^ b)
    }

    #[inline(always)]
    pub(super) fn update(x: &mut [u64]) {
        for v in x {
            *v ^= 1;
        }
    }
}

instances! {
    fn read(x: &[u64]) -> u64 = body::read;
    fn update(x: &mut [u64]) = body::update;
}

/// Words of a unit.
const UNIT: usize = 1 << 17;

pub(super) fn measure(cpu: &Cpu, quick: bool) -> Bandwidth {
    let bytes = if quick { 64 << 20 } else { 256 << 20 };
    let mut from = Block::new(bytes);
    let mut to = Block::new(bytes);
    let words = bytes / 8;
    let isa = cpu.isa();
    let run = |bytes_moved: usize, work: &(dyn Fn(usize) + Sync)| -> f64 {
        let mut best = 0.0f64;
        for _ in 0..3 {
            let (wall, thread) = (Instant::now(), thread_cpu_seconds());
            cpu.for_each_unit(words / UNIT, work);
            // Processor time is steadier, but says nothing of threads that wait for one memory.
            let seconds =
                if cpu.threads() == 1 { thread_cpu_seconds() - thread } else { wall.elapsed().as_secs_f64() };
            best = best.max(bytes_moved as f64 / seconds / 1e9);
        }
        best
    };
    let source: &[u64] = bytemuck::cast_slice(from.bytes());
    let read_rate = run(bytes, &|u| {
        black_box(read(isa, &source[u * UNIT..][..UNIT]));
    });
    let target = Disjoint::new(bytemuck::cast_slice_mut::<u8, u64>(to.bytes_mut()));
    let copy = run(2 * bytes, &|u| {
        // SAFETY: a unit takes its own words.
        unsafe { target.part(u * UNIT, UNIT) }.copy_from_slice(&source[u * UNIT..][..UNIT]);
    });
    let target = Disjoint::new(bytemuck::cast_slice_mut::<u8, u64>(from.bytes_mut()));
    let read_write = run(2 * bytes, &|u| {
        // SAFETY: a unit takes its own words.
        update(isa, unsafe { target.part(u * UNIT, UNIT) });
    });
    Bandwidth { read: read_rate, read_write, copy }
}
