//! The sums of [`super::body::products`] with AVX2: magnitudes of the weight times codes of `x` with the weight's sign,
//! summed in pairs in 16 bits, which products of numbers up to 127 fit, then in fours.

use std::arch::x86_64::*;

use super::body::{Few, LANES, LINE, ZERO, scale_of};
use crate::rms_norm::lane_sum;

/// Bytes of the weight that are prefetched ahead of their use.
const AHEAD: usize = 16 * 1024;

/// Bytes between the first and the second prefetch of a line: the processor drops some while too many are outstanding.
const AGAIN: usize = 2048;

/// `sums[row, i] = x[i] · weight[row]` for `ROWS` rows of `x`, `HALVES` halves of a line at a time: as many as there are
/// registers for.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize, const HALVES: usize>(
    sums: &mut [f32],
    x: Few<'_>,
    weight: &[u8],
    width: usize,
) {
    let lines = width / LINE - 1;
    assert!(x.lines.len() == ROWS * lines && x.scales.len() == ROWS * lines);
    let (zero, ones) = (_mm256_set1_epi8(ZERO as i8), _mm256_set1_epi16(1));
    for (sums, row) in sums.as_chunks_mut::<ROWS>().0.iter_mut().zip(weight.chunks_exact(width)) {
        let mut held = [[0f32; LANES]; ROWS];
        for first in (0..2).step_by(HALVES) {
            let mut acc = [[_mm256_setzero_ps(); HALVES]; ROWS];
            for n in 0..lines {
                // SAFETY: a row of the weight has `lines` lines, `x` as many for each of its rows. A prefetch may point anywhere.
                unsafe {
                    let at = row.as_ptr().add(n * LINE + first * LINE / 2);
                    if first == 0 {
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(AHEAD).cast());
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(AHEAD - AGAIN).cast());
                    }
                    for half in 0..HALVES {
                        let weight = _mm256_loadu_si256(at.add(half * LINE / 2).cast());
                        let magnitude = _mm256_abs_epi8(weight);
                        for i in 0..ROWS {
                            let codes: *const u8 = x.lines.as_ptr().add(n * ROWS + i).cast();
                            let codes = _mm256_loadu_si256(codes.add((first + half) * LINE / 2).cast());
                            // Less 128, modulo 256.
                            let signed = _mm256_sign_epi8(_mm256_xor_si256(codes, zero), weight);
                            let pairs = _mm256_maddubs_epi16(magnitude, signed);
                            let whole = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                            let scale = _mm256_broadcast_ss(&*x.scales.as_ptr().add(n * ROWS + i));
                            acc[i][half] = _mm256_fmadd_ps(whole, scale, acc[i][half]);
                        }
                    }
                }
            }
            for i in 0..ROWS {
                for half in 0..HALVES {
                    // SAFETY: a half of sixteen lanes has room for eight.
                    unsafe {
                        let to = held[i].as_mut_ptr().add((first + half) * LANES / 2);
                        _mm256_storeu_ps(to, acc[i][half]);
                    }
                }
            }
        }
        let scale = scale_of(row);
        for i in 0..ROWS {
            sums[i] = lane_sum(held[i]) * scale;
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
            1 => rows::<1, 2>(sums, x, weight, width),
            2 => rows::<2, 2>(sums, x, weight, width),
            3 => rows::<3, 2>(sums, x, weight, width),
            4 => rows::<4, 2>(sums, x, weight, width),
            5 => rows::<5, 1>(sums, x, weight, width),
            6 => rows::<6, 1>(sums, x, weight, width),
            7 => rows::<7, 1>(sums, x, weight, width),
            _ => rows::<8, 1>(sums, x, weight, width),
        }
    }
}
