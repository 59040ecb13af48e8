//! Products with few rows of bf16, with AVX-512.
//!
//! With the dot-product instruction and one row of `a`, each cache line of the weight takes a load and a multiplication, one
//! row of the weight after another: with so few instructions the processor requests many lines at once, and it reads as fast
//! as a read-only loop once it is told of the line some fifty ahead. More rows of `a` hide the upcoming lines from it, and
//! their own lines keep the stream predictor busy. Then blocks of rows of the weight are prefetched, one block ahead and in
//! memory order, into the second level. Each line is prefetched twice, because requests are dropped while too many are
//! pending.
//!
//! What remains is the first level: `a` is processed in parts that fit into it, while the chains of a block are kept on the
//! stack. From six rows of `a` on there would be more loads of it than the processor can do; then two rows of the weight
//! share them, the even steps of a part first and then the odd ones, for lack of registers.
//!
//! Without the instruction, a line is split into its even and odd terms by a shift and a mask. One or two rows of `a` go
//! through one row of the weight after another, as with AVX2: four at once, prefetched or not, read at half the rate.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::body::{CHAINS, LANES};
use crate::matmul::kernel::avx512::pack::first32;

/// Bytes of `a` that are used again and again: they stay in the first-level cache.
const NEAR: usize = 16 * 1024;

/// Elements of the weight that are prefetched ahead of one or two rows of `a` where there is no dot instruction.
const FAR: usize = 4096;

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
    a: *const [f32; CHAINS],
    n: usize,
    b: &[*const bf16; COLS],
    k: usize,
    ahead: &mut Ahead,
) {
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let mask = first32(k - n * CHAINS);
    for c in 0..COLS {
        // SAFETY: the mask holds existing elements; `a` has the steps of its rows.
        unsafe {
            let at = b[c].wrapping_add(n * CHAINS);
            let pairs = _mm512_maskz_loadu_epi16(mask, at.cast());
            let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
            for i in 0..ROWS {
                let a: *const f32 = a.add(n * ROWS + i).cast();
                let sum = _mm512_fmadd_ps(_mm512_loadu_ps(a.add(LANES)), odd, acc[c][i][PARITY]);
                acc[c][i][PARITY] = _mm512_fmadd_ps(_mm512_loadu_ps(a), even, sum);
            }
        }
        ahead.next(true);
    }
}

