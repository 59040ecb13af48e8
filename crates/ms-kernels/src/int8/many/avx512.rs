//! Tiles of [`super::product`] with the 8-bit dot-product instruction.
//!
//! It takes one unsigned operand: the weight, with an offset of 128. What the offset adds to a line's sum is the same for all
//! columns.

use std::arch::x86_64::*;

use super::{Body, LINE, Rows, Tile, ZERO};
use crate::matmul::kernel::avx512::pack::transpose;

pub(super) struct Vnni;

const ROWS: usize = 12;
const COLS: usize = 32;
/// Numbers of 32 bits in a register: groups of four terms of a line, too.
const LANES: usize = 16;

/// A panel has, for each four terms of a line, those of all columns, added to `zero` modulo 256.
///
/// # Safety
/// The instruction sets must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn pack_fours<const COLS: usize>(
    panel: &mut [i8],
    weight: Rows<'_>,
    first: usize,
    zero: __m512i,
) {
    const NONE: [u8; LINE] = [0; LINE];
    for (l, panel) in panel.chunks_exact_mut(LINE * COLS).enumerate() {
        for col in (0..COLS).step_by(LANES) {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (i, row) in block.iter_mut().enumerate() {
                let codes = weight.line(col + i, first + l).unwrap_or(&NONE);
                // SAFETY: a line fills a register.
                *row = unsafe { _mm512_xor_si512(_mm512_loadu_si512(codes.as_ptr().cast()), zero) };
            }
            transpose(&mut block);
            for (i, row) in block.iter().enumerate() {
                let to = &mut panel[4 * (i * COLS + col)..][..LINE];
                // SAFETY: a register's bytes have room.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *row) };
            }
        }
    }
}

/// # Safety
/// The instruction sets must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack(panel: &mut [i8], weight: Rows<'_>, first: usize) {
    // SAFETY: the caller's promise.
    unsafe { pack_fours::<COLS>(panel, weight, first, _mm512_set1_epi8(ZERO as i8)) }
}

/// # Safety
/// The instruction sets must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add(tile: &mut Tile<'_, Vnni>) {
    tile.check();
    let (mut panel, sums) = (tile.panel.as_ptr(), tile.sums.as_mut_ptr());
    for l in 0..tile.depth() {
        // SAFETY: `check` has verified the lengths.
        unsafe {
            let codes = tile.codes.as_ptr().add(l * ROWS * LINE);
            let lines = tile.rounded.as_ptr().add(l * ROWS);
            let mut whole = [[_mm512_setzero_si512(); 2]; ROWS];
            for i in 0..ROWS {
                whole[i] = [_mm512_set1_epi32((*lines.add(i)).shift); 2];
            }
            for four in 0..LANES {
                let left = _mm512_loadu_si512(panel.cast());
                let right = _mm512_loadu_si512(panel.add(LINE).cast());
                panel = panel.add(2 * LINE);
                for i in 0..ROWS {
                    let own = codes.add(i * LINE + 4 * four).cast::<i32>();
                    let own = _mm512_set1_epi32(own.read_unaligned());
                    whole[i][0] = _mm512_dpbusd_epi32(whole[i][0], left, own);
                    whole[i][1] = _mm512_dpbusd_epi32(whole[i][1], right, own);
                }
            }
            for i in 0..ROWS {
                let scale = _mm512_set1_ps((*lines.add(i)).scale);
                for half in 0..2 {
                    let to = sums.add(i * COLS + half * LANES);
                    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[i][half]), scale, _mm512_loadu_ps(to));
                    _mm512_storeu_ps(to, sum);
                }
            }
        }
    }
}

impl Body for Vnni {
    const ROWS: usize = ROWS;
    const COLS: usize = COLS;
    type Code = i8;

    fn kept(code: i32) -> i8 {
        code as i8
    }

    unsafe fn pack(panel: &mut [i8], weight: Rows<'_>, first: usize) {
        // SAFETY: the caller's promise.
        unsafe { pack(panel, weight, first) }
    }

    unsafe fn add(tile: &mut Tile<'_, Self>) {
        // SAFETY: the caller's promise.
        unsafe { add(tile) }
    }
}
