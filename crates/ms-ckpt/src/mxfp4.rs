//! 4-bit floats with a power of two for 32 of them (MXFP4), as gpt-oss publishes its experts.
//!
//! ```text
//! X_blocks  U8 [.., rows, columns / 32, 16]  codes (E2M1), the first of a pair in the low half
//! X_scales  U8 [.., rows, columns / 32]      exponent of a block's factor, plus 127; 255 is NaN
//! ```
//!
//! They stand for `X`, `[.., columns, rows]` in bfloat16, transposed as the class has it. These weights are read, never
//! written.
//!
//! # Source
//! OCP Microscaling Formats (MX) 1.0, sections 5.3.3 and 5.4; transformers 5.24, `integrations/mxfp4.py`,
//! `convert_moe_packed_tensors`.

use ms_core::DType;

use crate::Mapped;
use crate::cast::cast;

/// Elements that share a factor.
pub(crate) const BLOCK: usize = 32;

/// File and first byte of the factors.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    pub(crate) file: usize,
    pub(crate) start: usize,
}

/// The number that a code stands for.
fn value(code: u8) -> f32 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

impl Factors {
    /// Elements `first..first + n` in the order of the codes, `[.., rows, columns]`, in bfloat16; codes begin at byte `start`.
    pub(crate) fn read(
        &self,
        files: &[Mapped],
        codes: &[u8],
        start: usize,
        first: usize,
        n: usize,
        out: &mut Vec<u8>,
    ) {
        let factors = &files[self.file].bytes()[self.start..];
        let mut values = Vec::with_capacity(4 * n);
        for i in first..first + n {
            let code = codes[start + i / 2] >> (4 * (i % 2)) & 15;
            let factor = match factors[i / BLOCK] {
                u8::MAX => f64::NAN,
                exponent => 2f64.powi(i32::from(exponent) - 127),
            };
            values.extend_from_slice(&((f64::from(value(code)) * factor) as f32).to_le_bytes());
        }
        cast(&values, DType::F32, DType::Bf16, out);
    }
}
