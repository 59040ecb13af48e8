//! Tiles of [`super::product`] with AVX2: 16-bit products, summed in pairs.

use std::arch::x86_64::*;

use super::{Body, LINE, Rows, Tile};
use crate::matmul::kernel::avx2::transpose;
use crate::prefetch::fetch_rows;

pub(super) struct Avx2;

const ROWS: usize = 6;
const COLS: usize = 16;
/// Numbers of 32 bits in a register.
const LANES: usize = 8;
/// Pairs of terms of a line.
const PAIRS: usize = LINE / 2;

/// A panel has, for each pair of terms of a line, both terms of all columns.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx2,fma")]
unsafe fn pack(panel: &mut [i16], weight: Rows<'_>, first: usize) {
    const NONE: [u8; LINE] = [0; LINE];
    for (l, panel) in panel.chunks_exact_mut(LINE * COLS).enumerate() {
        for col in (0..COLS).step_by(LANES) {
            for term in (0..LINE).step_by(2 * LANES) {
                let mut block = [_mm256_setzero_si256(); LANES];
                for (i, row) in block.iter_mut().enumerate() {
                    let codes = weight.line(col + i, first + l).unwrap_or(&NONE);
                    // SAFETY: a line has these sixteen codes.
                    *row = unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.as_ptr().add(term).cast())) };
                }
                transpose(&mut block);
                for (i, row) in block.iter().enumerate() {
                    let to = &mut panel[(term / 2 + i) * 2 * COLS + 2 * col..][..2 * LANES];
                    // SAFETY: sixteen codes have room.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), *row) };
                }
            }
        }
    }
}

/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx2,fma")]
unsafe fn add(tile: &mut Tile<'_, Avx2>) {
    tile.check();
    let (mut panel, sums) = (tile.panel.as_ptr(), tile.sums.as_mut_ptr());
    for l in 0..tile.depth() {
        let mut whole = [[_mm256_setzero_si256(); 2]; ROWS];
        // SAFETY: `check` has verified the lengths.
        unsafe {
            let codes = tile.codes.as_ptr().add(l * ROWS * LINE);
            fetch_rows(codes.wrapping_add(tile.ahead), LINE, ROWS, LINE);
            for pair in 0..PAIRS {
                let left = _mm256_loadu_si256(panel.cast());
                let right = _mm256_loadu_si256(panel.add(2 * LANES).cast());
                panel = panel.add(4 * LANES);
                for i in 0..ROWS {
                    let two = codes.add(i * LINE + 2 * pair).cast::<i32>();
                    let two = _mm256_set1_epi32(two.read_unaligned());
                    whole[i][0] = _mm256_add_epi32(whole[i][0], _mm256_madd_epi16(two, left));
                    whole[i][1] = _mm256_add_epi32(whole[i][1], _mm256_madd_epi16(two, right));
                }
            }
            for i in 0..ROWS {
                let scale = _mm256_broadcast_ss(&tile.rounded.get_unchecked(l * ROWS + i).scale);
                for half in 0..2 {
                    let to = sums.add(i * COLS + half * LANES);
                    let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[i][half]), scale, _mm256_loadu_ps(to));
                    _mm256_storeu_ps(to, sum);
                }
            }
        }
    }
}

impl Body for Avx2 {
    const ROWS: usize = ROWS;
    const COLS: usize = COLS;
    type Code = i16;

    fn kept(code: i32) -> i16 {
        code as i16
    }

    unsafe fn pack(panel: &mut [i16], weight: Rows<'_>, first: usize) {
        // SAFETY: the caller's promise.
        unsafe { pack(panel, weight, first) }
    }

    unsafe fn add(tile: &mut Tile<'_, Self>) {
        // SAFETY: the caller's promise.
        unsafe { add(tile) }
    }
}
