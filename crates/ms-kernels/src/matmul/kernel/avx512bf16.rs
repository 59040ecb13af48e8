//! AVX-512 with the bf16 dot: tiles of 6 x 64 on pairs of bf16.
//!
//! The instruction sums the odd element of a pair first, then the even one, each with one rounding: the canonical
//! order, so the bits are those of the widened kernels.

use std::arch::x86_64::*;

use super::avx512::{
    MR, NR, STRIP, VECTORS, add_bias, column_masks, each_row, fetch_row, first, first32, group_lines,
    load_row, store_group, transpose,
};
use super::{Kernel, Side, Source, Store, Tile};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_contiguous<const W: usize>(source: Source<u16>, to: *mut u32) {
    let pairs = source.terms.div_ceil(2);
    for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
        let exist = source.lines.saturating_sub(line).min(group_lines::<W>());
        let both = source.lines > line + W;
        let to = to.wrapping_add(line / W * W * pairs + line % W);
        for p in (0..pairs).step_by(16) {
            let from = source.data.wrapping_add(line * source.stride + 2 * p);
            let to = to.wrapping_add(p * W);
            let mut r = [_mm512_setzero_si512(); 16];
            // SAFETY: lines from `line` on exist and have the terms; steps from `p` on are below `pairs`, and the panels have
            // room; a prefetch of any address is harmless.
            unsafe {
                // Written out where a block is whole: with a number of rows known only here the rows would be in memory.
                if exist == group_lines::<W>() && 2 * p + 32 <= source.terms {
                    for i in 0..group_lines::<W>() {
                        let from = from.wrapping_add(i * source.stride);
                        r[i] = _mm512_loadu_si512(from.cast());
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(32).cast());
                    }
                    transpose(&mut r);
                    for q in 0..16 {
                        store_group::<W>(to.wrapping_add(q * W).cast(), r[q], both, W * pairs);
                    }
                } else {
                    let terms = first32(source.terms - 2 * p);
                    for i in 0..exist {
                        r[i] = _mm512_maskz_loadu_epi16(terms, from.wrapping_add(i * source.stride).cast());
                    }
                    transpose(&mut r);
                    for q in 0..(pairs - p).min(16) {
                        store_group::<W>(to.wrapping_add(q * W).cast(), r[q], both, W * pairs);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`], with `W` the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_strided<const W: usize>(source: Source<u16>, to: *mut u32) {
    let pairs = source.terms.div_ceil(2);
    for p0 in (0..pairs).step_by(STRIP / 2) {
        for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
            let mask = first(source.lines.saturating_sub(line).min(group_lines::<W>()));
            let both = source.lines > line + W;
            let to = to.wrapping_add(line / W * W * pairs + line % W);
            for p in p0..pairs.min(p0 + STRIP / 2) {
                let odd_mask = if 2 * p + 1 < source.terms { mask } else { 0 };
                // SAFETY: the masks hold existing elements only; step p is below `pairs`; the panels have room.
                unsafe {
                    let at = source.data.wrapping_add(2 * p * source.stride + line);
                    let even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at.cast()));
                    let odd = _mm256_maskz_loadu_epi16(odd_mask, at.wrapping_add(source.stride).cast());
                    let odd = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(odd));
                    let to = to.wrapping_add(p * W).cast();
                    store_group::<W>(to, _mm512_or_si512(even, odd), both, W * pairs);
                }
            }
        }
    }
}

/// The tile with `ROWS` rows, of whose columns the first `WIDE` registers are computed.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn rows<const ROWS: usize, const WIDE: usize>(tile: &Tile<u32>) {
    // SAFETY: both types are 64 bytes of plain data.
    let pairs = |v: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
    let mut acc = [[_mm512_setzero_ps(); VECTORS]; MR];
    let mask = column_masks(tile.cols);
    // SAFETY: masks keep loads and stores inside the columns that exist; steps, panels, start and store are the
    // caller's promise.
    unsafe {
        if let Some((from, stride)) = tile.start {
            each_row!(I < ROWS, {
                acc[I] = load_row(from.wrapping_add(I * stride), mask);
            });
        }
        let (next, next_stride) = tile.next;
        for i in 0..ROWS {
            fetch_row(next.wrapping_add(i * next_stride));
        }
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.steps {
            let mut bv = [pairs(_mm512_setzero_si512()); VECTORS];
            for j in 0..WIDE {
                bv[j] = pairs(_mm512_loadu_si512(b.wrapping_add(16 * j).cast()));
            }
            each_row!(I < ROWS, {
                let v = pairs(_mm512_set1_epi32((*a.add(I * tile.a_row)).cast_signed()));
                for j in 0..WIDE {
                    acc[I][j] = _mm512_dpbf16_ps(acc[I][j], v, bv[j]);
                }
            });
            a = a.wrapping_add(tile.a_step);
            b = b.wrapping_add(NR);
        }
        add_bias(&mut acc, tile.bias);
        match tile.store {
            Store::F32 { to, stride } => {
                each_row!(I < ROWS, {
                    let at = to.wrapping_add(I * stride);
                    for j in 0..WIDE {
                        _mm512_mask_storeu_ps(at.wrapping_add(16 * j), mask[j], acc[I][j]);
                    }
                });
            }
            Store::Bf16 { to, stride } => {
                each_row!(I < ROWS, {
                    let at = to.wrapping_add(I * stride).cast::<i16>();
                    for j in 0..WIDE {
                        let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(acc[I][j]));
                        _mm256_mask_storeu_epi16(at.wrapping_add(16 * j), mask[j], rounded);
                    }
                });
            }
        }
    }
}

impl Kernel for Avx512Bf16 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 2;
    const DEPTH: usize = 128;
    const COLUMN_STEP: usize = 16;
    type Packed = u32;

    #[inline(always)]
    fn fetch(at: *const i8) {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at) };
    }

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if side == Side::Left {
                pack_contiguous::<MR>(source.bits(), to);
            } else {
                pack_contiguous::<NR>(source.bits(), to);
            }
        }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if side == Side::Left {
                pack_strided::<MR>(source.bits(), to);
            } else {
                pack_strided::<NR>(source.bits(), to);
            }
        }
    }

    unsafe fn tile(tile: &Tile<u32>) {
        // SAFETY: the caller's promise.
        unsafe {
            match (tile.rows, tile.cols.div_ceil(16)) {
                (6, 1) => rows::<6, 1>(tile),
                (6, 2) => rows::<6, 2>(tile),
                (6, 3) => rows::<6, 3>(tile),
                (1, _) => rows::<1, VECTORS>(tile),
                (2, _) => rows::<2, VECTORS>(tile),
                (3, _) => rows::<3, VECTORS>(tile),
                (4, _) => rows::<4, VECTORS>(tile),
                (5, _) => rows::<5, VECTORS>(tile),
                _ => rows::<6, VECTORS>(tile),
            }
        }
    }
}
