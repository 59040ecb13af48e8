//! The AMX summation order in plain loops.

use half::bf16;

use super::super::{Kernel, Order, Side, Source, Store, Tile, portable};
use super::TILE_TERMS;
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

pub(super) const MR: usize = 3;
pub(super) const NR: usize = 16;

/// # Safety
/// As for [`Kernel::tile`].
#[inline(always)]
pub(super) unsafe fn tile(tile: &Tile<f32>) {
    let mut sums = [[0f32; NR]; MR];
    let last = tile.rows.saturating_sub(1);
    // SAFETY: the caller's promise covers the start, the panels and the store.
    unsafe {
        if let Some((from, stride)) = tile.start {
            for (i, row) in sums.iter_mut().enumerate().take(tile.rows) {
                row[..tile.cols].copy_from_slice(std::slice::from_raw_parts(from.add(i * stride), tile.cols));
            }
        }
        for first in (0..tile.steps).step_by(TILE_TERMS) {
            let (mut even, mut odd) = ([[0f32; NR]; MR], [[0f32; NR]; MR]);
            for k in (first..first + TILE_TERMS).step_by(2) {
                let b: &[[f32; NR]; 2] = &*tile.b.add(k * NR).cast();
                for i in 0..MR {
                    // Rows that do not exist repeat the last one; nobody reads their sums.
                    let a = tile.a.add(i.min(last) * tile.a_row + k * tile.a_step);
                    let (a_even, a_odd) = (*a, *a.add(tile.a_step));
                    for j in 0..NR {
                        even[i][j] = a_even.mul_add(b[0][j], even[i][j]);
                    }
                    for j in 0..NR {
                        odd[i][j] = a_odd.mul_add(b[1][j], odd[i][j]);
                    }
                }
            }
            for i in 0..MR {
                for j in 0..NR {
                    sums[i][j] += even[i][j] + odd[i][j];
                }
            }
        }
        finish(tile, &mut sums);
    }
}

/// Writes the sums of a tile.
///
/// # Safety
/// As for [`Kernel::tile`].
#[inline(always)]
unsafe fn finish(tile: &Tile<f32>, sums: &mut [[f32; NR]; MR]) {
    for (i, row) in sums.iter_mut().enumerate().take(tile.rows) {
        if !tile.bias.is_null() {
            for (j, v) in row.iter_mut().enumerate() {
                // SAFETY: a bias that is not null has NR values.
                *v += unsafe { *tile.bias.add(j) };
            }
        }
        // SAFETY: `rows` rows of `cols` values are writable by the caller's promise.
        unsafe {
            match tile.store {
                Store::F32 { to, stride } => {
                    let to = std::slice::from_raw_parts_mut(to.add(i * stride), tile.cols);
                    to.copy_from_slice(&row[..tile.cols]);
                }
                Store::Bf16 { to, stride } => {
                    let to = std::slice::from_raw_parts_mut(to.add(i * stride), tile.cols);
                    for (to, v) in to.iter_mut().zip(row) {
                        *to = <bf16 as Element>::from_f32(*v);
                    }
                }
            }
        }
    }
}

impl Kernel for Portable {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const GRANULE: usize = TILE_TERMS;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = 384;
    type Packed = f32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { portable::pack_contiguous(source, side.width::<Self>(), to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { portable::pack_strided(source, side.width::<Self>(), to) }
    }

    unsafe fn tile(t: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe { tile(t) }
    }
}
