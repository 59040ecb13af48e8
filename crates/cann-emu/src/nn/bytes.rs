//! Values as bytes, for what goes from rank to rank.

use super::exec::Fault;
use super::tensor::Dtype;
use half::{bf16, f16};

/// Values rounded to an element type, as bytes.
pub fn encode(values: &[f64], dtype: Dtype) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.size());
    for v in values {
        match dtype {
            Dtype::F32 => out.extend((*v as f32).to_le_bytes()),
            Dtype::F16 => out.extend(f16::from_f32(*v as f32).to_le_bytes()),
            Dtype::Bf16 => out.extend(bf16::from_f32(*v as f32).to_le_bytes()),
            Dtype::I8 => out.extend((*v as i8).to_le_bytes()),
            Dtype::I32 => out.extend((*v as i32).to_le_bytes()),
            _ => out.extend(v.to_le_bytes()),
        }
    }
    out
}

/// The values of bytes.
pub fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    fn all<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|b| one(*b)).collect()
    }
    match dtype {
        Dtype::F32 => all(bytes, |b| f64::from(f32::from_le_bytes(b))),
        Dtype::F16 => all(bytes, |b| f64::from(f16::from_le_bytes(b))),
        Dtype::Bf16 => all(bytes, |b| f64::from(bf16::from_le_bytes(b))),
        Dtype::I8 => all(bytes, |b: [u8; 1]| f64::from(b[0] as i8)),
        Dtype::I32 => all(bytes, |b| f64::from(i32::from_le_bytes(b))),
        _ => all(bytes, f64::from_le_bytes),
    }
}

/// The number of `HcclDataType` of an element type that reductions take.
///
/// # Errors
/// A sentence for any other type.
pub fn hccl_type(dtype: Dtype) -> Result<i32, Fault> {
    match dtype {
        Dtype::I8 => Ok(0),
        Dtype::I32 => Ok(2),
        Dtype::F16 => Ok(3),
        Dtype::F32 => Ok(4),
        Dtype::Bf16 => Ok(11),
        other => Err(Fault::Text(format!("{other:?} does not go from rank to rank"))),
    }
}
