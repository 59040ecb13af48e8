//! 8-bit floats with a scale per block of rows and columns, as DeepSeek and Qwen publish weights.
//!
//! ```text
//! X.weight            F8_E4M3  [rows, columns]                          codes
//! X.weight_scale_inv  F32|BF16 [ceil(rows / 128), ceil(columns / 128)]  factor of a block's codes
//! ```
//!
//! An element is code times scale in float32, rounded to bfloat16. These weights are read, never written.
//!
//! # Source
//! Micikevicius et al., arXiv:2209.05433 (E4M3: no infinity, one code of NaN); DeepSeek-V3, arXiv:2412.19437, section 3.3.

use ms_core::DType;

use crate::Mapped;
use crate::cast::cast;

/// The container's name of the codes' type.
pub(crate) const CODES: &str = "F8_E4M3";

/// Codes with known scales.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// File, first byte and type of the scales.
    pub(crate) scales: (usize, usize, DType),
    pub(crate) columns: usize,
    /// Rows and columns that share a scale.
    pub(crate) block: [usize; 2],
}

/// The number that a code stands for.
fn value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

impl Blocks {
    /// Elements `first..first + n` of the tensor whose codes begin at byte `start`, in bfloat16.
    pub(crate) fn read(
        &self,
        files: &[Mapped],
        codes: &[u8],
        start: usize,
        first: usize,
        n: usize,
        out: &mut Vec<u8>,
    ) {
        let table: Vec<f32> = (0..=255).map(value).collect();
        let (file, scales, dtype) = self.scales;
        let scales = &files[file].bytes()[scales..];
        let wide = |i: usize| match dtype {
            DType::Bf16 => f32::from_bits(
                u32::from(u16::from_le_bytes(scales[2 * i..][..2].try_into().expect("2 bytes"))) << 16,
            ),
            _ => f32::from_le_bytes(scales[4 * i..][..4].try_into().expect("4 bytes")),
        };
        let per_row = self.columns.div_ceil(self.block[1]);
        let mut values = Vec::with_capacity(4 * n);
        let mut i = first;
        while i < first + n {
            // To the end of the block or row.
            let (row, column) = (i / self.columns, i % self.columns);
            let end = ((column / self.block[1] + 1) * self.block[1]).min(self.columns);
            let run = (end - column).min(first + n - i);
            let scale = wide(row / self.block[0] * per_row + column / self.block[1]);
            for &code in &codes[start + i..start + i + run] {
                values.extend_from_slice(&(table[usize::from(code)] * scale).to_le_bytes());
            }
            i += run;
        }
        cast(&values, DType::F32, DType::Bf16, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unusual_byte_groupings)] // sign, exponent, mantissa
    fn codes_stand_for_the_numbers_of_the_paper() {
        for (code, want) in [
            (0b0_0000_000, 0.0),
            (0b0_0000_001, 0.001_953_125),
            (0b0_0000_111, 0.013_671_875),
            (0b0_0001_000, 0.015_625),
            (0b0_0111_000, 1.0),
            (0b1_1000_100, -3.0),
            (0b0_1111_110, 448.0),
            (0b1_1111_110, -448.0),
        ] {
            assert_eq!(value(code), want, "{code:08b}");
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
        assert_eq!((0..=255u8).filter(|&c| value(c).is_nan()).count(), 2);
    }
}
