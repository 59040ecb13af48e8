//! Products with few rows, with AVX2.
//!
//! With one or two rows of `a`, all chains of a row of the weight fit into registers and memory bandwidth is the limit: the
//! weight is read one row after the other, and each line is prefetched twice into the second-level cache. Reading two rows of
//! the weight at a time, or prefetching into the first level, halves the rate on Zen 4.
//!
//! A line of bf16 is split into its even and odd terms by a shift and a mask. With three to eight rows, sixteen registers
//! hold one of four chains for each row of `a`: those of even and of odd steps, and their lower and upper lanes, are computed
//! in four passes over a part of `a` that fits into the first-level cache, while the chains of a block of rows of the weight
//! are kept on the stack. `a` is stored in the order of the passes. The hardware prefetcher sees no stream in the weight, so
//! the next block is prefetched in memory order.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::body::{CHAINS, LANES};

/// Bytes of a part of `a` that are used again and again: they stay in the first-level cache.
const NEAR: usize = 16 * 1024;

/// Prefetch distance in elements of the weight.
const FAR: usize = 8 * 1024;

/// Elements between the first and the second prefetch of a line: the processor drops some while too many are outstanding.
const AGAIN: usize = 4 * 1024;

/// Rows of the weight whose chains wait at a time.
const BLOCK: usize = 8;

/// Terms of a register of pairs: half a step.
const PAIRS: usize = CHAINS / 2;

/// Chains of a row of the weight: of even steps, then of odd ones, each the lower lanes of all rows of `a`, then the upper ones.
type Chains<const ROWS: usize> = [[[__m256; ROWS]; 2]; 2];

/// So many rows and more are taken in passes.
const PASSES: usize = 3;

/// Steps of `rows` rows of `a` that are taken together, an even number.
const fn part_steps(rows: usize) -> usize {
    (NEAR / (rows * size_of::<[f32; CHAINS]>())).next_multiple_of(2)
}

/// Where a pass over `steps` steps of `rows` rows begins: first the even steps, then the odd ones, of each the lower lanes and
/// then the upper ones.
fn pass_start(rows: usize, steps: usize, parity: usize, half: usize) -> usize {
    let of_parity = [steps.div_ceil(2), steps / 2];
    (2 * of_parity[0] * parity + of_parity[parity] * half) * rows * LANES
}

/// Where the quarters of step `n` of `steps` of row `i` of `m` are in the prepared `a` of [`any_rows`]: eight even terms, the
/// next eight, the odd ones next to the first, those next to the second.
///
/// One or two rows are stored step by step, as in all other bodies. More rows are stored part by part, within it pass by
/// pass, within a pass step by step, and within a step all rows, with eight even terms each and the odd ones next to them.
pub(super) fn quarters(m: usize, steps: usize, n: usize, i: usize) -> [usize; 4] {
    if m < PASSES {
        return super::quarters(m, n, i);
    }
    let first = n - n % part_steps(m);
    let steps = part_steps(m).min(steps - first);
    let at =
        |half| first * m * CHAINS + pass_start(m, steps, n % 2, half) + ((n - first) / 2 * m + i) * LANES;
    [at(0), at(1), at(0) + LANES / 2, at(1) + LANES / 2]
}

/// Walks through the weight ahead of its use.
struct Prefetch(*const bf16);

impl Prefetch {
    /// Prefetches a line, and the one [`AGAIN`] elements before it a second time, and moves on to the next.
    #[inline(always)]
    fn next(&mut self) {
        // SAFETY: a prefetch may point anywhere.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(self.0.cast());
            _mm_prefetch::<_MM_HINT_T1>(self.0.wrapping_sub(AGAIN).cast());
        }
        self.0 = self.0.wrapping_add(CHAINS);
    }
}

/// The terms of a half step; `count` of them exist.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn some(from: *const bf16, count: usize) -> __m256i {
    let mut held = [bf16::ZERO; PAIRS];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, held.as_mut_ptr(), count.min(PAIRS));
        _mm256_loadu_si256(held.as_ptr().cast())
    }
}

