//! The sums of [`super::body::products`] with the 8-bit dot-product instruction.
//!
//! It takes one unsigned operand, so `x` is stored with an offset of 128; what the offset adds to the sums of a line is
//! computed once for all rows, as the product with 128 alone.

use std::arch::x86_64::*;

use super::body::{Few, LINE, ZERO, scale_of};
use crate::matmul::vector::avx512::lane_sum;
use crate::prefetch::sees_streams;

/// Bytes of the weight that are prefetched ahead of their use, if `ASK`. Requests are dropped while too many are pending, so each
/// line is prefetched once more, `AGAIN` bytes later.
const AHEAD: usize = 32 * 1024;
const AGAIN: usize = 2048;

/// `sums[row, i] = x[i] · weight[row]` for `ROWS` rows of `x`, `COLS` of the weight at a time, which share the lines of `x`.
///
/// # Safety
/// The instruction sets must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<const ROWS: usize, const COLS: usize, const ASK: bool>(
    sums: &mut [f32],
    x: Few<'_>,
    weight: &[u8],
    width: usize,
) {
    let lines = width / LINE - 1;
    assert!(x.lines.len() == ROWS * lines && x.scales.len() == ROWS * lines);
    let zero = _mm512_set1_epi8((ZERO as u8).cast_signed());
    let nothing = _mm512_setzero_si512();
    let (groups, rest) = sums.as_chunks_mut::<ROWS>().0.as_chunks_mut::<COLS>();
    let done = groups.len() * COLS;
    for (sums, group) in groups.iter_mut().zip(weight.chunks_exact(width * COLS)) {
        let mut acc = [[_mm512_setzero_ps(); ROWS]; COLS];
        let mut ahead = group.as_ptr().wrapping_add(AHEAD);
        for n in 0..lines {
            // SAFETY: a row of the weight has `lines` lines, `x` as many for each of its rows. A prefetch may point anywhere.
            unsafe {
                let (mut codes, mut shifts) = ([nothing; COLS], [nothing; COLS]);
                for c in 0..COLS {
                    if ASK {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_sub(AGAIN).cast());
                        ahead = ahead.wrapping_add(LINE);
                    }
                    codes[c] = _mm512_loadu_si512(group.as_ptr().add(c * width + n * LINE).cast());
                    shifts[c] = _mm512_sub_epi32(nothing, _mm512_dpbusd_epi32(nothing, zero, codes[c]));
                }
                for i in 0..ROWS {
                    let own = _mm512_loadu_si512(x.lines.as_ptr().add(n * ROWS + i).cast());
                    let scale = _mm512_set1_ps(*x.scales.as_ptr().add(n * ROWS + i));
                    for c in 0..COLS {
                        let whole = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(shifts[c], own, codes[c]));
                        acc[c][i] = _mm512_fmadd_ps(whole, scale, acc[c][i]);
                    }
                }
            }
        }
        for c in 0..COLS {
            let scale = scale_of(&group[c * width..][..width]);
            for i in 0..ROWS {
                sums[c][i] = lane_sum(acc[c][i]) * scale;
            }
        }
    }
    if COLS > 1 && !rest.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { rows::<ROWS, 1, ASK>(rest.as_flattened_mut(), x, &weight[done * width..], width) };
    }
}

/// `sums[row, i] = x[i] · weight[row]` for `m` rows of `x`, 1 to 8; rows of the weight are `width` bytes.
///
/// # Safety
/// The instruction sets must be there.
pub(super) unsafe fn products(sums: &mut [f32], x: Few<'_>, weight: &[u8], width: usize, m: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match m {
            1 if sees_streams() => rows::<1, 1, false>(sums, x, weight, width),
            1 => rows::<1, 1, true>(sums, x, weight, width),
            2 if sees_streams() => rows::<2, 1, false>(sums, x, weight, width),
            2 => rows::<2, 1, true>(sums, x, weight, width),
            // So many rows leave no processor room to look that far ahead.
            3 => rows::<3, 2, true>(sums, x, weight, width),
            4 => rows::<4, 2, true>(sums, x, weight, width),
            5 => rows::<5, 2, true>(sums, x, weight, width),
            6 => rows::<6, 2, true>(sums, x, weight, width),
            7 => rows::<7, 2, true>(sums, x, weight, width),
            _ => rows::<8, 2, true>(sums, x, weight, width),
        }
    }
}
