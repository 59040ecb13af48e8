//! Matching of FP8 code tensors and their scale tensors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ms_core::DType;
use serde_json::Value;

use crate::fp8::Blocks;
use crate::stored::{Codes, Stored};
use crate::{Error, Mapped, Result};

/// The suffix of the scales' name after that of the codes.
const SCALES: &str = "_scale_inv";

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
