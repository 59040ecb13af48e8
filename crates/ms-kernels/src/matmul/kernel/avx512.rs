//! AVX-512 without the bf16 dot product: tiles of 6 x 64 in 24 registers, operands widened to f32 in the panels.
//!
//! A step is ten loads for 24 multiply-adds, and fewer instructions matter where issue slots are scarce: on a virtual Ice
//! Lake, 24 multiply-adds with as many no-operations took half as long again as without. With `b` in the first-level cache
//! and `a` in the second, 6 x 64 and 8 x 48 reached 89 % of the peak there, 14 x 32 and 12 x 32 81 %; 8 x 48 divides fewer
//! model sizes. Steps are unrolled for the same reason. Broadcasts folded into the multiply-add were a third slower, because
//! each use loads again.

pub(crate) mod pack;

use std::arch::x86_64::*;

use pack::first;

use super::{Kernel, Side, Source, Store, Tile, each_row};
use crate::Element;
use crate::prefetch::fetch_to_write;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

pub(super) const MR: usize = pack::SIX;
pub(super) const NR: usize = 64;
/// Registers across a tile.
pub(super) const VECTORS: usize = NR / 16;
/// Steps that are written out in the loop over a panel.
pub(super) const UNROLL: usize = 4;
/// Steps for each row of the next tile's sums that is fetched: all of them at once would wait for each other.
pub(super) const STEPS_PER_ROW: usize = 16;
/// Steps that a panel of `a` is fetched ahead of its use: it comes from the second-level cache.
pub(super) const AHEAD: usize = 8;

/// Calls `$rows` for the rows and registers of columns of a tile. Tiles of fewer rows stand at an edge: all of their columns are
/// computed.
macro_rules! by_size {
    ($tile:ident, $rows:ident, $panel:ident) => {
        match ($tile.rows, $tile.cols.div_ceil(16)) {
            (6, 1) => $rows::<6, 1, $panel>($tile),
            (6, 2) => $rows::<6, 2, $panel>($tile),
            (6, 3) => $rows::<6, 3, $panel>($tile),
            (1, _) => $rows::<1, VECTORS, $panel>($tile),
            (2, _) => $rows::<2, VECTORS, $panel>($tile),
            (3, _) => $rows::<3, VECTORS, $panel>($tile),
            (4, _) => $rows::<4, VECTORS, $panel>($tile),
            (5, _) => $rows::<5, VECTORS, $panel>($tile),
            _ => $rows::<6, VECTORS, $panel>($tile),
        }
    };
}
pub(super) use by_size;

/// Stores the first columns of each row of a tile where masks allow it, as they are or rounded.
macro_rules! store_rows {
    ($tile:expr, $acc:expr, $mask:expr, $rows:ident x $wide:ident, $v:ident => $rounded:expr) => {
        match $tile.store {
            Store::F32 { to, stride } => {
                each_row!(I < $rows, {
                    let at = to.wrapping_add(I * stride);
                    for j in 0..$wide {
                        _mm512_mask_storeu_ps(at.wrapping_add(16 * j), $mask[j], $acc[I][j]);
                    }
                });
            }
            Store::Bf16 { to, stride } => {
                each_row!(I < $rows, {
                    let at = to.wrapping_add(I * stride).cast::<i16>();
                    for j in 0..$wide {
                        let $v = $acc[I][j];
                        _mm256_mask_storeu_epi16(at.wrapping_add(16 * j), $mask[j], $rounded);
                    }
                });
            }
        }
    };
}
pub(super) use store_rows;

/// Rounds to bf16, to nearest even; under flush-to-zero there is no denormal to treat.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn to_bf16(v: __m512) -> __m256i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    let all = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(all))
}

/// Masks of the columns of a tile, sixteen at a time.
#[inline(always)]
pub(super) fn column_masks(cols: usize) -> [__mmask16; VECTORS] {
    [
        first(cols),
        first(cols.saturating_sub(16)),
        first(cols.saturating_sub(32)),
        first(cols.saturating_sub(48)),
    ]
}

