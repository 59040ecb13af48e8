//! The AMX summation order with NEON: 6 x 16 in twenty-four registers, first the even terms of a tile, then the odd ones, while
//! the sums wait in the first-level cache.

use std::arch::aarch64::*;

use super::super::neon::{MR, NR, Neon as Pair, VECTORS, finish, load, start, store};
use super::super::{Kernel, Store, Tile, by_rows, each_row, portable, with_panels_of};
use super::TILE_TERMS;

#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Sums of every second term of a tile, from `a` and `b` on; rows of `a` are `a_row` apart, its terms `a_step`.
///
/// # Safety
/// The terms must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn half<const ROWS: usize>(
    mut a: *const f32,
    (a_row, a_step): (usize, usize),
    mut b: *const f32,
) -> [[float32x4_t; VECTORS]; MR] {
    let mut acc = [[vdupq_n_f32(0.0); VECTORS]; MR];
    for _ in 0..TILE_TERMS / 2 {
        // SAFETY: the caller's promise.
        unsafe {
            let bv = load(b);
            each_row!(I < ROWS, {
                let row = vld1q_dup_f32(a.add(I * a_row));
                for v in 0..VECTORS {
                    acc[I][v] = vfmaq_f32(acc[I][v], bv[v], row);
                }
            });
        }
        a = a.wrapping_add(2 * a_step);
        b = b.wrapping_add(2 * NR);
    }
    acc
}

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "neon")]
unsafe fn rows<const ROWS: usize>(tile: &Tile<f32>) {
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; MR];
    let strides = (tile.a_row, tile.a_step);
    // SAFETY: steps, panels, start and store are the caller's promise; steps come in whole tiles.
    unsafe {
        start!(tile, ROWS, sums);
        for first in (0..tile.steps).step_by(TILE_TERMS) {
            let (a, b) = (tile.a.wrapping_add(first * tile.a_step), tile.b.wrapping_add(first * NR));
            let even = half::<ROWS>(a, strides, b);
            let odd = half::<ROWS>(a.wrapping_add(tile.a_step), strides, b.wrapping_add(NR));
            each_row!(I < ROWS, {
                for v in 0..VECTORS {
                    sums[I][v] = vaddq_f32(sums[I][v], vaddq_f32(even[I][v], odd[I][v]));
                }
            });
        }
        finish!(tile, ROWS, sums);
    }
}

with_panels_of!(Pair: Neon, TILE_TERMS, tile => by_rows!(tile, rows));
