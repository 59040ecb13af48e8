//! Rounding to eight bits and the sums of a row, for any instruction set.

use std::hint::black_box;

use bytemuck::{Pod, Zeroable};

use crate::Element;
use crate::rms_norm::lane_sum;

/// Elements of a line: a cache line of the weight.
pub(super) const LINE: usize = ms_operands::INT8_LINE;
pub(super) const LANES: usize = 16;
/// Neighbours whose products are summed in whole numbers.
const FOUR: usize = LINE / LANES;

/// The byte that stands for zero.
pub(super) const ZERO: i32 = 128;
const LEVELS: f32 = 127.0;

/// 64 elements of a row of `x`, rounded to `scale · (byte − 128)`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; LINE]);

/// Rows of `x` made ready: the first line of all rows, then the next one, and the scale of each.
#[derive(Clone, Copy)]
pub(super) struct Few<'a> {
    pub(super) lines: &'a [Line],
    pub(super) scales: &'a [f32],
}

/// Scale and its inverse for the largest magnitude of some values; NaN if one of them is NaN or infinite.
#[inline(always)]
pub(super) fn scale<E: Element>(values: &[E]) -> (f32, f32) {
    // As integers, the magnitudes of infinities and NaN are above all others.
    let largest = values.iter().fold(0u32, |m, v| m.max(v.to_f32().to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(largest);
    if !max.is_finite() {
        return (f32::NAN, 0.0);
    }
    // What is too small to have an inverse is zero.
    if max < 1e-35 { (0.0, 0.0) } else { (max / LEVELS, LEVELS / max) }
}

#[inline(always)]
pub(super) fn code<E: Element>(value: E, inverse: f32) -> i32 {
    // 1.5 · 2^23: adding it leaves the nearest whole number, ties to even, in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let code = value.to_f32().mul_add(inverse, SHIFT).to_bits().wrapping_sub(SHIFT.to_bits());
    // Where there is no scale the code is any, but stays in range.
    code.cast_signed().clamp(-127, 127)
}

#[inline(always)]
pub(super) fn encode<E: Element>(bytes: &mut [u8], row: &[E]) {
    let (scale, inverse) = scale(row);
    let (codes, end) = bytes.split_at_mut(bytes.len() - LINE);
    for (to, v) in codes.iter_mut().zip(row) {
        *to = (code(*v, inverse) as i8).cast_unsigned();
    }
    codes[row.len()..].fill(0);
    end.fill(0);
    end[..4].copy_from_slice(&scale.to_le_bytes());
}

/// The scale of a row, from its last line.
#[inline(always)]
pub(super) fn scale_of(bytes: &[u8]) -> f32 {
    let end = &bytes[bytes.len() - LINE..];
    f32::from_le_bytes([end[0], end[1], end[2], end[3]])
}

/// Row `i` of `m`.
#[inline(always)]
pub(super) fn few_rows<E: Element>(lines: &mut [Line], scales: &mut [f32], x: &[E], i: usize, m: usize) {
    let own = lines[i..].iter_mut().step_by(m).zip(scales[i..].iter_mut().step_by(m));
    for ((line, to), x) in own.zip(x.chunks(LINE)) {
        let (scale, inverse) = scale(x);
        *to = scale;
        line.0 = [ZERO as u8; LINE];
        for (to, v) in line.0.iter_mut().zip(x) {
            *to = (code(*v, inverse) + ZERO) as u8;
        }
    }
}

/// The sums of one row of the weight, `stride` bytes, with every row of `x`.
#[inline(always)]
pub(super) fn products(sums: &mut [f32], x: Few<'_>, row: &[u8], stride: usize) {
    let (lines, scale) = (stride / LINE - 1, scale_of(row));
    let (codes, m) = (row.as_chunks::<LINE>().0, sums.len());
    for (i, sum) in sums.iter_mut().enumerate() {
        let mut acc = [0f32; LANES];
        let few = x.lines[i..].iter().step_by(m).zip(x.scales[i..].iter().step_by(m));
        for ((line, scale), codes) in few.zip(&codes[..lines]) {
            for l in 0..LANES {
                let mut whole = 0;
                for t in 0..FOUR {
                    let w = i32::from(codes[FOUR * l + t].cast_signed());
                    whole += w * (i32::from(line.0[FOUR * l + t]) - ZERO);
                }
                acc[l] = (whole as f32).mul_add(*scale, acc[l]);
            }
        }
        // Seen as an array in memory the lanes stay in a register above.
        *sum = lane_sum(black_box(acc)) * scale;
    }
}
