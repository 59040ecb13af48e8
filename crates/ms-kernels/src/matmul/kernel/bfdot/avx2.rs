//! The order of `bfdot` in the loops of [`super::portable`], compiled for AVX2.

use super::super::avx2::Avx2 as Pair;
use super::super::{Kernel, Order, Side, Source, Tile};
use super::{GRANULE, portable};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(tile: &Tile<f32>) {
    // SAFETY: the caller's promise.
    unsafe { portable::tile(tile) }
}

impl Kernel for Avx2 {
    const MR: usize = portable::MR;
    const NR: usize = portable::NR;
    const TERMS: usize = 1;
    const GRANULE: usize = GRANULE;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = Pair::DEPTH;
    const BLOCK_ROWS: usize = Pair::BLOCK_ROWS;
    type Packed = f32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise; both have panels of one width.
        unsafe { Pair::pack_contiguous(source, side, to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: as above.
        unsafe { Pair::pack_strided(source, side, to) }
    }

    unsafe fn tile(t: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe { tile(t) }
    }
}
