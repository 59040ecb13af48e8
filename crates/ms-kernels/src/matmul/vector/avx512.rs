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
//! Without the instruction, a line is split into its even and odd terms by a shift and a mask. One or two rows of `a` are told
//! of lines further ahead.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::body::{CHAINS, LANES};
use crate::matmul::kernel::avx512::pack::first32;

/// Bytes of `a` that are used again and again: they stay in the first-level cache.
const NEAR: usize = 16 * 1024;

/// Rows of the weight that are processed together with prefetching.
const BLOCK: usize = 8;

/// Distance of the second prefetch of a line from the first one, in elements.
const AGAIN: usize = 1024;

/// Sums of chains: of even steps, then of odd ones, for each row of the weight and each of `a`.
type Chains<const ROWS: usize, const COLS: usize> = [[[__m512; ROWS]; COLS]; 2];

/// How a line of the weight is multiplied.
trait Step {
    /// A line of a row of `a`.
    type Line;

    /// Elements of the weight from the one in use to the one that is prefetched, where rows of `a` are few and stand whole in
    /// the first-level cache.
    const AHEAD: usize;

    /// Rows of `a` that are few.
    const FEW: usize;

    /// Whether each line is prefetched a second time beside `rows` rows of `a`.
    fn again(rows: usize) -> bool;

    /// Adds the terms of step `n` to the chains of its parity; step `n` of row `i` of `a` is `a[n · ROWS + i]`.
    ///
    /// # Safety
    /// The instruction set must be there, and `a` must have the step.
    unsafe fn add<const ROWS: usize, const COLS: usize>(
        acc: &mut [[__m512; ROWS]; COLS],
        a: *const Self::Line,
        n: usize,
        b: [__m512i; COLS],
    );

    /// [`rows`], compiled for the instruction set.
    ///
    /// # Safety
    /// As for [`any_rows`].
    unsafe fn rows<const ROWS: usize, const COLS: usize>(
        sums: &mut [f32],
        a: &[Self::Line],
        b: &[bf16],
        stride: usize,
        k: usize,
    );
}

/// With the dot-product instruction.
struct Dot;

impl Step for Dot {
    type Line = [bf16; CHAINS];
    /// Not much less or more, or it is slower than nothing.
    const AHEAD: usize = 1536;
    const FEW: usize = 1;

    fn again(rows: usize) -> bool {
        rows > 1
    }

    #[inline(always)]
    unsafe fn add<const ROWS: usize, const COLS: usize>(
        acc: &mut [[__m512; ROWS]; COLS],
        a: *const Self::Line,
        n: usize,
        b: [__m512i; COLS],
    ) {
        for i in 0..ROWS {
            // SAFETY: both types are 64 bytes of plain data; the rest is the caller's promise.
            unsafe {
                let a = _mm512_loadu_si512(a.add(n * ROWS + i).cast());
                for c in 0..COLS {
                    let pairs = std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([a, b[c]]);
                    acc[c][i] = _mm512_dpbf16_ps(acc[c][i], pairs[0], pairs[1]);
                }
            }
        }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn rows<const ROWS: usize, const COLS: usize>(
        sums: &mut [f32],
        a: &[Self::Line],
        b: &[bf16],
        stride: usize,
        k: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { rows::<Self, ROWS, COLS>(sums, a, b, stride, k) }
    }
}

/// With multiplications of f32: lines of the weight are widened, those of `a` have their even terms first.
struct Widened;

impl Step for Widened {
    type Line = [f32; CHAINS];
    const AHEAD: usize = 4096;
    const FEW: usize = 2;

