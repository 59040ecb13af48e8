//! Tiles of [`super::product`] with `sdot`, which takes four terms of four columns and four of a row.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Body, LINE, Rows, Tile};
use crate::matmul::kernel::neon::transpose;
use crate::prefetch::fetch_rows;

pub(super) struct Sdot;

const ROWS: usize = 4;
const COLS: usize = 16;
/// Terms that an instruction sums.
const FOUR: usize = 4;
/// Bytes of a register.
const BYTES: usize = 16;
/// Registers of the columns.
const VECTORS: usize = COLS / FOUR;

/// A panel has, for each four terms of a line, those of all columns.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn pack(panel: &mut [i8], weight: Rows<'_>, first: usize) {
    const NONE: [u8; LINE] = [0; LINE];
    for (l, panel) in panel.chunks_exact_mut(LINE * COLS).enumerate() {
        for col in (0..COLS).step_by(FOUR) {
            for term in (0..LINE).step_by(BYTES) {
                let mut block = [vdupq_n_u32(0); FOUR];
                for (i, row) in block.iter_mut().enumerate() {
                    let codes = weight.line(col + i, first + l).unwrap_or(&NONE);
                    // SAFETY: a line has these sixteen codes.
                    *row = unsafe { vld1q_u32(codes.as_ptr().add(term).cast()) };
                }
                for (i, row) in transpose(block).into_iter().enumerate() {
                    let to = &mut panel[(term + FOUR * i) * COLS + FOUR * col..][..BYTES];
                    // SAFETY: sixteen codes have room.
                    unsafe { vst1q_u32(to.as_mut_ptr().cast(), row) };
                }
            }
        }
    }
}

/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn add(tile: &mut Tile<'_, Sdot>) {
    tile.check();
    let (mut panel, sums) = (tile.panel.as_ptr(), tile.sums.as_mut_ptr());
    for l in 0..tile.depth() {
        let mut whole = [[vdupq_n_s32(0); VECTORS]; ROWS];
        // SAFETY: `check` has verified the lengths; an instruction reads three registers and writes one.
        unsafe {
            let codes = tile.codes.as_ptr().add(l * ROWS * LINE);
            fetch_rows(codes.wrapping_add(tile.ahead), LINE, ROWS, LINE);
            for term in (0..LINE).step_by(BYTES) {
                let rows: [int8x16_t; ROWS] = std::array::from_fn(|i| vld1q_s8(codes.add(i * LINE + term)));
                macro_rules! four {
                    ($lane:literal) => {
                        for v in 0..VECTORS {
                            let columns = vld1q_s8(panel.add(v * BYTES));
                            for i in 0..ROWS {
                                asm!(concat!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[", $lane, "]"),
                                    inlateout(vreg) whole[i][v], in(vreg) columns, in(vreg) rows[i],
                                    options(pure, nomem, nostack, preserves_flags));
                            }
                        }
                        panel = panel.add(VECTORS * BYTES);
                    };
                }
                four!(0);
                four!(1);
                four!(2);
                four!(3);
            }
            for i in 0..ROWS {
                let scale = tile.rounded.get_unchecked(l * ROWS + i).scale;
                for v in 0..VECTORS {
                    let to = sums.add(i * COLS + v * FOUR);
                    vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(whole[i][v]), scale));
                }
            }
        }
    }
}

impl Body for Sdot {
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