/// Adds the terms of `steps`, the first of which is even, to the chains, in the order of [`super::body`]; step `n` of row `i`
/// of `a` is `a[n · ROWS + i]`. One line is prefetched for each line used.
///
/// # Safety
/// Rows of `b` must have `k` elements, `a` its steps, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_terms<const ROWS: usize, const COLS: usize>(
    mut acc: Chains<ROWS, COLS>,
    a: &[[f32; CHAINS]],
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    ahead: &mut Ahead,
) -> Chains<ROWS, COLS> {
    let a = a.as_ptr();
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

/// [`crate::rms_norm::lane_sum`] of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
pub(crate) fn lane_sum(lanes: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The sums of the chains of one column.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn joined<const ROWS: usize>(chains: &[[__m512; 2]; ROWS]) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for i in 0..ROWS {
        sums[i] = lane_sum(_mm512_add_ps(chains[i][0], chains[i][1]));
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
    let steps = a.len() / ROWS;
    let part = (NEAR / (ROWS * size_of::<[f32; CHAINS]>())).next_multiple_of(2);
    // Parts of a block's rows are not used in the order of memory.
    let distance = if ROWS > 2 || steps > part { FAR.max(BLOCK * stride) } else { FAR };
    let zero = [[_mm512_setzero_ps(); 2]; ROWS];
    for (block, sums) in sums.as_chunks_mut::<ROWS>().0.chunks_mut(BLOCK).enumerate() {
        let at = block * BLOCK;
        let mut ahead = Ahead(b.as_ptr().wrapping_add(at * stride + distance));
        let mut waiting = [zero; BLOCK];
        for first in (0..steps).step_by(part) {
            let range = first..steps.min(first + part);
            let (groups, rest) = waiting[..sums.len()].as_chunks_mut::<COLS>();
            let done = at + groups.len() * COLS;
            for (g, acc) in groups.iter_mut().enumerate() {
                let b = std::array::from_fn(|c| row(at + g * COLS + c));
                // SAFETY: each row was cut to `k` elements.
                *acc = unsafe { add_terms(*acc, a, range.clone(), b, k, &mut ahead) };
            }
            for (j, acc) in rest.iter_mut().enumerate() {
                // SAFETY: as above.
                [*acc] = unsafe { add_terms([*acc], a, range.clone(), [row(done + j)], k, &mut ahead) };
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
            1 => rows::<1, 1>(sums, a, b, stride, k),
            2 => rows::<2, 1>(sums, a, b, stride, k),
            3 => rows::<3, 2>(sums, a, b, stride, k),
            4 => rows::<4, 2>(sums, a, b, stride, k),
            5 => rows::<5, 1>(sums, a, b, stride, k),
            6 => rows::<6, 1>(sums, a, b, stride, k),
            7 => rows::<7, 1>(sums, a, b, stride, k),
            _ => rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}

/// Rows of the weight that are processed together with prefetching.
const BLOCK: usize = 8;

/// Elements of the weight that are prefetched ahead of one row of `a`: not much less or more, or it is slower than nothing.
const SOON: usize = 1536;

/// Distance of the second prefetch of a line from the first one, in elements.
const AGAIN: usize = 1024;

/// Sums of dots: of even steps, then of odd ones, for each row of the weight and each of `a`.
type Dots<const ROWS: usize, const COLS: usize> = [[[__m512; ROWS]; COLS]; 2];

/// Walks through the weight ahead of its use.
struct Ahead(*const bf16);

impl Ahead {
    /// Asks for the next cache line, and again for an earlier one.
    #[inline(always)]
    fn next(&mut self, again: bool) {
        // SAFETY: hints, which may point anywhere.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(self.0.cast());
            if again {
                _mm_prefetch::<_MM_HINT_T1>(self.0.wrapping_sub(AGAIN).cast());
            }
        }
        self.0 = self.0.wrapping_add(CHAINS);
    }
}

/// Adds the terms of `steps`, the first of which is even. One line is prefetched for each line used.
///
/// # Safety
/// As for [`add_terms`], with rows of `a` in bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_dots<const ROWS: usize, const COLS: usize>(
    acc: &mut Dots<ROWS, COLS>,
    a: &[[bf16; CHAINS]],
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    ahead: &mut Ahead,
) {
    let a = a.as_ptr();
    let whole = steps.end.min(k / CHAINS);
    let mut step = |acc: &mut [[__m512; ROWS]; COLS], n: usize, b: [__m512i; COLS]| {
        for i in 0..ROWS {
            // SAFETY: both types are 64 bytes of plain data; `a` has the steps of its rows.
            unsafe {
                let a = _mm512_loadu_si512(a.add(n * ROWS + i).cast());
                for c in 0..COLS {
                    let pairs = std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([a, b[c]]);
                    acc[c][i] = _mm512_dpbf16_ps(acc[c][i], pairs[0], pairs[1]);
                }
            }
        }
        (0..COLS).for_each(|_| ahead.next(ROWS > 1));
    };
    // SAFETY: below `whole` a step has all its terms, and the mask holds those of the last one.
    let line = |b: *const bf16, n: usize| unsafe { _mm512_loadu_si512(b.add(n * CHAINS).cast()) };
    // SAFETY: of the last step the mask holds the terms below `k`, and no others are read.
    // SAFETY: as above.
    let last = |b: *const bf16, n: usize| unsafe {
        _mm512_maskz_loadu_epi16(first32(k - n * CHAINS), b.wrapping_add(n * CHAINS).cast())
    };
    if COLS == 1 {
        let [mut even, mut odd] = *acc;
        let mut n = steps.start;
        while n + 2 <= whole {
            step(&mut even, n, b.map(|b| line(b, n)));
            step(&mut odd, n + 1, b.map(|b| line(b, n + 1)));
            n += 2;
        }
        for n in n..steps.end {
            let to = if n % 2 == 0 { &mut even } else { &mut odd };
            step(to, n, b.map(|b| last(b, n)));
        }
        *acc = [even, odd];
        return;
    }
    for (parity, to) in acc.iter_mut().enumerate() {
        let mut sums = *to;
        let mut n = steps.start + parity;
        while n < whole {
            step(&mut sums, n, b.map(|b| line(b, n)));
            n += 2;
        }
        if n < steps.end {
            step(&mut sums, n, b.map(|b| last(b, n)));
        }
        *to = sums;
    }
}

/// The sums of one row of the weight.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn joined_dots<const ROWS: usize, const COLS: usize>(dots: &Dots<ROWS, COLS>, c: usize) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for i in 0..ROWS {
        sums[i] = lane_sum(_mm512_add_ps(dots[0][c][i], dots[1][c][i]));
    }
    sums
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
    let row = |j: usize| b[j * stride..][..k].as_ptr();
    // One row of `a` may fill the first-level cache, because only one line of the weight at a time is needed with it.
    let most = if ROWS > 1 { NEAR / (ROWS * size_of::<[bf16; CHAINS]>()) } else { steps };
    let part = steps.div_ceil(steps.div_ceil(most).max(1)).next_multiple_of(2);
    let zero = [[[_mm512_setzero_ps(); ROWS]; COLS]; 2];
    let mut waiting = [zero; BLOCK];
    let whole = sums.len() / COLS * COLS;
    for at in (0..whole).step_by(BLOCK) {
        let count = BLOCK.min(whole - at);
        let distance = if ROWS > 1 { BLOCK * stride } else { SOON };
        let mut ahead = Ahead(b.as_ptr().wrapping_add(at * stride + distance));
        for first in (0..steps).step_by(part) {
            let range = first..steps.min(first + part);
            for (g, acc) in waiting[..count / COLS].iter_mut().enumerate() {
                if first == 0 {
                    *acc = zero;
                }
                let b = std::array::from_fn(|c| row(at + g * COLS + c));
                // SAFETY: each row was cut to `k` elements.
                unsafe { add_dots(acc, a, range.clone(), b, k, &mut ahead) };
            }
        }
        for (j, sums) in sums[at..at + count].iter_mut().enumerate() {
            *sums = joined_dots(&waiting[j / COLS], j % COLS);
        }
    }
    for j in whole..sums.len() {
        let mut acc = [[[_mm512_setzero_ps(); ROWS]]; 2];
        let mut ahead = Ahead(row(j));
        // SAFETY: as above.
        unsafe { add_dots(&mut acc, a, 0..steps, [row(j)], k, &mut ahead) };
        sums[j] = joined_dots(&acc, 0);
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
    // SAFETY: the caller's promise. Sixteen registers of sums at most.
    unsafe {
        match count {
            1 => dot_rows::<1, 1>(sums, a, b, stride, k),
            2 => dot_rows::<2, 1>(sums, a, b, stride, k),
            3 => dot_rows::<3, 1>(sums, a, b, stride, k),
            4 => dot_rows::<4, 1>(sums, a, b, stride, k),
            5 => dot_rows::<5, 1>(sums, a, b, stride, k),
            6 => dot_rows::<6, 2>(sums, a, b, stride, k),
            7 => dot_rows::<7, 2>(sums, a, b, stride, k),
            _ => dot_rows::<8, 2>(sums, a, b, stride, k),
        }
    }
}
