//! AVX2 with fused multiply-add: tiles of 6 x 16 in twelve registers, operands widened to f32 in the panels.

use std::arch::x86_64::*;

use super::{Kernel, Side, Source, Tile, portable};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

const MR: usize = 6;
const NR: usize = 16;

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize>(tile: &Tile<f32>) {
    // SAFETY: the caller's promise covers the start, the panels and the store.
    unsafe {
        let mut sums = portable::load_start(tile);
        let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
        for i in 0..ROWS {
            acc[i] = [_mm256_loadu_ps(sums[i].as_ptr()), _mm256_loadu_ps(sums[i].as_ptr().add(8))];
        }
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.steps {
            let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
            for i in 0..ROWS {
                let v = _mm256_broadcast_ss(&*a.add(i * tile.a_row));
                acc[i][0] = _mm256_fmadd_ps(v, b0, acc[i][0]);
                acc[i][1] = _mm256_fmadd_ps(v, b1, acc[i][1]);
            }
            a = a.wrapping_add(tile.a_step);
            b = b.wrapping_add(NR);
        }
        for i in 0..ROWS {
            _mm256_storeu_ps(sums[i].as_mut_ptr(), acc[i][0]);
            _mm256_storeu_ps(sums[i].as_mut_ptr().add(8), acc[i][1]);
        }
        portable::finish(tile, &mut sums);
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_contiguous<E: Element>(source: Source<E>, width: usize, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { portable::pack_contiguous(source, width, to) }
}

/// # Safety
/// As for [`Kernel::pack_strided`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_strided<E: Element>(source: Source<E>, width: usize, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { portable::pack_strided(source, width, to) }
}

impl Kernel for Avx2 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 384;
    type Packed = f32;

    #[inline(always)]
    fn fetch(at: *const i8) {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at) };
    }

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack_contiguous(source, side.width::<Self>(), to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack_strided(source, side.width::<Self>(), to) }
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
