//! NEON: tiles of 6 x 16 in twenty-four registers of four lanes, operands widened to f32 in the panels.
//!
//! Kunpeng 920, the usual host of Ascend devices, has a second-level cache of half a megabyte, like Zen 3: blocks are those of
//! AVX2. The six rows of `a` are taken from the lanes of two registers, so a step has six loads for its 24 multiply-adds.

use std::arch::aarch64::*;

use super::{Kernel, Side, Source, Store, Tile, by_rows, each_row, packing_by_width, portable};
use crate::Element;
use crate::element::is_bf16;
use crate::prefetch::fetch;

#[derive(Clone, Copy)]
pub(crate) struct Neon;

pub(super) const MR: usize = 6;
pub(super) const NR: usize = 16;
/// Values of a register.
pub(super) const VECTOR: usize = 4;
/// Registers of a row of a tile.
pub(super) const VECTORS: usize = NR / VECTOR;
/// Steps for each row of the next tile's sums that is fetched.
const STEPS_PER_ROW: usize = 16;
/// Steps that a panel of `a` is fetched ahead of its use: it comes from the second-level cache.
const AHEAD: usize = 16;
/// Terms of a strided operand that are packed at a time: the lines of memory that they touch stay in the first-level cache.
const STRIP: usize = 32;

/// Sixteen values.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn load(from: *const f32) -> [float32x4_t; VECTORS] {
    // SAFETY: the caller's promise.
    unsafe { std::array::from_fn(|v| vld1q_f32(from.add(v * VECTOR))) }
}

/// # Safety
/// Sixteen values must have room.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn store(to: *mut f32, values: [float32x4_t; VECTORS]) {
    for (v, value) in values.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(to.add(v * VECTOR), value) };
    }
}

/// Sums of a tile where they start, in `$sums`: registers, which a function would put in memory.
macro_rules! start {
    ($tile:ident, $rows:ident, $sums:ident) => {
        if let Some((from, stride)) = $tile.start {
            if $tile.cols == NR {
                each_row!(I < $rows, { $sums[I] = load(from.wrapping_add(I * stride)) });
            } else {
                let narrow = portable::load_start($tile);
                each_row!(I < $rows, { $sums[I] = load(narrow[I].as_ptr()) });
            }
        }
    };
}
pub(super) use start;

/// Writes the sums of a tile, with its bias.
macro_rules! finish {
    ($tile:ident, $rows:ident, $sums:ident) => {
        match $tile.store {
            Store::F32 { to, stride } if $tile.cols == NR && $tile.bias.is_null() => {
                each_row!(I < $rows, { store(to.wrapping_add(I * stride), $sums[I]) });
            }
            _ => {
                let mut narrow = [[0f32; NR]; MR];
                each_row!(I < $rows, { store(narrow[I].as_mut_ptr(), $sums[I]) });
                portable::finish($tile, &mut narrow);
            }
        }
    };
}
pub(super) use finish;

/// The tile with `ROWS` rows; `PANEL` says that `a` has six rows side by side.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "neon")]
unsafe fn rows<const ROWS: usize, const PANEL: bool>(tile: &Tile<f32>) {
    let mut acc = [[vdupq_n_f32(0.0); VECTORS]; MR];
    // SAFETY: steps, panels, start and store are the caller's promise, as are six rows of `a`. Fetches may point anywhere.
    unsafe {
        start!(tile, ROWS, acc);
        let (mut next, next_stride) = tile.next;
        let (mut a, mut b) = (tile.a, tile.b);
        for step in 0..tile.steps {
            if step % STEPS_PER_ROW == 0 {
                fetch(next);
                next = next.wrapping_add(next_stride);
            }
            let bv = load(b);
            if PANEL {
                if step % 2 == 0 {
                    fetch(a.wrapping_add(AHEAD * MR));
                }
                let (first, last) = (vld1q_f32(a), vld1_f32(a.add(VECTOR)));
                each_row!(I < ROWS, {
                    for v in 0..VECTORS {
                        acc[I][v] = match I {
                            0 => vfmaq_laneq_f32::<0>(acc[I][v], bv[v], first),
                            1 => vfmaq_laneq_f32::<1>(acc[I][v], bv[v], first),
                            2 => vfmaq_laneq_f32::<2>(acc[I][v], bv[v], first),
                            3 => vfmaq_laneq_f32::<3>(acc[I][v], bv[v], first),
                            4 => vfmaq_lane_f32::<0>(acc[I][v], bv[v], last),
                            _ => vfmaq_lane_f32::<1>(acc[I][v], bv[v], last),
                        };
                    }
                });
                a = a.wrapping_add(tile.a_step);
            } else {
                each_row!(I < ROWS, {
                    let row = vld1q_dup_f32(a.add(I * tile.a_row));
                    for v in 0..VECTORS {
                        acc[I][v] = vfmaq_f32(acc[I][v], bv[v], row);
                    }
                });
                a = a.wrapping_add(tile.a_step);
            }
            b = b.wrapping_add(NR);
        }
        finish!(tile, ROWS, acc);
    }
}

