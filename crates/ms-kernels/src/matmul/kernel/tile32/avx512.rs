//! The AMX summation order with AVX-512: 6 x 32 in 24 registers, twelve of even terms and twelve of odd ones.

use std::arch::x86_64::*;

use super::super::avx512::pack::{self, first};
use super::super::avx512::to_bf16;
use super::super::{Kernel, Order, Side, Source, Store, Tile, by_rows, each_row};
use super::TILE_TERMS;
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

const MR: usize = 6;
const NR: usize = 32;

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows<const ROWS: usize>(tile: &Tile<f32>) {
    let mask = [first(tile.cols), first(tile.cols.saturating_sub(16))];
    let mut sums = [[_mm512_setzero_ps(); 2]; MR];
    // SAFETY: masks keep loads and stores inside the columns that exist; steps, panels, start and store are the
    // caller's promise.
    unsafe {
        if let Some((from, stride)) = tile.start {
            for (i, sums) in sums.iter_mut().enumerate().take(ROWS) {
                let from = from.wrapping_add(i * stride);
                *sums = [
                    _mm512_maskz_loadu_ps(mask[0], from),
                    _mm512_maskz_loadu_ps(mask[1], from.wrapping_add(16)),
                ];
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = (tile.a_row, tile.a_step);
        for _ in 0..tile.steps / TILE_TERMS {
            let mut even = [[_mm512_setzero_ps(); 2]; MR];
            let mut odd = [[_mm512_setzero_ps(); 2]; MR];
            for _ in 0..TILE_TERMS / 2 {
                let bv = [_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16))];
                each_row!(I < ROWS, {
                    let v = _mm512_set1_ps(*a.add(I * a_row));
                    even[I][0] = _mm512_fmadd_ps(v, bv[0], even[I][0]);
                    even[I][1] = _mm512_fmadd_ps(v, bv[1], even[I][1]);
                });
                let bv = [_mm512_loadu_ps(b.add(NR)), _mm512_loadu_ps(b.add(NR + 16))];
                each_row!(I < ROWS, {
                    let v = _mm512_set1_ps(*a.add(a_step + I * a_row));
                    odd[I][0] = _mm512_fmadd_ps(v, bv[0], odd[I][0]);
                    odd[I][1] = _mm512_fmadd_ps(v, bv[1], odd[I][1]);
                });
                a = a.wrapping_add(2 * a_step);
                b = b.wrapping_add(2 * NR);
            }
            for i in 0..ROWS {
                for j in 0..2 {
                    sums[i][j] = _mm512_add_ps(sums[i][j], _mm512_add_ps(even[i][j], odd[i][j]));
                }
            }
        }
        for (i, sums) in sums.iter_mut().enumerate().take(ROWS) {
            for j in 0..2 {
                if !tile.bias.is_null() {
                    sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(tile.bias.add(16 * j)));
                }
                match tile.store {
                    Store::F32 { to, stride } => {
                        _mm512_mask_storeu_ps(to.wrapping_add(i * stride + 16 * j), mask[j], sums[j]);
                    }
                    Store::Bf16 { to, stride } => {
                        let to = to.wrapping_add(i * stride + 16 * j).cast();
                        _mm256_mask_storeu_epi16(to, mask[j], to_bf16(sums[j]));
                    }
                }
            }
        }
    }
}

impl Kernel for Avx512 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const GRANULE: usize = TILE_TERMS;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = 256;
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
        unsafe { by_rows!(tile, rows) }
    }
}
