//! Tiles of [`super::product`] in plain loops.

use super::{Body, LINE, Rows, Tile};

pub(super) struct Portable;

const ROWS: usize = 4;
const COLS: usize = 16;

impl Body for Portable {
    const ROWS: usize = ROWS;
    const COLS: usize = COLS;
    type Code = i16;

    fn kept(code: i32) -> i16 {
        code as i16
    }

    unsafe fn pack(panel: &mut [i16], weight: Rows<'_>, first: usize) {
        for (l, panel) in panel.chunks_exact_mut(LINE * COLS).enumerate() {
            for col in 0..COLS {
                let codes = weight.line(col, first + l).unwrap_or(&[0; LINE]);
                for (to, code) in panel[col..].iter_mut().step_by(COLS).zip(codes) {
                    *to = code.cast_signed().into();
                }
            }
        }
    }

    unsafe fn add(tile: &mut Tile<'_, Self>) {
        tile.check();
        for (i, sums) in tile.sums.as_chunks_mut::<COLS>().0.iter_mut().enumerate() {
            let lines = tile.codes.chunks_exact(ROWS * LINE).zip(tile.rounded.chunks_exact(ROWS));
            for (panel, (codes, rounded)) in tile.panel.chunks_exact(LINE * COLS).zip(lines) {
                let mut whole = [0i32; COLS];
                for (weight, code) in panel.as_chunks::<COLS>().0.iter().zip(&codes[i * LINE..][..LINE]) {
                    for (whole, weight) in whole.iter_mut().zip(weight) {
                        *whole += i32::from(*weight) * i32::from(*code);
                    }
                }
                for (sum, whole) in sums.iter_mut().zip(whole) {
                    *sum = (whole as f32).mul_add(rounded[i].scale, *sum);
                }
            }
        }
    }
}
