//! The order of tiles with AVX2 and fused multiply-add: the portable loops, which fit its sixteen registers.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::super::{Kernel, Order, Side, Source, Tile, avx2 as pair};
use super::{TILE_TERMS, portable};
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
    const GRANULE: usize = TILE_TERMS;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = 384;
    type Packed = f32;

    #[inline(always)]
    fn fetch(at: *const i8) {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at) };
    }

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pair::pack_contiguous(source, side.width::<Self>(), to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pair::pack_strided(source, side.width::<Self>(), to) }
    }

    unsafe fn tile(t: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe { tile(t) }
    }
}
