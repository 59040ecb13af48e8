//! Element types as PyTorch names them.

use ms_core::DType;

/// Element types with their names in the module `torch`, of which the first is written, and the classes of their storages.
const TYPES: [(DType, &[&str], &str); 10] = [
    (DType::F64, &["float64", "double"], "DoubleStorage"),
    (DType::F32, &["float32", "float"], "FloatStorage"),
    (DType::F16, &["float16", "half"], "HalfStorage"),
    (DType::Bf16, &["bfloat16"], "BFloat16Storage"),
    (DType::I64, &["int64", "long"], "LongStorage"),
    (DType::I32, &["int32", "int"], "IntStorage"),
    (DType::I16, &["int16", "short"], "ShortStorage"),
    (DType::I8, &["int8"], "CharStorage"),
    (DType::U8, &["uint8"], "ByteStorage"),
    (DType::Bool, &["bool"], "BoolStorage"),
];

/// Name of a type in the module `torch`.
pub(crate) fn type_name(dtype: DType) -> &'static str {
    TYPES[dtype as usize].1[0]
}

/// Class of a type's storages in the module `torch`.
pub(super) fn storage_class(dtype: DType) -> &'static str {
    TYPES[dtype as usize].2
}

/// The type that a name with its module says.
pub(crate) fn torch_dtype(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.")?;
    TYPES.iter().find(|(_, names, _)| names.contains(&name)).map(|row| row.0)
}

/// The type whose storages have this class, named with its module.
pub(super) fn storage_dtype(class: &str) -> Option<DType> {
    let class = class.strip_prefix("torch.")?;
    TYPES.iter().find(|row| row.2 == class).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_stands_at_its_number() {
        assert_eq!(TYPES.map(|row| row.0), DType::ALL);
    }
}
