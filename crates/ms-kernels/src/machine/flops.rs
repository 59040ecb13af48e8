//! Multiply-adds from registers only.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::thread_cpu_seconds;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::Arithmetic;
use crate::{Cpu, Isa};

/// A register loop: runs some rounds and says how many operations that was.
pub(super) type Loop = fn(rounds: usize) -> f64;

/// GFLOP/s of one run of about `least` seconds on each thread, summed over threads.
pub(super) fn rate(cpu: &Cpu, least: f64, run: Loop) -> f64 {
    let one = || {
        let mut rounds = 1000;
        loop {
            let start = thread_cpu_seconds();
            let operations = run(black_box(rounds));
            let seconds = thread_cpu_seconds() - start;
            if seconds >= least {
                return operations / seconds / 1e9;
            }
            rounds *= 2;
        }
    };
    let rates: Vec<AtomicU64> = (0..cpu.threads()).map(|_| AtomicU64::new(0)).collect();
    cpu.for_each_unit(cpu.threads(), |u| rates[u].store(one().to_bits(), Ordering::Relaxed));
    rates.into_iter().map(|r| f64::from_bits(r.into_inner())).sum()
}

pub(super) fn f32_loop(isa: Isa) -> Loop {
    #[cfg(target_arch = "x86_64")]
    match isa {
        Isa::Portable | Isa::Neon | Isa::NeonBf16 => portable,
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        Isa::Avx2 => |rounds| unsafe { x86::avx2(rounds) },
        Isa::Avx512 | Isa::Avx512Convert | Isa::Avx512Bf16 | Isa::Amx => {
            // SAFETY: as above.
            |rounds| unsafe { x86::avx512(rounds) }
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: all of its processors have the instructions.
        if isa == Isa::Portable { portable } else { |rounds| unsafe { aarch64::neon(rounds) } }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = isa;
        portable
    }
}

/// The loop of the instruction that bf16 products of `cpu` run on, if it is not that of f32.
pub(super) fn bf16_loop(cpu: &Cpu) -> Option<Loop> {
    #[cfg(target_arch = "x86_64")]
    match (cpu.isa(), cpu.arithmetic()) {
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        (Isa::Avx512Bf16, Arithmetic::Pair) => return Some(|rounds| unsafe { x86::avx512bf16(rounds) }),
        (Isa::Amx, Arithmetic::Tile32) => {
            // SAFETY: as above.
            return Some(|rounds| unsafe { crate::matmul::kernel::tile32::amx::tile_loop(rounds) });
        }
        _ => {}
    }
    #[cfg(target_arch = "aarch64")]
    if (cpu.isa(), cpu.arithmetic()) == (Isa::NeonBf16, Arithmetic::Bfdot) {
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        return Some(|rounds| unsafe { crate::matmul::kernel::bfdot::neon::register_loop(rounds) });
    }
    let _ = cpu;
    None
}

fn portable(rounds: usize) -> f64 {
    const CHAINS: usize = 16;
    let (a, b) = (black_box(0.999_f32), black_box(1e-3f32));
    let mut acc = [1.0f32; CHAINS];
    for _ in 0..rounds {
        for v in &mut acc {
            *v = v.mul_add(a, b);
        }
    }
    black_box(acc);
    (rounds * CHAINS * 2) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    const CHAINS: usize = 12;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(rounds: usize) -> f64 {
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
        let mut acc = [_mm256_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for v in &mut acc {
                *v = _mm256_fmadd_ps(*v, a, b);
            }
        }
        black_box(acc);
        (rounds * CHAINS * 8 * 2) as f64
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(rounds: usize) -> f64 {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
        let mut acc = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for v in &mut acc {
                *v = _mm512_fmadd_ps(*v, a, b);
            }
        }
        black_box(acc);
        (rounds * CHAINS * 16 * 2) as f64
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn avx512bf16(rounds: usize) -> f64 {
        // SAFETY: both types are 64 bytes of plain data.
        let as_bf16 = |v: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
        // bf16 pairs of about 1e-3.
        let a = as_bf16(_mm512_set1_epi32(black_box(0x3a83_3a83)));
        let mut acc = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for v in &mut acc {
                *v = _mm512_dpbf16_ps(*v, a, a);
            }
        }
        black_box(acc);
        (rounds * CHAINS * 32 * 2) as f64
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::aarch64::*;
    use std::hint::black_box;

    const CHAINS: usize = 24;

    #[target_feature(enable = "neon")]
    pub(super) fn neon(rounds: usize) -> f64 {
        let (a, b) = (vdupq_n_f32(black_box(0.999)), vdupq_n_f32(black_box(1e-3)));
        let mut acc = [vdupq_n_f32(1.0); CHAINS];
        for _ in 0..rounds {
            for v in &mut acc {
                *v = vfmaq_f32(b, *v, a);
            }
        }
        black_box(acc);
        (rounds * CHAINS * 4 * 2) as f64
    }
}
