//! The sums of few rows of bf16 with AVX-512.
//!
//! With the dot instruction, a load and a multiplication for a cache line of the weight and one row of `a`, one row of the
//! weight after the other: so few instructions let the processor ask for many lines at once, and it reads nearly as fast as a
//! loop that only reads. From three rows of `a` on there are too many for that; then two rows of the weight at once (one from
//! five rows of `a` on, for want of registers), with prefetches of those after them, are faster. Without the instruction a line
//! falls into its even and its odd terms by a shift and a mask, and four rows of the weight at once, which share what is loaded
//! of `a`, are faster than one.

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

/// Chains of `ROWS` rows of `a` with `COLS` of the weight: of even steps, then of odd ones.
type Chains<const ROWS: usize, const COLS: usize> = [[[__m512; 2]; ROWS]; COLS];

/// Adds the terms of step `n`, whose chains are `PARITY`.
///
/// # Safety
/// As for [`add_terms`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_step<const ROWS: usize, const COLS: usize, const PARITY: usize>(
    acc: &mut Chains<ROWS, COLS>,
    (a, stride): (*const [f32; CHAINS], usize),
    n: usize,
    b: &[*const bf16; COLS],
    k: usize,
    ahead: usize,
) {
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let mask = first32(k - n * CHAINS);
    for c in 0..COLS {
        // SAFETY: the mask holds existing elements; `a` has the steps of its rows.
        unsafe {
            let at = b[c].wrapping_add(n * CHAINS);
            if ROWS > 2 && ahead > 0 {
                _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(ahead).cast());
            }
            let pairs = _mm512_maskz_loadu_epi16(mask, at.cast());
            let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
            for i in 0..ROWS {
                let a: *const f32 = a.add(i * stride + n).cast();
                let sum = _mm512_fmadd_ps(_mm512_loadu_ps(a.add(LANES)), odd, acc[c][i][PARITY]);
                acc[c][i][PARITY] = _mm512_fmadd_ps(_mm512_loadu_ps(a), even, sum);
            }
        }
    }
}

