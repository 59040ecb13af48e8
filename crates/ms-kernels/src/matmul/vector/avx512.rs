//! The sums of few rows of bf16 with AVX-512: a cache line of the weight falls into its even and its odd terms by a shift and
//! a mask, sixteen chains each.

use std::arch::x86_64::*;

use half::bf16;

use super::body::{CHAINS, LANES};
use crate::matmul::kernel::avx512::first32;
use crate::rms_norm::lane_sum;

/// `sums[c][i] = Σ_k a[i][k] · b[c][k]`, in the order of [`super::body`].
///
/// # Safety
/// Rows of `b` must have `k` elements, and the instruction set must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn dots<const ROWS: usize, const COLS: usize>(
    a: &[[f32; CHAINS]],
    b: [*const bf16; COLS],
    k: usize,
) -> [[f32; ROWS]; COLS] {
    let steps = a.len() / ROWS;
    let a = a.as_ptr();
    let mut acc = [[[_mm512_setzero_ps(); 2]; ROWS]; COLS];
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for n in 0..steps {
        let mask = first32(k - n * CHAINS);
        for c in 0..COLS {
            // SAFETY: the mask holds existing elements; a prefetch may point anywhere; `a` has ROWS times `steps` steps.
            unsafe {
                let at = b[c].wrapping_add(n * CHAINS);
                let pairs = _mm512_maskz_loadu_epi16(mask, at.cast());
                let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
                let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
                for i in 0..ROWS {
                    let a: *const f32 = a.add(i * steps + n).cast();
                    acc[c][i][0] = _mm512_fmadd_ps(_mm512_loadu_ps(a), even, acc[c][i][0]);
                    acc[c][i][1] = _mm512_fmadd_ps(_mm512_loadu_ps(a.add(LANES)), odd, acc[c][i][1]);
                }
            }
        }
    }
    let mut sums = [[0f32; ROWS]; COLS];
    for c in 0..COLS {
        for i in 0..ROWS {
            let mut lanes = [0f32; LANES];
            // SAFETY: room for sixteen lanes.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), _mm512_add_ps(acc[c][i][0], acc[c][i][1])) };
            sums[c][i] = lane_sum(lanes);
        }
    }
    sums
}

/// [`super::body::rows`] for `ROWS` rows of `a`, `COLS` rows of the weight at a time.
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
    let (groups, rest) = sums.as_chunks_mut::<ROWS>().0.as_chunks_mut::<COLS>();
    let done = groups.len() * COLS;
    for (g, sums) in groups.iter_mut().enumerate() {
        // SAFETY: each row was cut to `k` elements.
        *sums = unsafe { dots::<ROWS, COLS>(a, std::array::from_fn(|c| row(g * COLS + c)), k) };
    }
    for (j, sums) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        [*sums] = unsafe { dots::<ROWS, 1>(a, [row(done + j)], k) };
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
