//! The sums of few rows of bf16 with AVX-512: a cache line of the weight falls into its even and its odd terms by a shift and
//! a mask, sixteen chains each.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::body::{CHAINS, LANES};
use crate::matmul::kernel::avx512::first32;
use crate::rms_norm::lane_sum;

/// Bytes of `a` that are used again and again: they stay in the first-level cache.
const NEAR: usize = 16 * 1024;

/// Rows of the weight whose chains wait at a time.
const WAITING: usize = 16;

/// Chains of `ROWS` rows of `a` with `COLS` of the weight: the even ones, then the odd ones.
type Chains<const ROWS: usize, const COLS: usize> = [[[__m512; 2]; ROWS]; COLS];

/// Adds the terms of `steps` to the chains, in the order of [`super::body`]; step `n` of row `i` of `a` is
/// `a[i · stride + n]`.
///
/// # Safety
/// Rows of `b` must have `k` elements, `a` its steps, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_terms<const ROWS: usize, const COLS: usize>(
    mut acc: Chains<ROWS, COLS>,
    a: (&[[f32; CHAINS]], usize),
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
) -> Chains<ROWS, COLS> {
    let (a, stride) = (a.0.as_ptr(), a.1);
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for n in steps {
        let mask = first32(k - n * CHAINS);
        for c in 0..COLS {
            // SAFETY: the mask holds existing elements; `a` has the steps of its rows.
            unsafe {
                let pairs = _mm512_maskz_loadu_epi16(mask, b[c].wrapping_add(n * CHAINS).cast());
                let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
                let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
                for i in 0..ROWS {
                    let a: *const f32 = a.add(i * stride + n).cast();
                    acc[c][i][0] = _mm512_fmadd_ps(_mm512_loadu_ps(a), even, acc[c][i][0]);
                    acc[c][i][1] = _mm512_fmadd_ps(_mm512_loadu_ps(a.add(LANES)), odd, acc[c][i][1]);
                }
            }
        }
    }
    acc
}

/// The sums of the chains of one column.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined<const ROWS: usize>(chains: &[[__m512; 2]; ROWS]) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for i in 0..ROWS {
        let mut lanes = [0f32; LANES];
        // SAFETY: room for sixteen lanes.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), _mm512_add_ps(chains[i][0], chains[i][1])) };
        sums[i] = lane_sum(lanes);
    }
    sums
}

/// [`super::body::rows`] for `ROWS` rows of `a`, `COLS` rows of the weight at a time. Rows of `a` that the first-level cache
/// does not hold are taken in parts; chains wait on the stack meanwhile.
///
/// # Safety
/// As for [`any_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn rows<const ROWS: usize, const COLS: usize>(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    let row = |j: usize| b[j * stride..][..k].as_ptr();
    let sums = sums.as_chunks_mut::<ROWS>().0;
    let steps = a.len() / ROWS;
    let part = (NEAR / (ROWS * size_of::<[f32; CHAINS]>())).max(1);
    let zero = [[_mm512_setzero_ps(); 2]; ROWS];
    let whole = sums.len() / COLS * COLS;
    let a = (a, steps);
    if ROWS == 1 || steps <= part {
        for j in (0..whole).step_by(COLS) {
            // SAFETY: each row was cut to `k` elements.
            let acc = unsafe { add_terms([zero; COLS], a, 0..steps, std::array::from_fn(|c| row(j + c)), k) };
            for c in 0..COLS {
                sums[j + c] = joined(&acc[c]);
            }
        }
        for j in whole..sums.len() {
            // SAFETY: as above.
            let [acc] = unsafe { add_terms([zero], a, 0..steps, [row(j)], k) };
            sums[j] = joined(&acc);
        }
        return;
    }
    for (w, sums) in sums.chunks_mut(WAITING).enumerate() {
        let at = w * WAITING;
        let mut waiting = [zero; WAITING];
        for first in (0..steps).step_by(part) {
            let range = first..steps.min(first + part);
            let (groups, rest) = waiting[..sums.len()].as_chunks_mut::<COLS>();
            let done = at + groups.len() * COLS;
            for (g, acc) in groups.iter_mut().enumerate() {
                let b = std::array::from_fn(|c| row(at + g * COLS + c));
                // SAFETY: as above.
                *acc = unsafe { add_terms(*acc, a, range.clone(), b, k) };
            }
            for (j, acc) in rest.iter_mut().enumerate() {
                // SAFETY: as above.
                [*acc] = unsafe { add_terms([*acc], a, range.clone(), [row(done + j)], k) };
            }
        }
        for (sums, acc) in sums.iter_mut().zip(&waiting) {
            *sums = joined(acc);
        }
    }
}

/// The sums of `count` rows of `a` with rows of the weight.
///
/// # Safety
/// The instruction set must be there.
pub(super) unsafe fn any_rows(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    // SAFETY: the caller's promise. Sixteen registers of sums at most.
    unsafe {
        match count {
            1 => rows::<1, 4>(sums, a, b, stride, k),
            2 => rows::<2, 4>(sums, a, b, stride, k),
            3 => rows::<3, 2>(sums, a, b, stride, k),
            _ => rows::<4, 2>(sums, a, b, stride, k),
        }
    }
}