/// Adds the terms of `steps`, of which the first is even, to the chains, in the order of [`super::body`], and asks for what
/// stands `ahead` elements further; step `n` of row `i` of `a` is `a[i · stride + n]`.
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
    ahead: usize,
) -> Chains<ROWS, COLS> {
    let a = (a.0.as_ptr(), a.1);
    let mut n = steps.start;
    // SAFETY: the caller's promise.
    unsafe {
        while n + 2 <= steps.end {
            add_step::<ROWS, COLS, 0>(&mut acc, a, n, &b, k, ahead);
            add_step::<ROWS, COLS, 1>(&mut acc, a, n + 1, &b, k, ahead);
            n += 2;
        }
        if n < steps.end {
            add_step::<ROWS, COLS, 0>(&mut acc, a, n, &b, k, ahead);
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
    let part = (NEAR / (ROWS * size_of::<[f32; CHAINS]>())).next_multiple_of(2);
    let ahead = AHEAD.div_ceil(stride.max(1)).max(COLS) * stride;
    let zero = [[_mm512_setzero_ps(); 2]; ROWS];
    let whole = sums.len() / COLS * COLS;
    let a = (a, steps);
    if ROWS == 1 || steps <= part {
        for j in (0..whole).step_by(COLS) {
            // SAFETY: each row was cut to `k` elements.
            let acc = unsafe {
                add_terms([zero; COLS], a, 0..steps, std::array::from_fn(|c| row(j + c)), k, ahead)
            };
            for c in 0..COLS {
                sums[j + c] = joined(&acc[c]);
            }
        }
        for j in whole..sums.len() {
            // SAFETY: as above.
            let [acc] = unsafe { add_terms([zero], a, 0..steps, [row(j)], k, ahead) };
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
                *acc = unsafe { add_terms(*acc, a, range.clone(), b, k, ahead) };
            }
            for (j, acc) in rest.iter_mut().enumerate() {
                // SAFETY: as above.
                [*acc] = unsafe { add_terms([*acc], a, range.clone(), [row(done + j)], k, ahead) };
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
/// The instruction set must be there, and `a` must have `count` rows of `k` elements, each a whole number of `CHAINS`.
pub(super) unsafe fn any_rows(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    debug_assert_eq!(a.len(), count * k.div_ceil(CHAINS));
    // SAFETY: the caller's promise. Sixteen registers of sums at most.
    unsafe {
        match count {
            1 => rows::<1, 4>(sums, a, b, stride, k),
            2 => rows::<2, 4>(sums, a, b, stride, k),
            3 => rows::<3, 2>(sums, a, b, stride, k),
            4 => rows::<4, 2>(sums, a, b, stride, k),
            5 => rows::<5, 1>(sums, a, b, stride, k),
            6 => rows::<6, 1>(sums, a, b, stride, k),
            7 => rows::<7, 1>(sums, a, b, stride, k),
            _ => rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}

/// Elements of the weight that are asked for ahead of their use where several rows of `a` meet them.
const AHEAD: usize = 8192;

/// Adds the terms of `steps`, of which the first is even; asks for what stands `ahead` elements further, unless that is 0.
///
/// # Safety
/// As for [`add_terms`], with rows of `a` in bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_dots<const ROWS: usize, const COLS: usize>(
    mut acc: Chains<ROWS, COLS>,
    a: (&[[bf16; CHAINS]], usize),
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    ahead: usize,
) -> Chains<ROWS, COLS> {
    let (a, stride) = (a.0.as_ptr(), a.1);
    let whole = steps.end.min(k / CHAINS);
    let mut n = steps.start;
    // SAFETY: both types are 64 bytes of plain data; below `whole` a step has all its terms, and the mask holds those of the
    // last one; `a` has the steps of its rows. A prefetch may point anywhere.
    unsafe {
        let dots = |sum: __m512, i: usize, n: usize, b: __m512i| {
            let a = _mm512_loadu_si512(a.add(i * stride + n).cast());
            let pairs = std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]);
            _mm512_dpbf16_ps(sum, pairs[0], pairs[1])
        };
        while n + 2 <= whole {
            for parity in 0..2 {
                for c in 0..COLS {
                    let at = b[c].wrapping_add((n + parity) * CHAINS);
                    if ROWS > 2 && ahead > 0 {
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(ahead).cast());
                    }
                    let b = _mm512_loadu_si512(at.cast());
                    for i in 0..ROWS {
                        acc[c][i][parity] = dots(acc[c][i][parity], i, n + parity, b);
                    }
                }
            }
            n += 2;
        }
        for n in n..steps.end {
            for c in 0..COLS {
                let at = b[c].wrapping_add(n * CHAINS);
                let b = _mm512_maskz_loadu_epi16(first32(k - n * CHAINS), at.cast());
                for i in 0..ROWS {
                    acc[c][i][n % 2] = dots(acc[c][i][n % 2], i, n, b);
                }
            }
        }
    }
    acc
}

/// [`rows`] with the dot instruction.
///
/// # Safety
/// As for [`any_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn dot_rows<const ROWS: usize, const COLS: usize>(
    sums: &mut [f32],
    a: &[[bf16; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    let sums = sums.as_chunks_mut::<ROWS>().0;
    let steps = a.len() / ROWS;
    // Two rows of `a` may fill the first-level cache, for only one line of the weight at a time is beside them.
    let part =
        if ROWS > 2 { (NEAR / (ROWS * size_of::<[bf16; CHAINS]>())).next_multiple_of(2) } else { steps };
    let ahead = AHEAD.div_ceil(stride.max(1)).max(COLS) * stride;
    let zero = [[_mm512_setzero_ps(); 2]; ROWS];
    let a = (a, steps);
    for (w, sums) in sums.chunks_mut(WAITING).enumerate() {
        let row = |j: usize| b[(w * WAITING + j) * stride..][..k].as_ptr();
        let mut waiting = [zero; WAITING];
        for first in (0..steps).step_by(part.max(1)) {
            let range = first..steps.min(first + part);
            let (groups, rest) = waiting[..sums.len()].as_chunks_mut::<COLS>();
            let done = groups.len() * COLS;
            for (g, acc) in groups.iter_mut().enumerate() {
                let b = std::array::from_fn(|c| row(g * COLS + c));
                // SAFETY: each row was cut to `k` elements.
                *acc = unsafe { add_dots(*acc, a, range.clone(), b, k, ahead) };
            }
            for (j, acc) in rest.iter_mut().enumerate() {
                // SAFETY: as above.
                [*acc] = unsafe { add_dots([*acc], a, range.clone(), [row(done + j)], k, ahead) };
            }
        }
        for (sums, acc) in sums.iter_mut().zip(&waiting) {
            *sums = joined(acc);
        }
    }
}

/// [`any_rows`] with the dot instruction and rows of `a` in bf16.
///
/// # Safety
/// The instruction must be there, and `a` must have `count` rows of `k` elements, each a whole number of `CHAINS`.
pub(super) unsafe fn any_dot_rows(
    sums: &mut [f32],
    a: &[[bf16; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    debug_assert_eq!(a.len(), count * k.div_ceil(CHAINS));
    // SAFETY: the caller's promise.
    unsafe {
        match count {
            1 => dot_rows::<1, 1>(sums, a, b, stride, k),
            2 => dot_rows::<2, 1>(sums, a, b, stride, k),
            3 => dot_rows::<3, 2>(sums, a, b, stride, k),
            4 => dot_rows::<4, 2>(sums, a, b, stride, k),
            5 => dot_rows::<5, 1>(sums, a, b, stride, k),
            6 => dot_rows::<6, 1>(sums, a, b, stride, k),
            7 => dot_rows::<7, 1>(sums, a, b, stride, k),
            _ => dot_rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}
