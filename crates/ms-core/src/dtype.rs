//! Element types.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of a tensor's elements; little-endian wherever it reaches a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every type, indexed by its number (`dtype as usize`), which identifies it in messages between ranks.
    pub const ALL: [Self; 10] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U8,
        Self::Bool,
    ];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Name as used in messages and manifests: `f32`, `bf16`, `i32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Type of unrounded quantities that belong to values of this type: gradients, row statistics, weights of a loss or of a
    /// router, optimizer state. f64 for f64, f32 for all others.
    pub const fn wide(self) -> Self {
        match self {
            Self::F64 => Self::F64,
            _ => Self::F32,
        }
    }

    /// Whether values are real numbers rather than integers or flags.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the element of a [`DType`].
pub trait Scalar: bytemuck::Pod {
    /// The element type it stands for.
    const DTYPE: DType;
}

macro_rules! scalar {
    ($($t:ty => $d:ident),*) => { $(impl Scalar for $t { const DTYPE: DType = DType::$d; })* };
}
scalar!(f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => Bf16, i64 => I64, i32 => I32, i16 => I16, i8 => I8, u8 => U8);

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn every_type_stands_at_its_number() {
        for (number, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, number, "{dtype}");
        }
        assert_eq!(DType::ALL.last(), Some(&DType::Bool), "the last of the declaration");
    }
}
