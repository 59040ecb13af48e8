//! AVX-512 with the bf16 dot product: tiles of 6 x 64 on pairs of bf16.
//!
//! The instruction adds the odd element of a pair first, then the even one, each with one rounding: the canonical order, so
//! the bits are those of the widened kernels.

use std::arch::x86_64::*;

use super::avx512::pack::{self, STRIP, first, first32, transpose};
use super::avx512::{
    AHEAD, MR, NR, STEPS_PER_ROW, UNROLL, VECTORS, add_bias, by_size, column_masks, fetch_row, load_row,
    store_rows,
};
use super::{Kernel, Side, Source, Store, Tile, each_row};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

/// Packs lines to panels of `NR` pairs.
///
/// # Safety
/// As for [`Kernel::pack_contiguous`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn lines_to_panels(source: Source<u16>, to: *mut u32) {
    let steps = source.terms.div_ceil(2);
    for line in (0..source.lines.next_multiple_of(NR)).step_by(16) {
        let to = to.wrapping_add(line / NR * NR * steps + line % NR);
        for p in (0..steps).step_by(16) {
            let to = to.wrapping_add(p * NR);
            // SAFETY: the caller's promise; steps from `p` on are below `steps`, and the panels have room.
            unsafe {
                let mut r = pack::pairs::<16>(&source, line, 2 * p);
                transpose(&mut r);
                if p + 16 <= steps {
                    for q in 0..16 {
                        _mm512_storeu_si512(to.wrapping_add(q * NR).cast(), r[q]);
                    }
                } else {
                    for q in 0..steps - p {
                        _mm512_storeu_si512(to.wrapping_add(q * NR).cast(), r[q]);
                    }
                }
            }
        }
    }
}

/// Where the first and the last sixteen pairs are of 32 elements of two terms.
const PAIRS: [[u16; 32]; 2] = {
    let mut lanes = [[0; 32]; 2];
    let mut i = 0;
    while i < 64 {
        lanes[i / 32][i % 32] = (i / 2 + i % 2 * 32) as u16;
        i += 1;
    }
    lanes
};

/// Packs strided terms to panels of `NR` pairs.
///
/// # Safety
/// As for [`Kernel::pack_strided`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn terms_to_panels(source: Source<u16>, to: *mut u32) {
    let steps = source.terms.div_ceil(2);
    // SAFETY: 32 numbers each.
    let [front, back] = unsafe { PAIRS.each_ref().map(|lanes| _mm512_loadu_si512(lanes.as_ptr().cast())) };
    for p0 in (0..steps).step_by(STRIP / 2) {
        for line in (0..source.lines.next_multiple_of(NR)).step_by(32) {
            let mask = first32(source.lines.saturating_sub(line));
            let to = to.wrapping_add(line / NR * NR * steps + line % NR);
            for p in p0..steps.min(p0 + STRIP / 2) {
                let odd_mask = if 2 * p + 1 < source.terms { mask } else { 0 };
                // SAFETY: the masks hold existing elements only; step p is below `steps`; the panels have room.
                unsafe {
                    let at = source.data.wrapping_add(2 * p * source.stride + line);
                    let even = _mm512_maskz_loadu_epi16(mask, at.cast());
                    let odd = _mm512_maskz_loadu_epi16(odd_mask, at.wrapping_add(source.stride).cast());
                    let to = to.wrapping_add(p * NR);
                    _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(even, front, odd));
                    _mm512_storeu_si512(
                        to.wrapping_add(16).cast(),
                        _mm512_permutex2var_epi16(even, back, odd),
                    );
                }
            }
        }
    }
}

