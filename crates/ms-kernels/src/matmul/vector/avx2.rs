//! The sums of few rows of bf16, three to eight, with AVX2; of fewer the loops of [`super::body`] read as fast.
//!
//! A line of the weight falls into its even and its odd terms by a shift and a mask. Sixteen registers hold one of four chains
//! for each row of `a`: those of even and of odd steps, and their lower and upper lanes, are made after one another, of a part
//! of `a` that the first-level cache holds, while the chains of a block of rows of the weight wait on the stack. The processor
//! then sees no stream: the block after the one at hand is asked for, in the order of memory, into the second level.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::body::{CHAINS, LANES};

/// Bytes of `a` that are used again and again: they stay in the first-level cache.
const NEAR: usize = 16 * 1024;

/// Rows of the weight whose chains wait at a time.
const BLOCK: usize = 8;

/// Terms of a register of pairs: half a step.
const PAIRS: usize = CHAINS / 2;

/// Chains of a row of the weight: of even steps, then of odd ones, each the lower lanes of all rows of `a`, then the upper ones.
type Chains<const ROWS: usize> = [[[__m256; ROWS]; 2]; 2];

/// Walks through the weight ahead of its use.
struct Ahead(*const bf16);

impl Ahead {
    /// Asks for the next cache line.
    #[inline(always)]
    fn next(&mut self) {
        // SAFETY: a hint, which may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(self.0.cast()) };
        self.0 = self.0.wrapping_add(CHAINS);
    }
}

/// The terms of a half step of which `count` exist.
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

/// Adds the terms of `steps`, of which the first is even, to the chains of `COLS` rows of the weight, in the order of
/// [`super::body`]; step `n` of row `i` of `a` is `a[n · ROWS + i]`. A line is asked for with each that is used.
///
/// # Safety
/// Rows of `b` must have `k` elements, `a` its steps, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_terms<const ROWS: usize, const COLS: usize>(
    chains: &mut [Chains<ROWS>],
    a: &[[f32; CHAINS]],
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    ahead: &mut Ahead,
) {
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    let whole = steps.end.min(k / CHAINS);
    for parity in 0..2 {
        for half in 0..2 {
            let a: *const f32 = a.as_ptr().cast::<f32>().wrapping_add(half * LANES / 2);
            let mut acc = [[_mm256_setzero_ps(); ROWS]; COLS];
            for c in 0..COLS {
                acc[c] = chains[c][parity][half];
            }
            macro_rules! step {
                ($n:ident, $load:expr) => {
                    let pairs: [__m256i; COLS] =
                        std::array::from_fn(|c| $load(b[c].wrapping_add($n * CHAINS + half * PAIRS)));
                    let even = pairs.map(|pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)));
                    let odd = pairs.map(|pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)));
                    for i in 0..ROWS {
                        let a = a.add(($n * ROWS + i) * CHAINS);
                        let [of_even, of_odd] = [_mm256_loadu_ps(a), _mm256_loadu_ps(a.add(LANES))];
                        for c in 0..COLS {
                            let sum = _mm256_fmadd_ps(of_odd, odd[c], acc[c][i]);
                            acc[c][i] = _mm256_fmadd_ps(of_even, even[c], sum);
                        }
                    }
                };
            }
            let mut n = steps.start + parity;
            // SAFETY: steps below `whole` have all their terms, of the last one those below `k` are read; `a` has the steps of
            // its rows.
            unsafe {
                while n < whole {
                    step!(n, |at: *const bf16| _mm256_loadu_si256(at.cast()));
                    if half == 0 {
                        (0..COLS).for_each(|_| ahead.next());
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
    let part = (NEAR / (ROWS * size_of::<[f32; CHAINS]>())).next_multiple_of(2);
    let zero = [[[_mm256_setzero_ps(); ROWS]; 2]; 2];
    for (block, sums) in sums.as_chunks_mut::<ROWS>().0.chunks_mut(BLOCK).enumerate() {
        let at = block * BLOCK;
        let mut ahead = Ahead(b.as_ptr().wrapping_add((at + BLOCK) * stride));
        let mut waiting = [zero; BLOCK];
        for first in (0..steps).step_by(part) {
            let range = first..steps.min(first + part);
            for j in (0..sums.len()).step_by(COLS) {
                // SAFETY: each row was cut to `k` elements.
                unsafe {
                    if j + COLS <= sums.len() {
                        let b: [_; COLS] = std::array::from_fn(|c| row(at + j + c));
                        add_terms(&mut waiting[j..], a, range.clone(), b, k, &mut ahead);
                    } else {
                        for j in j..sums.len() {
                            add_terms(&mut waiting[j..], a, range.clone(), [row(at + j)], k, &mut ahead);
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

/// The sums of `count` rows of `a`, at least three, with rows of the weight.
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
    // SAFETY: the caller's promise. Eight or nine sums keep both multipliers busy.
    unsafe {
        match count {
            3 => rows::<3, 3>(sums, a, b, stride, k),
            4 => rows::<4, 2>(sums, a, b, stride, k),
            5 => rows::<5, 2>(sums, a, b, stride, k),
            6 => rows::<6, 1>(sums, a, b, stride, k),
            7 => rows::<7, 1>(sums, a, b, stride, k),
            _ => rows::<8, 1>(sums, a, b, stride, k),
        }
    }
}
