//! Multiply-adds from registers only.

use std::hint::black_box;

use super::thread_cpu_seconds;
use crate::{Cpu, Isa};

/// Operations and processor seconds of one run of a register loop.
type Loop = fn(rounds: usize) -> f64;

/// Best of several runs on each thread, summed over threads: (f32, bf16) in GFLOP/s.
pub(super) fn measure(cpu: &Cpu, quick: bool) -> (f64, f64) {
    let f32_rate = rate(cpu, quick, f32_loop(cpu.isa()));
    let bf16_rate = bf16_loop(cpu.isa()).map_or(f32_rate, |run| rate(cpu, quick, run));
    (f32_rate, bf16_rate)
}

fn rate(cpu: &Cpu, quick: bool, run: Loop) -> f64 {
    let target = if quick { 0.002 } else { 0.02 };
    let one = || {
        let mut rounds = 1000;
        let mut best = 0.0f64;
        let mut runs = 0;
        while runs < 5 {
            let start = thread_cpu_seconds();
            let operations = run(black_box(rounds));
            let seconds = thread_cpu_seconds() - start;
            if seconds < target {
                rounds *= 2;
                continue;
            }
            best = best.max(operations / seconds / 1e9);
            runs += 1;
        }
        best
    };
    let rates: Vec<std::sync::Mutex<f64>> = (0..cpu.threads()).map(|_| std::sync::Mutex::new(0.0)).collect();
    cpu.for_each_unit(cpu.threads(), |u| {
        *rates[u].lock().expect("no holder panics") = one();
    });
    rates.iter().map(|r| *r.lock().expect("no holder panics")).sum()
}

fn f32_loop(isa: Isa) -> Loop {
    #[cfg(target_arch = "x86_64")]
    match isa {
        Isa::Portable => portable,
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        Isa::Avx2 => |rounds| unsafe { x86::avx2(rounds) },
        // SAFETY: as above.
        Isa::Avx512 | Isa::Avx512Bf16 => |rounds| unsafe { x86::avx512(rounds) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        portable
    }
}

fn bf16_loop(isa: Isa) -> Option<Loop> {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Bf16 {
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        return Some(|rounds| unsafe { x86::avx512bf16(rounds) });
    }
    let _ = isa;
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
