//! The AMX summation order with AVX2 and fused multiply-add: 6 x 16 in twelve registers, first the even terms of a tile, then
//! the odd ones, while the sums wait in the first-level cache.

use std::arch::x86_64::*;

use super::super::avx2::{Avx2 as Pair, MR, NR, finish, start};
use super::super::{Kernel, Store, Tile, by_rows, each_row, portable, with_panels_of};
use super::TILE_TERMS;
use crate::narrow::avx2::to_bf16;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Sums of every second term of a tile, from `a` and `b` on; rows of `a` are `a_row` apart, its terms `a_step`.
///
/// # Safety
/// The terms must be readable.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn half<const ROWS: usize>(
    mut a: *const f32,
    (a_row, a_step): (usize, usize),
    mut b: *const f32,
) -> [[__m256; 2]; MR] {
    let mut acc = [[_mm256_setzero_ps(); 2]; MR];
    for _ in 0..TILE_TERMS / 2 {
        // SAFETY: the caller's promise.
        unsafe {
            let bv = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(NR / 2))];
            each_row!(I < ROWS, {
                let v = _mm256_broadcast_ss(&*a.add(I * a_row));
                acc[I][0] = _mm256_fmadd_ps(v, bv[0], acc[I][0]);
                acc[I][1] = _mm256_fmadd_ps(v, bv[1], acc[I][1]);
            });
        }
        a = a.wrapping_add(2 * a_step);
        b = b.wrapping_add(2 * NR);
    }
    acc
}

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize>(tile: &Tile<f32>) {
    let mut sums = [[_mm256_setzero_ps(); 2]; MR];
    let strides = (tile.a_row, tile.a_step);
    // SAFETY: steps, panels, start and store are the caller's promise; steps come in whole tiles.
    unsafe {
        start!(tile, ROWS, sums);
        for first in (0..tile.steps).step_by(TILE_TERMS) {
            let (a, b) = (tile.a.wrapping_add(first * tile.a_step), tile.b.wrapping_add(first * NR));
            let even = half::<ROWS>(a, strides, b);
            let odd = half::<ROWS>(a.wrapping_add(tile.a_step), strides, b.wrapping_add(NR));
            each_row!(I < ROWS, {
                for j in 0..2 {
                    sums[I][j] = _mm256_add_ps(sums[I][j], _mm256_add_ps(even[I][j], odd[I][j]));
                }
            });
        }
        finish!(tile, ROWS, sums);
    }
}

with_panels_of!(Pair: Avx2, TILE_TERMS, tile => by_rows!(tile, rows));