/// Packs strided terms to panels of six pairs.
///
/// # Safety
/// As for [`Kernel::pack_strided`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn terms_to_six(source: Source<u16>, to: *mut u32) {
    let steps = source.terms.div_ceil(2);
    // SAFETY: 32 numbers.
    let front = unsafe { _mm512_loadu_si512(PAIRS[0].as_ptr().cast()) };
    for p in (0..steps).step_by(STRIP / 2) {
        for line in (0..source.lines).step_by(2 * MR) {
            let exist = first((source.lines - line).min(2 * MR));
            let mut rows = [_mm512_setzero_si512(); STRIP / 2];
            for i in 0..STRIP / 2 {
                let term = 2 * (p + i);
                let of = |term: usize| if term < source.terms { exist } else { 0 };
                let at = source.data.wrapping_add(term * source.stride + line);
                // SAFETY: the masks hold existing elements only.
                unsafe {
                    let even = _mm256_maskz_loadu_epi16(of(term), at.cast());
                    let odd = _mm256_maskz_loadu_epi16(of(term + 1), at.wrapping_add(source.stride).cast());
                    rows[i] = _mm512_permutex2var_epi16(
                        _mm512_castsi256_si512(even),
                        front,
                        _mm512_castsi256_si512(odd),
                    );
                }
            }
            let to = to.wrapping_add(line * steps + p * MR).cast::<i32>();
            // SAFETY: steps from `p` on are below `steps`; the panels have room.
            unsafe {
                pack::store_four(to, &rows, 0, steps - p);
                if line + MR < source.lines {
                    pack::store_four(to.wrapping_add(MR * steps), &rows, 1, steps - p);
                }
            }
        }
    }
}

/// The tile with `ROWS` rows; the first `WIDE` registers of columns are computed.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn rows<const ROWS: usize, const WIDE: usize, const PANEL: bool>(tile: &Tile<u32>) {
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
        let (mut next, next_stride) = tile.next;
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = if PANEL { (1, MR) } else { (tile.a_row, tile.a_step) };
        let mut left = tile.steps;
        macro_rules! step {
            ($s:literal) => {{
                let b = b.wrapping_add($s * NR);
                let mut bv = [pairs(_mm512_setzero_si512()); VECTORS];
                for j in 0..WIDE {
                    bv[j] = pairs(_mm512_loadu_si512(b.wrapping_add(16 * j).cast()));
                }
                each_row!(I < ROWS, {
                    let v = pairs(_mm512_set1_epi32((*a.add($s * a_step + I * a_row)).cast_signed()));
                    for j in 0..WIDE {
                        acc[I][j] = _mm512_dpbf16_ps(acc[I][j], v, bv[j]);
                    }
                });
            }};
        }
        while left >= STEPS_PER_ROW {
            fetch_row(next);
            next = next.wrapping_add(next_stride);
            for _ in 0..STEPS_PER_ROW / UNROLL {
                if PANEL {
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR + 16).cast());
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a = a.wrapping_add(UNROLL * a_step);
                b = b.wrapping_add(UNROLL * NR);
            }
            left -= STEPS_PER_ROW;
        }
        while left > 0 {
            step!(0);
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(NR);
            left -= 1;
        }
        add_bias(&mut acc, tile.bias);
        let bits = |v: __m256bh| std::mem::transmute::<__m256bh, __m256i>(v);
        store_rows!(tile, acc, mask, ROWS x WIDE, v => bits(_mm512_cvtneps_pbh(v)));
    }
}

/// # Safety
/// As for [`Kernel::tile`].
unsafe fn any<const PANEL: bool>(tile: &Tile<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        by_size!(tile, rows, PANEL);
    }
}

impl Kernel for Avx512Bf16 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 2;
    const DEPTH: usize = 128;
    const COLUMN_STEP: usize = 16;
    type Packed = u32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if side == Side::Left {
                pack::pairs_to_six(source.bits(), to);
            } else {
                lines_to_panels(source.bits(), to);
            }
        }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if side == Side::Left {
                terms_to_six(source.bits(), to);
            } else {
                terms_to_panels(source.bits(), to);
            }
        }
    }

    unsafe fn tile(tile: &Tile<u32>) {
        // SAFETY: the caller's promise.
        unsafe {
            if tile.a_row == 1 && tile.a_step == MR {
                any::<true>(tile);
            } else {
                any::<false>(tile);
            }
        }
    }
}
