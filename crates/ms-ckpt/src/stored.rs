//! Stored tensors: tensors as they lie in files, and which parts of the model they hold.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ms_core::{DType, Region, Shape};

use crate::Mapped;
use crate::fp8::Blocks;
use crate::mxfp4::Factors;
use crate::name::Name;
use crate::nf4::Quantised;
use crate::torch::TensorView;

/// A tensor as it lies in a file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Name in the file.
    pub(crate) name: String,
    /// Index of the file.
    pub(crate) file: usize,
    /// Element type.
    pub(crate) dtype: DType,
    /// Dimensions.
    pub(crate) shape: Vec<usize>,
    /// First byte in the file.
    pub(crate) start: usize,
    /// Elements between neighbours along each dimension; `None`: row-major without gaps.
    pub(crate) strides: Option<Vec<usize>>,
    /// The elements are codes: `dtype` and `shape` are those of what they stand for.
    pub(crate) quantised: Option<Arc<Codes>>,
}

/// What elements that are codes stand for.
#[derive(Clone, Debug)]
pub(crate) enum Codes {
    /// 4-bit codes with nested scales.
    FourBit(Quantised),
    /// 8-bit floats with a scale per block.
    Blocks(Blocks),
    /// 4-bit floats with a power of two per block, in the order of the model's tensor, whose last two dimensions `shape` has
    /// the other way round.
    Factored(Factors),
    /// 8-bit floats whose scales were not looked for: only while a folder is opened.
    Unscaled,
    /// Nothing in any file: zeros, for a tensor that a format does not have.
    Zeros,
}

impl Stored {
    /// A tensor whose elements stand in a file as they are.
    pub(crate) fn of(name: impl Into<String>, file: usize, at: TensorView) -> Self {
        let TensorView { dtype, shape, start, strides } = at;
        Self { name: name.into(), file, dtype, shape, start, strides, quantised: None }
    }

    /// A tensor that no file has and that stands for zeros.
    pub(crate) fn zeros(name: String, dtype: DType, shape: Vec<usize>) -> Self {
        Self { name, file: 0, dtype, shape, start: 0, strides: None, quantised: Some(Arc::new(Codes::Zeros)) }
    }

    /// Whether a file has it.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self.quantised.as_deref(), Some(Codes::Zeros))
    }
}

impl Codes {
    /// Elements `first..first + n` of `stored`, in its type.
    pub(crate) fn read(&self, files: &[Mapped], stored: &Stored, first: usize, n: usize, out: &mut Vec<u8>) {
        let bytes = || files[stored.file].bytes();
        match self {
            Self::FourBit(codes) => codes.read(bytes(), stored.start, first, n, stored.dtype, out),
            Self::Blocks(codes) => codes.read(files, bytes(), stored.start, first, n, out),
            Self::Factored(factors) => factors.read(files, bytes(), stored.start, first, n, out),
            Self::Zeros => out.resize(out.len() + n * stored.dtype.size(), 0),
            Self::Unscaled => unreachable!("no open checkpoint has codes without scales"),
        }
    }
}

/// A part of a global tensor.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Index of the stored tensor.
    pub(crate) stored: usize,
    /// Which part of the global tensor it is.
    pub(crate) region: Region,
    /// Which elements of the region are stored, when not all.
    pub(crate) flat: Option<Range<usize>>,
    /// Elements between neighbours of the region's local tensor in the file; `None`: row-major without gaps.
    pub(crate) view: Option<Vec<usize>>,
}

impl Piece {
    /// How many elements are stored.
    pub(crate) fn elements(&self) -> usize {
        self.flat.as_ref().map_or_else(|| self.region.local_shape().numel(), Range::len)
    }
}

/// A tensor of the whole model.
#[derive(Clone, Debug)]
pub(crate) struct Global {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) pieces: Vec<Piece>,
}

impl Global {
    /// The tensor of this name among others, where it begins without pieces.
    pub(crate) fn among<'a>(
        all: &'a mut BTreeMap<Name, Self>,
        name: &Name,
        shape: Shape,
        dtype: DType,
    ) -> &'a mut Self {
        all.entry(name.clone()).or_insert_with(|| Self { shape, dtype, pieces: Vec::new() })
    }

    /// Elements that its pieces have together.
    pub(crate) fn covered(&self) -> usize {
        self.pieces.iter().map(|p| p.region.local_shape().numel()).sum()
    }
}
