//! The order of `bfdot` in plain loops.

use super::super::{Kernel, Tile, portable, with_panels_of};
use super::{GRANULE, add_pair};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const NR: usize = portable::Portable::NR;

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

with_panels_of!(portable::Portable: Portable, GRANULE, t => tile(t));