/// Adds the terms of `steps`, the first of which is even, to the chains of `COLS` rows of the weight, in the order of
/// [`super::body`]; `a` has the passes over these steps. One line is prefetched for each line used.
///
/// # Safety
/// Rows of `b` must have `k` elements, `a` its steps, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_terms<const ROWS: usize, const COLS: usize>(
    chains: &mut [Chains<ROWS>],
    a: &[[f32; CHAINS]],
    steps: &Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    prefetch: &mut Prefetch,
) {
    let whole = steps.end.min(k / CHAINS);
    for parity in 0..2 {
        for half in 0..2 {
            let start = pass_start(ROWS, steps.len(), parity, half);
            let a = a.as_ptr().cast::<f32>().wrapping_add(start);
            let mut acc = [[_mm256_setzero_ps(); ROWS]; COLS];
            for c in 0..COLS {
                acc[c] = chains[c][parity][half];
            }
            macro_rules! step {
                ($n:ident, $load:expr) => {
                    let mut pairs = [_mm256_setzero_si256(); COLS];
                    for c in 0..COLS {
                        pairs[c] = $load(b[c].wrapping_add($n * CHAINS + half * PAIRS));
                    }
                    let a = a.wrapping_add(($n - steps.start) / 2 * ROWS * LANES);
                    add_half::<ROWS, COLS, LANES, { LANES / 2 }>(&mut acc, a, pairs);
                };
            }
            let mut n = steps.start + parity;
            // SAFETY: steps below `whole` have all their terms, of the last one those below `k` are read; `a` has the steps of
            // its rows.
            unsafe {
                while n < whole {
                    step!(n, |at: *const bf16| _mm256_loadu_si256(at.cast()));
                    if half == 0 {
                        (0..COLS).for_each(|_| prefetch.next());
                    }
                    n += 2;
                }
                if n < steps.end {
                    let count = (k - n * CHAINS).saturating_sub(half * PAIRS);
                    step!(n, |at: *const bf16| some(at, count));
                }
            }
            for c in 0..COLS {
                chains[c][parity][half] = acc[c];
            }
        }
    }
}

/// Adds the half step in `pairs` of `COLS` rows of the weight to a chain of each: `a` has the even terms of its first row,
/// the odd ones `ODD` elements after them, and the next row `NEXT` further.
///
/// # Safety
/// `a` must have the steps of its rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_half<const ROWS: usize, const COLS: usize, const NEXT: usize, const ODD: usize>(
    acc: &mut [[__m256; ROWS]; COLS],
    a: *const f32,
    pairs: [__m256i; COLS],
) {
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    // Loops, for a closure that an array's method calls is not inlined: the method lacks the instruction set.
    let (mut even, mut odd) = ([_mm256_setzero_ps(); COLS], [_mm256_setzero_ps(); COLS]);
    for c in 0..COLS {
        even[c] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[c]));
        odd[c] = _mm256_castsi256_ps(_mm256_and_si256(pairs[c], upper));
    }
    for i in 0..ROWS {
        // SAFETY: the caller's promise.
        let [of_even, of_odd] = unsafe {
            let a = a.add(i * NEXT);
            [_mm256_loadu_ps(a), _mm256_loadu_ps(a.add(ODD))]
        };
        for c in 0..COLS {
            let sum = _mm256_fmadd_ps(of_odd, odd[c], acc[c][i]);
            acc[c][i] = _mm256_fmadd_ps(of_even, even[c], sum);
        }
    }
}

/// Adds the terms of `steps`, the first of which is even, to the chains of a row of the weight, in the order of
/// [`super::body`], all chains at once. One line is prefetched for each line used.
///
/// # Safety
/// The row `b` must have `k` elements, `a` the steps of its rows, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_steps<const ROWS: usize>(
    chains: &mut Chains<ROWS>,
    a: &[[f32; CHAINS]],
    steps: &Range<usize>,
    b: *const bf16,
    k: usize,
    prefetch: &mut Prefetch,
) {
    let mut acc = *chains;
    // In an incomplete step, only terms below `k`.
    macro_rules! step {
        ($n:expr, $parity:expr, $whole:literal) => {
            for half in 0..2 {
                let at = b.wrapping_add($n * CHAINS + half * PAIRS);
                let pairs = if $whole {
                    _mm256_loadu_si256(at.cast())
                } else {
                    some(at, (k - $n * CHAINS).saturating_sub(half * PAIRS))
                };
                let a = a.as_ptr().add($n * ROWS).cast::<f32>().add(half * LANES / 2);
                let mut sums = [acc[$parity][half]];
                add_half::<ROWS, 1, CHAINS, LANES>(&mut sums, a, [pairs]);
                [acc[$parity][half]] = sums;
            }
            prefetch.next();
        };
    }
    let mut n = steps.start;
    // SAFETY: steps below `k / CHAINS` have all their terms, of the one after them those below `k` are read; `a` has the steps
    // of its rows.
    unsafe {
        while n + 2 <= steps.end && (n + 2) * CHAINS <= k {
            step!(n, 0, true);
            step!(n + 1, 1, true);
            n += 2;
        }
        if n < steps.end {
            step!(n, 0, false);
        }
        if n + 1 < steps.end {
            step!(n + 1, 1, false);
        }
    }
    *chains = acc;
}

