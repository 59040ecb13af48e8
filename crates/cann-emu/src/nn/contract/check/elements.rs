//! Element types, and whether elements follow one another.

use super::{Facts, Holds, holds};
use crate::nn::tensor::{Dtype, View};

impl Facts<'_> {
    /// `self:FDI`.
    pub(super) fn types(&self, name: &str, types: &str) -> Holds {
        self.views(name).into_iter().try_for_each(|view| {
            holds(allowed(view.dtype, types), || {
                format!("{name}: expected an element type of {types}, found {:?}", view.dtype)
            })
        })
    }

    /// `type(a,b)`.
    pub(super) fn one_type(&self, names: &[String]) -> Holds {
        let types: Vec<_> = names.iter().filter_map(|n| self.first(n).map(|v| (n, v.dtype))).collect();
        types.windows(2).try_for_each(|pair| {
            let [(a, x), (b, y)] = [pair[0], pair[1]];
            holds(x == y, || format!("{a} {x:?} and {b} {y:?} must have one element type"))
        })
    }

    /// `contig(a)`.
    pub(super) fn contiguous(&self, names: &[String]) -> Holds {
        names.iter().try_for_each(|name| {
            holds(self.views(name).iter().all(|v| v.is_contiguous()), || format!("{name} must be contiguous"))
        })
    }

    /// `turned(x2)`.
    pub(super) fn turned(&self, names: &[String]) -> Holds {
        names.iter().try_for_each(|name| {
            holds(self.views(name).iter().all(|v| v.is_contiguous() || is_turned(v)), || {
                format!("{name} must be contiguous, or so once its last dimensions are exchanged")
            })
        })
    }
}

fn allowed(dtype: Dtype, letters: &str) -> bool {
    letters.chars().any(|c| match c {
        'F' => matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32),
        'H' => matches!(dtype, Dtype::F16 | Dtype::Bf16),
        'S' => dtype == Dtype::F32,
        'D' => dtype == Dtype::F64,
        'I' => dtype.is_int() && dtype != Dtype::Bool,
        'B' => dtype == Dtype::Bool,
        'C' => dtype.is_complex(),
        'b' => dtype == Dtype::Bf16,
        '8' => dtype == Dtype::I8,
        'i' => dtype == Dtype::I32,
        'l' => dtype == Dtype::I64,
        'L' => matches!(dtype, Dtype::I32 | Dtype::I64),
        'u' => dtype == Dtype::U64,
        'U' => matches!(dtype, Dtype::U8 | Dtype::Bool),
        _ => false,
    })
}

/// Whether the elements follow one another once the last two dimensions are exchanged.
fn is_turned(view: &View) -> bool {
    let n = view.dims.len();
    n >= 2 && {
        let mut other = view.clone();
        other.dims.swap(n - 2, n - 1);
        other.strides.swap(n - 2, n - 1);
        other.is_contiguous()
    }
}
