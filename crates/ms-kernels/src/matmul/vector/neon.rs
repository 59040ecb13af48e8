//! Products with few rows of bf16, with NEON.
//!
//! A line of the weight is split into its even and odd terms by a shift and a mask. Sixteen lanes and two chains are eight
//! registers a row of `a`: with one or two rows a row of the weight is read once, with more once for each quarter of the lanes,
//! after the first time from the first-level cache.

use std::arch::aarch64::*;

use half::bf16;

use super::body::{CHAINS, LANES};
use crate::prefetch::fetch_far;
use crate::rms_norm::lane_sum;

/// Lanes of a register.
const VECTOR: usize = 4;
/// Registers of the lanes.
const QUARTERS: usize = LANES / VECTOR;
/// Elements of the weight that are asked for ahead of their use.
const AHEAD: usize = 4096;

/// Sums of `ROWS` rows of `a` and one of the weight, in the order of [`super::body`], `TAKEN` quarters of the lanes at a time.
///
/// # Safety
/// `a` must have `ROWS` lines for each line of `b`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dots<const ROWS: usize, const TAKEN: usize>(a: &[[f32; CHAINS]], b: &[bf16]) -> [f32; ROWS] {
    let (whole, rest) = b.as_chunks::<CHAINS>();
    let mut last = [bf16::ZERO; CHAINS];
    last[..rest.len()].copy_from_slice(rest);
    let steps = whole.len() + usize::from(!rest.is_empty());
    let upper = vdupq_n_u32(0xffff_0000);
    let mut held = [[[0f32; LANES]; 2]; ROWS];
    for first in (0..QUARTERS).step_by(TAKEN) {
        let mut acc = [[[vdupq_n_f32(0.0); TAKEN]; ROWS]; 2];
        let mut step = |chain: usize, n: usize| {
            let b = whole.get(n).unwrap_or(&last).as_ptr();
            if first == 0 {
                fetch_far(b.wrapping_add(AHEAD));
            }
            for q in 0..TAKEN {
                let lane = (first + q) * VECTOR;
                // SAFETY: a line has the lanes' pairs; lines of `a` are the caller's promise.
                unsafe {
                    let pairs = vld1q_u32(b.add(2 * lane).cast());
                    let even = vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs));
                    let odd = vreinterpretq_f32_u32(vandq_u32(pairs, upper));
                    for i in 0..ROWS {
                        let a = a.as_ptr().add(n * ROWS + i).cast::<f32>().add(lane);
                        let sum = vfmaq_f32(acc[chain][i][q], vld1q_f32(a.add(LANES)), odd);
                        acc[chain][i][q] = vfmaq_f32(sum, vld1q_f32(a), even);
                    }
                }
            }
        };
        for n in (0..steps - steps % 2).step_by(2) {
            step(0, n);
            step(1, n + 1);
        }
        if steps % 2 == 1 {
            step(0, steps - 1);
        }
        for i in 0..ROWS {
            for chain in 0..2 {
                for q in 0..TAKEN {
                    let to = &mut held[i][chain][(first + q) * VECTOR..][..VECTOR];
                    // SAFETY: there is room for a register.
                    unsafe { vst1q_f32(to.as_mut_ptr(), acc[chain][i][q]) };
                }
            }
        }
    }
    held.map(|[even, odd]| lane_sum(std::array::from_fn(|l| even[l] + odd[l])))
}

/// # Safety
/// As for [`any_rows`], with `ROWS` rows.
#[target_feature(enable = "neon")]
unsafe fn rows<const ROWS: usize, const TAKEN: usize>(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    for (j, sums) in sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *sums = unsafe { dots::<ROWS, TAKEN>(a, &b[j * stride..][..k]) };
    }
}

/// `sums[j, i] = a[i] · b[j]` for `count` rows of `a`, 1 to 8, made ready line by line; rows of the weight are `stride` apart.
///
/// # Safety
/// `a` must have `count` lines for each line of `k` terms.
#[target_feature(enable = "neon")]
pub(super) unsafe fn any_rows(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match count {
            1 => rows::<1, 4>(sums, a, b, stride, k),
            2 => rows::<2, 4>(sums, a, b, stride, k),
            3 => rows::<3, 1>(sums, a, b, stride, k),
            4 => rows::<4, 1>(sums, a, b, stride, k),
            5 => rows::<5, 1>(sums, a, b, stride, k),
            6 => rows::<6, 1>(sums, a, b, stride, k),
            7 => rows::<7, 1>(sums, a, b, stride, k),
            _ => rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}