    fn again(_rows: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn add<const ROWS: usize, const COLS: usize>(
        acc: &mut [[__m512; ROWS]; COLS],
        a: *const Self::Line,
        n: usize,
        b: [__m512i; COLS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let even = b.map(|b| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(b)));
            let odd = b.map(|b| _mm512_castsi512_ps(_mm512_and_si512(b, upper)));
            for i in 0..ROWS {
                let a: *const f32 = a.add(n * ROWS + i).cast();
                let (a_even, a_odd) = (_mm512_loadu_ps(a), _mm512_loadu_ps(a.add(LANES)));
                for c in 0..COLS {
                    acc[c][i] = _mm512_fmadd_ps(a_even, even[c], _mm512_fmadd_ps(a_odd, odd[c], acc[c][i]));
                }
            }
        }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn rows<const ROWS: usize, const COLS: usize>(
        sums: &mut [f32],
        a: &[Self::Line],
        b: &[bf16],
        stride: usize,
        k: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { rows::<Self, ROWS, COLS>(sums, a, b, stride, k) }
    }
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

/// Adds the terms of `steps`, the first of which is even, to the chains, in the order of [`super::body`]. One line is
/// prefetched for each line used.
///
/// # Safety
/// Rows of `b` must have `k` elements, `a` its steps, and the instruction set must be there.
#[inline(always)]
unsafe fn add_terms<S: Step + ?Sized, const ROWS: usize, const COLS: usize>(
    acc: &mut Chains<ROWS, COLS>,
    a: &[S::Line],
    steps: Range<usize>,
    b: [*const bf16; COLS],
    k: usize,
    ahead: &mut Ahead,
) {
    let a = a.as_ptr();
    let whole = steps.end.min(k / CHAINS);
    let mut add = |acc: &mut [[__m512; ROWS]; COLS], n: usize, b: [__m512i; COLS]| {
        // SAFETY: the caller's promise.
        unsafe { S::add(acc, a, n, b) };
        (0..COLS).for_each(|_| ahead.next(S::again(ROWS)));
    };
    // SAFETY: below `whole` a step has all its terms.
    let line = |b: *const bf16, n: usize| unsafe { _mm512_loadu_si512(b.add(n * CHAINS).cast()) };
    // SAFETY: of the last step the mask holds the terms below `k`, and no others are read.
    let last = |b: *const bf16, n: usize| unsafe {
        _mm512_maskz_loadu_epi16(first32(k - n * CHAINS), b.wrapping_add(n * CHAINS).cast())
    };
    if COLS == 1 {
        let [mut even, mut odd] = *acc;
        let mut n = steps.start;
        while n + 2 <= whole {
            add(&mut even, n, b.map(|b| line(b, n)));
            add(&mut odd, n + 1, b.map(|b| line(b, n + 1)));
            n += 2;
        }
        if n < steps.end {
            add(&mut even, n, b.map(|b| last(b, n)));
        }
        if n + 1 < steps.end {
            add(&mut odd, n + 1, b.map(|b| last(b, n + 1)));
        }
        *acc = [even, odd];
        return;
    }
    for (parity, to) in acc.iter_mut().enumerate() {
        let mut sums = *to;
        let mut n = steps.start + parity;
        while n < whole {
            add(&mut sums, n, b.map(|b| line(b, n)));
            n += 2;
        }
        if n < steps.end {
            add(&mut sums, n, b.map(|b| last(b, n)));
        }
        *to = sums;
    }
}

/// The sums of one row of the weight.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn joined<const ROWS: usize, const COLS: usize>(chains: &Chains<ROWS, COLS>, c: usize) -> [f32; ROWS] {
    let mut sums = [0f32; ROWS];
    for i in 0..ROWS {
        sums[i] = lane_sum(_mm512_add_ps(chains[0][c][i], chains[1][c][i]));
    }
    sums
}

/// [`super::body::rows`] for `ROWS` rows of `a`, `COLS` rows of the weight at a time. Rows of `a` that the first-level cache
/// does not hold are taken in parts; chains wait on the stack meanwhile.
///
/// # Safety
/// As for [`any_rows`].
#[inline(always)]
unsafe fn rows<S: Step + ?Sized, const ROWS: usize, const COLS: usize>(
    sums: &mut [f32],
    a: &[S::Line],
    b: &[bf16],
    stride: usize,
    k: usize,
) {
    let sums = sums.as_chunks_mut::<ROWS>().0;
    let steps = a.len() / ROWS;
    let row = |j: usize| b[j * stride..][..k].as_ptr();
    // One row of `a` may fill the first-level cache, because only one line of the weight at a time is needed with it.
    let most = if ROWS > 1 { NEAR / (ROWS * size_of::<S::Line>()) } else { steps };
    let part = steps.div_ceil(steps.div_ceil(most).max(1)).next_multiple_of(2);
    // SAFETY: the caller's promise.
    let zero = unsafe { [[[_mm512_setzero_ps(); ROWS]; COLS]; 2] };
    let mut waiting = [zero; BLOCK];
    let whole = sums.len() / COLS * COLS;
    for at in (0..whole).step_by(BLOCK) {
        let count = BLOCK.min(whole - at);
        // Parts of a block's rows are not used in the order of memory.
        let distance = if ROWS <= S::FEW && steps <= part { S::AHEAD } else { BLOCK * stride };
        let mut ahead = Ahead(b.as_ptr().wrapping_add(at * stride + distance));
        for first in (0..steps).step_by(part) {
            let range = first..steps.min(first + part);
            for (g, acc) in waiting[..count / COLS].iter_mut().enumerate() {
                if first == 0 {
                    *acc = zero;
                }
                let b = std::array::from_fn(|c| row(at + g * COLS + c));
                // SAFETY: each row was cut to `k` elements.
                unsafe { add_terms::<S, ROWS, COLS>(acc, a, range.clone(), b, k, &mut ahead) };
            }
        }
        for (j, sums) in sums[at..at + count].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *sums = unsafe { joined(&waiting[j / COLS], j % COLS) };
        }
    }
    for j in whole..sums.len() {
        // SAFETY: as above.
        unsafe {
            let mut acc = [[[_mm512_setzero_ps(); ROWS]]; 2];
            add_terms::<S, ROWS, 1>(&mut acc, a, 0..steps, [row(j)], k, &mut Ahead(row(j)));
            sums[j] = joined(&acc, 0);
        }
    }
}

/// [`Step::rows`] for `count` rows of `a`; `MIDDLE` rows of the weight share the lines of three to five of them.
///
/// # Safety
/// As for [`any_rows`].
unsafe fn rows_by_count<S: Step, const MIDDLE: usize>(
    sums: &mut [f32],
    a: &[S::Line],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    debug_assert_eq!(a.len(), count * k.div_ceil(CHAINS));
    // SAFETY: the caller's promise. Sixteen registers of sums at most.
    unsafe {
        match count {
            1 => S::rows::<1, 1>(sums, a, b, stride, k),
            2 => S::rows::<2, 1>(sums, a, b, stride, k),
            3 => S::rows::<3, MIDDLE>(sums, a, b, stride, k),
            4 => S::rows::<4, MIDDLE>(sums, a, b, stride, k),
            5 => S::rows::<5, MIDDLE>(sums, a, b, stride, k),
            6 => S::rows::<6, 2>(sums, a, b, stride, k),
            7 => S::rows::<7, 2>(sums, a, b, stride, k),
            _ => S::rows::<8, 2>(sums, a, b, stride, k),
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
    // SAFETY: the caller's promise.
    unsafe { rows_by_count::<Widened, 2>(sums, a, b, stride, k, count) }
}

/// [`any_rows`] with the dot instruction and rows of `a` in bf16.
///
/// # Safety
/// As for [`any_rows`], the dot instruction among the set.
pub(super) unsafe fn any_dot_rows(
    sums: &mut [f32],
    a: &[[bf16; CHAINS]],
    b: &[bf16],
    stride: usize,
    k: usize,
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { rows_by_count::<Dot, 1>(sums, a, b, stride, k, count) }
}
