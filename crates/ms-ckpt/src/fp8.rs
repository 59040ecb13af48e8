//! 8-bit floats with a scale per block of rows and columns, as DeepSeek and Qwen publish weights.
//!
//! ```text
//! X.weight            F8_E4M3  [rows, columns]                          codes
//! X.weight_scale_inv  F32|BF16 [ceil(rows / 128), ceil(columns / 128)]  what the codes of a block are multiplied by
//! ```
//!
//! An element is code times scale in float32, rounded to bfloat16. They are read, never written.
//!
//! # Source
//! Micikevicius et al., arXiv:2209.05433 (E4M3: no infinity, one code of NaN); DeepSeek-V3, arXiv:2412.19437, section 3.3.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ms_core::DType;
use serde_json::Value;

use crate::cast::cast;
use crate::checkpoint::{Codes, Stored};
use crate::{Error, Mapped, Result};

/// The container's name of the codes' type.
pub(crate) const CODES: &str = "F8_E4M3";
/// What the name of the scales has behind that of the codes.
const SCALES: &str = "_scale_inv";

/// Codes of which the scales are known.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// File, first byte and type of the scales.
    scales: (usize, usize, DType),
    columns: usize,
    /// Rows and columns that share a scale.
    block: [usize; 2],
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

/// Rows and columns that share a scale, from `config.json`.
fn block_of(path: &Path, config: &Value) -> Result<[usize; 2]> {
    let told = &config["quantization_config"];
    let method = told["quant_method"].as_str().unwrap_or("fp8");
    let size = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
    let block = match &told["weight_block_size"] {
        Value::Null => Some([128, 128]),
        Value::Array(sizes) if sizes.len() == 2 => size(&sizes[0]).zip(size(&sizes[1])).map(|(r, c)| [r, c]),
        _ => None,
    };
    block.filter(|_| method == "fp8").ok_or_else(|| {
        Error::malformed(
            &path.join("config.json"),
            format!(
                "quantization_config {told}: expected quant_method fp8 and a weight_block_size of two numbers"
            ),
        )
    })
}

/// Finds the scales of all tensors of codes, and takes them off the list of names.
///
/// # Errors
/// [`Error::Malformed`] for codes without scales, or with scales of another shape or type.
pub(crate) fn pair(
    path: &Path,
    config: &Value,
    files: &[Mapped],
    stored: &mut [Stored],
    by_name: &mut BTreeMap<String, usize>,
) -> Result<()> {
    let codes: Vec<usize> = (0..stored.len())
        .filter(|&i| matches!(stored[i].quantised.as_deref(), Some(Codes::Unscaled)))
        .collect();
    if codes.is_empty() {
        return Ok(());
    }
    let block = block_of(path, config)?;
    for i in codes {
        let tensor = &stored[i];
        let wrong = |what: String| {
            Error::malformed(files[tensor.file].path(), format!("tensor {}: {what}", tensor.name))
        };
        let name = format!("{}{SCALES}", tensor.name);
        let Some(scale) = by_name.remove(&name).map(|s| &stored[s]) else {
            return Err(wrong(format!("8-bit elements without {name}")));
        };
        let &[rows, columns] = &tensor.shape[..] else {
            return Err(wrong(format!("8-bit elements of shape {:?}, expected a matrix", tensor.shape)));
        };
        let want = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let known = matches!(scale.dtype, DType::F32 | DType::Bf16) && scale.quantised.is_none();
        if scale.shape != want || scale.strides.is_some() || !known {
            let (dtype, shape) = (scale.dtype, &scale.shape);
            return Err(wrong(format!(
                "{name}: expected float32 or bfloat16 {want:?}, got {dtype} {shape:?}"
            )));
        }
        let blocks = Blocks { scales: (scale.file, scale.start, scale.dtype), columns, block };
        stored[i].quantised = Some(Arc::new(Codes::Blocks(blocks)));
    }
    Ok(())
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
