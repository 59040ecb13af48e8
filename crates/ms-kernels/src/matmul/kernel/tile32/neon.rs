//! The AMX summation order with NEON: 6 x 16 in twenty-four registers, first the even terms of a tile, then the odd ones, while
//! the sums wait in the first-level cache.

use std::arch::aarch64::*;

use super::super::neon::{MR, NR, Neon as Pair, VECTORS, finish, load, start, store};
use super::super::{Kernel, Order, Side, Source, Store, Tile, each_row, portable};
use super::TILE_TERMS;
use crate::Element;

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

impl Kernel for Neon {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const GRANULE: usize = TILE_TERMS;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = Pair::DEPTH;
    const BLOCK_ROWS: usize = Pair::BLOCK_ROWS;
    type Packed = f32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { Pair::pack_contiguous(source, side, to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { Pair::pack_strided(source, side, to) }
    }

    unsafe fn tile(tile: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe {
            match tile.rows {
                1 => rows::<1>(tile),
                2 => rows::<2>(tile),
                3 => rows::<3>(tile),
                4 => rows::<4>(tile),
                5 => rows::<5>(tile),
                _ => rows::<6>(tile),
            }
        }
    }
}
