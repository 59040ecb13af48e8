//! Tensors in safetensors files: the container's names of element types, and reading and writing of files.

use ms_core::DType;
use ms_files::safetensors as container;

use crate::{Error, Mapped, Result};

pub use container::{Entry, Header, write_header};

/// The element type that a file names; `None`: one that this toolchain does not compute with.
pub fn dtype(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| dtype_name(dtype) == name)
}

/// The container's name of a dtype.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}

/// Reads and checks the header of a mapped file.
///
/// # Errors
/// [`Error::Malformed`] naming the tensor and the numbers for an invalid file.
pub fn read_header(file: &Mapped) -> Result<Header> {
    container::header(file.bytes()).map_err(|what| Error::malformed(file.path(), what))
}

/// The header of a file to be written: tensors lie in the given order.
pub fn make_header(tensors: &[(String, DType, Vec<usize>)], metadata: &[(&str, &str)]) -> String {
    let named = |(name, dtype, shape): &(String, DType, Vec<usize>)| {
        (name.clone(), dtype_name(*dtype), shape.clone())
    };
    container::make_header(&tensors.iter().map(named).collect::<Vec<_>>(), metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_name_and_the_size_that_files_give_it() {
        let all = "F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL";
        for name in all.split(' ') {
            let dtype = dtype(name).unwrap();
            assert_eq!((dtype_name(dtype), container::element_size(name)), (name, Some(dtype.size())));
        }
        assert_eq!((dtype("F8_E4M3"), container::element_size("F8_E4M3")), (None, Some(1)));
    }
}
