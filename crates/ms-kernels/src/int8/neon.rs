//! The sums of [`super::body::products`] with `sdot`, which adds four neighbours' products in integers.

use std::arch::aarch64::*;
use std::arch::asm;

use super::body::{Few, LANES, LINE, ZERO, scale_of};
use crate::prefetch::fetch_far;
use crate::rms_norm::lane_sum;

/// Bytes of a register.
const BYTES: usize = 16;
/// Registers of a line.
const QUARTERS: usize = LINE / BYTES;
/// Bytes of the weight that are asked for ahead of their use.
const AHEAD: usize = 8 * 1024;

/// Whether the processor has the instruction.
pub(super) fn is_available() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// `sums[l] + Σ_t a[4l + t] · b[4l + t]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads three registers and writes one.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inlateout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// `sums[row, i] = x[i] · weight[row]` for `ROWS` rows of `x`, `TAKEN` quarters of a line at a time: as many as there are
/// registers for.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn rows<const ROWS: usize, const TAKEN: usize>(
    sums: &mut [f32],
    x: Few<'_>,
    weight: &[u8],
    width: usize,
) {
    let lines = width / LINE - 1;
    assert!(x.lines.len() == ROWS * lines && x.scales.len() == ROWS * lines);
    let zero = vdupq_n_u8(ZERO as u8);
    for (sums, row) in sums.as_chunks_mut::<ROWS>().0.iter_mut().zip(weight.chunks_exact(width)) {
        let mut held = [[0f32; LANES]; ROWS];
        for first in (0..QUARTERS).step_by(TAKEN) {
            let mut acc = [[vdupq_n_f32(0.0); TAKEN]; ROWS];
            for n in 0..lines {
                // SAFETY: a row of the weight has `lines` lines, `x` as many for each of its rows.
                unsafe {
                    let at = row.as_ptr().add(n * LINE + first * BYTES);
                    if first == 0 {
                        fetch_far(at.wrapping_add(AHEAD));
                    }
                    for q in 0..TAKEN {
                        let weight = vld1q_s8(at.add(q * BYTES).cast());
                        for i in 0..ROWS {
                            let codes: *const u8 = x.lines.as_ptr().add(n * ROWS + i).cast();
                            let codes = vld1q_u8(codes.add((first + q) * BYTES));
                            // Less 128, modulo 256.
                            let signed = vreinterpretq_s8_u8(veorq_u8(codes, zero));
                            let whole = vcvtq_f32_s32(sdot(vdupq_n_s32(0), weight, signed));
                            let scale = vld1q_dup_f32(x.scales.as_ptr().add(n * ROWS + i));
                            acc[i][q] = vfmaq_f32(acc[i][q], whole, scale);
                        }
                    }
                }
            }
            for i in 0..ROWS {
                for q in 0..TAKEN {
                    // SAFETY: the lanes have room for a register at each quarter.
                    unsafe { vst1q_f32(held[i].as_mut_ptr().add((first + q) * LANES / QUARTERS), acc[i][q]) };
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
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn products(sums: &mut [f32], x: Few<'_>, weight: &[u8], width: usize, m: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match m {
            1 => rows::<1, 4>(sums, x, weight, width),
            2 => rows::<2, 4>(sums, x, weight, width),
            3 => rows::<3, 4>(sums, x, weight, width),
            4 => rows::<4, 4>(sums, x, weight, width),
            5 => rows::<5, 2>(sums, x, weight, width),
            6 => rows::<6, 2>(sums, x, weight, width),
            7 => rows::<7, 2>(sums, x, weight, width),
            _ => rows::<8, 2>(sums, x, weight, width),
        }
    }
}