/// Sums of a row where they start.
///
/// # Safety
/// The masked elements must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_row(from: *const f32, mask: [__mmask16; VECTORS]) -> [__m512; VECTORS] {
    let mut row = [_mm512_setzero_ps(); VECTORS];
    for j in 0..VECTORS {
        // SAFETY: the mask leaves out what must not be read.
        row[j] = unsafe { _mm512_maskz_loadu_ps(mask[j], from.wrapping_add(16 * j)) };
    }
    row
}

/// Adds a bias to each finished row.
///
/// # Safety
/// `bias` must be null or hold `NR` values.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_bias(acc: &mut [[__m512; VECTORS]; MR], bias: *const f32) {
    if bias.is_null() {
        return;
    }
    for j in 0..VECTORS {
        // SAFETY: a bias that is not null has NR values.
        let bias = unsafe { _mm512_loadu_ps(bias.add(16 * j)) };
        for i in 0..MR {
            acc[i][j] = _mm512_add_ps(acc[i][j], bias);
        }
    }
}

/// Fetches a row of a tile's sums into the first-level cache.
#[inline(always)]
pub(super) fn fetch_row(at: *const f32) {
    for j in 0..VECTORS {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(16 * j).cast()) };
    }
}

/// The tile with `ROWS` rows; the first `WIDE` registers of columns are computed. `PANEL` says that `a` is a panel.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows<const ROWS: usize, const WIDE: usize, const PANEL: bool>(tile: &Tile<f32>) {
    let mut acc = [[_mm512_setzero_ps(); VECTORS]; MR];
    let mask = column_masks(tile.cols);
    // SAFETY: masks keep loads and stores inside the columns that exist; steps, panels, start and store are the
    // caller's promise. Prefetches may point anywhere.
    unsafe {
        if let Some((from, stride)) = tile.start {
            each_row!(I < ROWS, {
                acc[I] = load_row(from.wrapping_add(I * stride), mask);
            });
        }
        let (mut next, next_stride) = tile.next;
        let (mut target, target_bytes, target_stride) = tile.store.bytes::<NR>();
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = if PANEL { (1, MR) } else { (tile.a_row, tile.a_step) };
        let mut left = tile.steps;
        macro_rules! step {
            ($s:literal) => {{
                let b = b.add($s * NR);
                let mut bv = [_mm512_setzero_ps(); VECTORS];
                for j in 0..WIDE {
                    bv[j] = _mm512_loadu_ps(b.add(16 * j));
                }
                each_row!(I < ROWS, {
                    let v = _mm512_set1_ps(*a.add($s * a_step + I * a_row));
                    for j in 0..WIDE {
                        acc[I][j] = _mm512_fmadd_ps(v, bv[j], acc[I][j]);
                    }
                });
            }};
        }
        if PANEL {
            while left >= STEPS_PER_ROW {
                fetch_row(next);
                next = next.wrapping_add(next_stride);
                fetch_to_write(target, target_bytes);
                target = target.wrapping_add(target_stride);
                for _ in 0..STEPS_PER_ROW / UNROLL {
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR + 16).cast());
                    step!(0);
                    step!(1);
                    step!(2);
                    step!(3);
                    a = a.add(UNROLL * MR);
                    b = b.add(UNROLL * NR);
                }
                left -= STEPS_PER_ROW;
            }
        } else {
            while left >= UNROLL {
                fetch_row(next);
                next = next.wrapping_add(next_stride);
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a = a.add(UNROLL * a_step);
                b = b.add(UNROLL * NR);
                left -= UNROLL;
            }
        }
        while left > 0 {
            step!(0);
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(NR);
            left -= 1;
        }
        add_bias(&mut acc, tile.bias);
        store_rows!(tile, acc, mask, ROWS x WIDE, v => to_bf16(v));
    }
}

/// # Safety
/// As for [`Kernel::tile`].
unsafe fn any<const PANEL: bool>(tile: &Tile<f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        by_size!(tile, rows, PANEL);
    }
}

impl Kernel for Avx512 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 128;
    const COLUMN_STEP: usize = 16;
    type Packed = f32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match side {
                Side::Left => pack::lines_to_six(source, to),
                Side::Right => pack::lines_to_panels::<E, NR>(source, to),
            }
        }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match side {
                Side::Left => pack::terms_to_six(source, to),
                Side::Right => pack::terms_to_panels::<E, NR>(source, to),
            }
        }
    }

    unsafe fn tile(tile: &Tile<f32>) {
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
