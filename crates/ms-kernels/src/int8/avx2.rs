//! The sums of [`super::body::products`] with AVX2: bytes are widened to sixteen bits, whose pairs are multiplied and added.

use std::arch::x86_64::*;

use super::body::{Few, LANES, LINE, ZERO, scale_of};
use crate::rms_norm::lane_sum;

/// Bytes of the weight that are asked for ahead of their use.
const AHEAD: usize = 8192;

/// Lane of the definition that each lane of two registers holds: neighbouring pairs are joined within halves of a register.
const PLACES: [usize; LANES] = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];

/// `sums[row, i] = x[i] · weight[row]` for `ROWS` rows of `x`.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize>(sums: &mut [f32], x: Few<'_>, weight: &[u8], width: usize) {
    let lines = width / LINE - 1;
    assert!(x.lines.len() == ROWS * lines && x.scales.len() == ROWS * lines);
    let zero = _mm256_set1_epi16(ZERO as i16);
    for (sums, row) in sums.as_chunks_mut::<ROWS>().0.iter_mut().zip(weight.chunks_exact(width)) {
        let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
        for n in 0..lines {
            // SAFETY: a row of the weight has `lines` lines, `x` as many for each of its rows. A prefetch may point anywhere.
            unsafe {
                let at = row.as_ptr().add(n * LINE);
                _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(AHEAD).cast());
                for half in 0..2 {
                    let start = half * LINE / 2;
                    let weight =
                        |q: usize| _mm256_cvtepi8_epi16(_mm_loadu_si128(at.add(start + 16 * q).cast()));
                    let (lower, upper) = (weight(0), weight(1));
                    for i in 0..ROWS {
                        let codes: *const u8 = x.lines.as_ptr().add(n * ROWS + i).cast();
                        let codes = |q: usize| {
                            let wide =
                                _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.add(start + 16 * q).cast()));
                            _mm256_sub_epi16(wide, zero)
                        };
                        let pairs = (_mm256_madd_epi16(lower, codes(0)), _mm256_madd_epi16(upper, codes(1)));
                        let whole = _mm256_cvtepi32_ps(_mm256_hadd_epi32(pairs.0, pairs.1));
                        let scale = _mm256_set1_ps(*x.scales.as_ptr().add(n * ROWS + i));
                        acc[i][half] = _mm256_fmadd_ps(whole, scale, acc[i][half]);
                    }
                }
            }
        }
        let scale = scale_of(row);
        for i in 0..ROWS {
            let mut held = [0f32; LANES];
            // SAFETY: room for sixteen lanes.
            unsafe {
                _mm256_storeu_ps(held.as_mut_ptr(), acc[i][0]);
                _mm256_storeu_ps(held.as_mut_ptr().add(LANES / 2), acc[i][1]);
            }
            let mut lanes = [0f32; LANES];
            for (place, held) in PLACES.iter().zip(held) {
                lanes[*place] = held;
            }
            sums[i] = lane_sum(lanes) * scale;
        }
    }
}

/// `sums[row, i] = x[i] · weight[row]` for `m` rows of `x`, 1 to 8; rows of the weight are `width` bytes.
///
/// # Safety
/// The instruction set must be there.
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
