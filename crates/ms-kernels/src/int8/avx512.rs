//! The sums of [`super::body::products`] with the dot instruction of bytes.
//!
//! It takes one operand without a sign, which is why `x` is kept with 128 for zero; what that adds to the sums of a line is
//! formed once for all rows, as the product with 128 alone.

use std::arch::x86_64::*;

use super::body::{Few, LANES, LINE, ZERO, scale_of};
use crate::rms_norm::lane_sum;

/// Bytes of the weight that are asked for ahead of their use.
const AHEAD: usize = 8192;

/// `sums[row, i] = x[i] · weight[row]` for `ROWS` rows of `x`.
///
/// # Safety
/// The instruction sets must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<const ROWS: usize>(sums: &mut [f32], x: Few<'_>, weight: &[u8], width: usize) {
    let lines = width / LINE - 1;
    assert!(x.lines.len() == ROWS * lines && x.scales.len() == ROWS * lines);
    let zero = _mm512_set1_epi8((ZERO as u8).cast_signed());
    for (sums, row) in sums.as_chunks_mut::<ROWS>().0.iter_mut().zip(weight.chunks_exact(width)) {
        let mut acc = [_mm512_setzero_ps(); ROWS];
        for n in 0..lines {
            // SAFETY: a row of the weight has `lines` lines, `x` as many for each of its rows. A prefetch may point anywhere.
            unsafe {
                let at = row.as_ptr().add(n * LINE);
                _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(AHEAD).cast());
                let weight = _mm512_loadu_si512(at.cast());
                let nothing = _mm512_setzero_si512();
                let shift = _mm512_sub_epi32(nothing, _mm512_dpbusd_epi32(nothing, zero, weight));
                for i in 0..ROWS {
                    let codes = _mm512_loadu_si512(x.lines.as_ptr().add(i * lines + n).cast());
                    let scale = _mm512_set1_ps(*x.scales.as_ptr().add(i * lines + n));
                    let whole = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(shift, codes, weight));
                    acc[i] = _mm512_fmadd_ps(whole, scale, acc[i]);
                }
            }
        }
        let scale = scale_of(row);
        for i in 0..ROWS {
            let mut lanes = [0f32; LANES];
            // SAFETY: room for sixteen lanes.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), acc[i]) };
            sums[i] = lane_sum(lanes) * scale;
        }
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
            1 => rows::<1>(sums, x, weight, width),
            2 => rows::<2>(sums, x, weight, width),
            3 => rows::<3>(sums, x, weight, width),
            4 => rows::<4>(sums, x, weight, width),
            5 => rows::<5>(sums, x, weight, width),
            6 => rows::<6>(sums, x, weight, width),
            7 => rows::<7>(sums, x, weight, width),
            _ => rows::<8>(sums, x, weight, width),
        }
    }
}