/// [`super::body::any_rows`] for one or two rows of `a`, a row of the weight at a time.
///
/// # Safety
/// As for [`any_rows`].
#[target_feature(enable = "avx2,fma")]
unsafe fn streamed<const ROWS: usize>(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    let steps = a.len() / ROWS;
    // Parts of a block's rows are not used in the order of memory.
    let far = if steps > part_steps(ROWS) { FAR.max(BLOCK * stride) } else { FAR };
    for (block, sums) in sums.as_chunks_mut::<ROWS>().0.chunks_mut(BLOCK).enumerate() {
        let at = block * BLOCK;
        let mut prefetch = Prefetch(b.as_ptr().wrapping_add(at * stride + far));
        let mut waiting = [[[[_mm256_setzero_ps(); ROWS]; 2]; 2]; BLOCK];
        for first in (0..steps).step_by(part_steps(ROWS)) {
            let range = first..steps.min(first + part_steps(ROWS));
            for (j, chains) in waiting[..sums.len()].iter_mut().enumerate() {
                let row = b[(at + j) * stride..][..k].as_ptr();
                // SAFETY: the row was cut to `k` elements, and `a` has all steps.
                unsafe { add_steps(chains, a, &range, row, k, &mut prefetch) };
            }
        }
        for (sums, chains) in sums.iter_mut().zip(&waiting) {
            *sums = joined(chains);
        }
    }
}

/// The sums of the chains of one row of the weight, in the tree of [`crate::rms_norm::lane_sum`].
#[inline]
#[target_feature(enable = "avx2")]
fn joined<const ROWS: usize>(chains: &Chains<ROWS>) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for i in 0..ROWS {
        let half = |half: usize| _mm256_add_ps(chains[0][half][i], chains[1][half][i]);
        let eight = _mm256_add_ps(half(0), half(1));
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        sums[i] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    sums
}

/// [`super::body::any_rows`] for `ROWS` rows of `a`, `COLS` rows of the weight at a time.
///
/// # Safety
/// As for [`any_rows`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize, const COLS: usize>(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    let row = |j: usize| b[j * stride..][..k].as_ptr();
    let steps = a.len() / ROWS;
    let zero = [[[_mm256_setzero_ps(); ROWS]; 2]; 2];
    for (block, sums) in sums.as_chunks_mut::<ROWS>().0.chunks_mut(BLOCK).enumerate() {
        let at = block * BLOCK;
        let mut prefetch = Prefetch(b.as_ptr().wrapping_add((at + BLOCK) * stride));
        let mut waiting = [zero; BLOCK];
        for first in (0..steps).step_by(part_steps(ROWS)) {
            let range = first..steps.min(first + part_steps(ROWS));
            let a = &a[ROWS * range.start..ROWS * range.end];
            for j in (0..sums.len()).step_by(COLS) {
                // SAFETY: each row was cut to `k` elements, and `a` to the steps of the range.
                unsafe {
                    if j + COLS <= sums.len() {
                        let b: [_; COLS] = std::array::from_fn(|c| row(at + j + c));
                        add_terms(&mut waiting[j..], a, &range, b, k, &mut prefetch);
                    } else {
                        for j in j..sums.len() {
                            add_terms(&mut waiting[j..], a, &range, [row(at + j)], k, &mut prefetch);
                        }
                    }
                }
            }
        }
        for (sums, chains) in sums.iter_mut().zip(&waiting) {
            *sums = joined(chains);
        }
    }
}

/// The sums of `count` rows of `a` with rows of the weight.
///
/// # Safety
/// The instruction set must be there, and `a` must have `count` rows of `k` elements, each a whole number of `CHAINS`, as
/// [`quarters`] says.
pub(super) unsafe fn any_rows(
    sums: &mut [f32],
    a: &[[f32; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    debug_assert_eq!(a.len(), count * k.div_ceil(CHAINS));
    // SAFETY: the caller's promise. Seven to twelve sums keep both multipliers busy.
    unsafe {
        match count {
            1 => streamed::<1>(sums, a, b, stride, k),
            2 => streamed::<2>(sums, a, b, stride, k),
            3 => rows::<3, 3>(sums, a, b, stride, k),
            4 => rows::<4, 2>(sums, a, b, stride, k),
            5 => rows::<5, 2>(sums, a, b, stride, k),
            6 => rows::<6, 2>(sums, a, b, stride, k),
            7 => rows::<7, 1>(sums, a, b, stride, k),
            _ => rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}
