//! The order of `bfdot` in the loops of [`super::portable`], compiled for AVX2.

use super::super::avx2::Avx2 as Pair;
use super::super::{Kernel, Tile, with_panels_of};
use super::{GRANULE, portable};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(tile: &Tile<f32>) {
    // SAFETY: the caller's promise.
    unsafe { portable::tile(tile) }
}

// Panels are as wide as those of the plain loops.
with_panels_of!(Pair: Avx2, GRANULE, t => tile(t));
