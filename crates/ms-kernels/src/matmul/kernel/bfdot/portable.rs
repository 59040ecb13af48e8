//! The order of `bfdot` in plain loops.

use super::super::{Kernel, Order, Side, Source, Tile, portable};
use super::{GRANULE, add_pair};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

pub(super) const MR: usize = 6;
pub(super) const NR: usize = 16;

/// # Safety
/// As for [`Kernel::tile`].
#[inline(always)]
pub(super) unsafe fn tile(tile: &Tile<f32>) {
    // SAFETY: the caller's promise covers the start, the panels and the store; rows of `a` past `rows` are not read.
    unsafe {
        let mut sums = portable::load_start(tile);
        for k in (0..tile.steps).step_by(2) {
            let b: &[[f32; NR]; 2] = &*tile.b.add(k * NR).cast();
            for (i, row) in sums.iter_mut().enumerate().take(tile.rows) {
                let a = tile.a.add(i * tile.a_row + k * tile.a_step);
                let a = [*a, *a.add(tile.a_step)];
                for j in 0..NR {
                    row[j] = add_pair(row[j], a, [b[0][j], b[1][j]]);
                }
            }
        }
        portable::finish(tile, &mut sums);
    }
}

impl Kernel for Portable {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const GRANULE: usize = GRANULE;
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