/// Transposes a 4 x 4 block of 32-bit elements.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn transpose(r: [uint32x4_t; VECTOR]) -> [uint32x4_t; VECTOR] {
    let [a, b, c, d] = r;
    let two = |x, y| [vtrn1q_u32(x, y), vtrn2q_u32(x, y)].map(|v| vreinterpretq_u64_u32(v));
    let ([ab0, ab1], [cd0, cd1]) = (two(a, b), two(c, d));
    [vtrn1q_u64(ab0, cd0), vtrn1q_u64(ab1, cd1), vtrn2q_u64(ab0, cd0), vtrn2q_u64(ab1, cd1)]
        .map(|v| vreinterpretq_u32_u64(v))
}

/// Stores a step of up to four lines: as many as a panel of `W` has from line `line` on.
///
/// # Safety
/// The panel must have room for them.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store_group<const W: usize>(to: *mut f32, line: usize, v: uint32x4_t) {
    const { assert!(W.is_multiple_of(2), "whole and half registers fill a panel") };
    // SAFETY: the caller's promise.
    unsafe {
        if line % W + VECTOR <= W {
            vst1q_f32(to, vreinterpretq_f32_u32(v));
        } else {
            vst1_f32(to, vget_low_f32(vreinterpretq_f32_u32(v)));
        }
    }
}

/// A register of elements from `from` on; `count` of them exist, the rest is zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_some<E: Element>(from: *const E, count: usize) -> uint32x4_t {
    let mut some = [E::default(); 8];
    let all = size_of::<uint32x4_t>() / size_of::<E>();
    // SAFETY: the caller's promise; eight elements have room for what a register has.
    unsafe {
        if count >= all {
            return vld1q_u32(from.cast());
        }
        std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
        vld1q_u32(some.as_ptr().cast())
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "neon")]
unsafe fn pack_contiguous<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    // Pairs of bf16 are transposed together and widened afterwards.
    let in_register = size_of::<uint32x4_t>() / size_of::<E>();
    let upper = vdupq_n_u32(0xffff_0000);
    let mut line = 0;
    while line < source.lines.next_multiple_of(W) {
        let group = VECTOR.min(W - line % W);
        let exist = source.lines.saturating_sub(line).min(group);
        let to = to.wrapping_add(line / W * W * source.filled + line % W);
        for k in (0..source.filled).step_by(in_register) {
            let from = source.data.wrapping_add(line * source.stride + k);
            let terms = source.terms.saturating_sub(k);
            let mut r = [vdupq_n_u32(0); VECTOR];
            for (i, r) in r.iter_mut().enumerate().take(exist) {
                // SAFETY: the line exists and has the terms.
                *r = unsafe { load_some(from.wrapping_add(i * source.stride), terms) };
            }
            for (q, v) in transpose(r).into_iter().enumerate() {
                let put = |term: usize, v: uint32x4_t| {
                    if term < source.filled {
                        let to = to.wrapping_add(source.order.position(term) * W);
                        // SAFETY: the term is one of the panel's, which has room.
                        unsafe { store_group::<W>(to, line, v) };
                    }
                };
                if is_bf16::<E>() {
                    put(k + 2 * q, vshlq_n_u32::<16>(v));
                    put(k + 2 * q + 1, vandq_u32(v, upper));
                } else {
                    put(k + q, v);
                }
            }
        }
        line += group;
    }
}

/// Four elements as f32; `count` of them exist, the rest is zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_wide<E: Element>(from: *const E, count: usize) -> uint32x4_t {
    let mut some = [E::default(); VECTOR];
    // SAFETY: the caller's promise.
    unsafe {
        let from = if count >= VECTOR {
            from
        } else {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
            some.as_ptr()
        };
        if is_bf16::<E>() { vshll_n_u16::<16>(vld1_u16(from.cast())) } else { vld1q_u32(from.cast()) }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`], with `W` the width.
#[target_feature(enable = "neon")]
unsafe fn pack_strided<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    for k0 in (0..source.filled).step_by(STRIP) {
        let mut line = 0;
        while line < source.lines.next_multiple_of(W) {
            let exist = source.lines.saturating_sub(line);
            let to = to.wrapping_add(line / W * W * source.filled + line % W);
            for k in k0..source.filled.min(k0 + STRIP) {
                let count = if k < source.terms { exist } else { 0 };
                // SAFETY: no more is read than exists; the term is one of the panel's, which has room.
                unsafe {
                    let v = load_wide(source.data.wrapping_add(k * source.stride + line), count);
                    store_group::<W>(to.wrapping_add(source.order.position(k) * W), line, v);
                }
            }
            line += VECTOR.min(W - line % W);
        }
    }
}

impl Kernel for Neon {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 256;
    const BLOCK_ROWS: usize = 252;
    type Packed = f32;

    packing_by_width!();

    unsafe fn tile(tile: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe {
            // Only a tile of all rows reads six side by side: where there are fewer, what is beside them may be nobody's.
            if tile.a_row == 1 && tile.rows == MR {
                rows::<MR, true>(tile);
            } else {
                by_rows!(tile, rows, false);
            }
        }
    }
}
