//! Reading, updating and copying blocks larger than any cache.

use std::hint::black_box;
use std::time::Instant;

use super::thread_cpu_seconds;
use crate::Cpu;
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::memory::Block;

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

/// Two blocks larger than the caches.
#[derive(Debug)]
pub(super) struct Blocks {
    from: Block,
    to: Block,
}

impl Blocks {
    pub(super) fn new(bytes: usize) -> Self {
        Self { from: Block::new(bytes), to: Block::new(bytes) }
    }

    pub(super) fn read(&self, cpu: &Cpu) -> f64 {
        let source: &[u64] = bytemuck::cast_slice(self.from.bytes());
        rate(cpu, source.len(), 8, &|at| {
            black_box(read(cpu.isa(), &source[at..][..UNIT]));
        })
    }

    pub(super) fn read_write(&mut self, cpu: &Cpu) -> f64 {
        let target: &mut [u64] = bytemuck::cast_slice_mut(self.from.bytes_mut());
        let (words, target) = (target.len(), Disjoint::new(target));
        // SAFETY: a unit takes its own words.
        rate(cpu, words, 16, &|at| update(cpu.isa(), unsafe { target.part(at, UNIT) }))
    }

    pub(super) fn copy(&mut self, cpu: &Cpu) -> f64 {
        let source: &[u64] = bytemuck::cast_slice(self.from.bytes());
        let target = Disjoint::new(bytemuck::cast_slice_mut::<u8, u64>(self.to.bytes_mut()));
        rate(cpu, source.len(), 16, &|at| {
            // SAFETY: a unit takes its own words.
            let part = unsafe { target.part(at, UNIT) };
            part.copy_from_slice(&source[at..][..UNIT]);
        })
    }
}

/// GB/s of `work` on each unit of `words` words, `moved` bytes per word.
fn rate(cpu: &Cpu, words: usize, moved: usize, work: &(dyn Fn(usize) + Sync)) -> f64 {
    let (wall, thread) = (Instant::now(), thread_cpu_seconds());
    cpu.for_each_unit(words / UNIT, |u| work(u * UNIT));
    // Processor time is steadier, but says nothing of threads that wait for one memory.
    let seconds =
        if cpu.threads() == 1 { thread_cpu_seconds() - thread } else { wall.elapsed().as_secs_f64() };
    (words * moved) as f64 / seconds / 1e9
}
