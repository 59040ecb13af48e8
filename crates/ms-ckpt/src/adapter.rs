//! Low-rank adapters: `W' = W + (alpha / r) B A`, added while copying from file to file.
//!
//! An adapter's tensors are global tensors of a checkpoint like any other ([`TensorKind::LowRank`](crate::TensorKind)):
//! `[r, in]` and `[out, r]`, with rows in canonical order; for stacked experts, the expert dimension comes first. Adapters of
//! projections that Hugging Face keeps separate are parts of one parameter, each for rows of its own.

use std::collections::BTreeMap;

use half::{bf16, f16};
use ms_core::{DType, Region, Shape};
use ms_spec::{ParamSpec, Slot};

use crate::lens::Lens;
use crate::name::{Matrix, Name};

/// The largest rank that is read: matrices of an adapter are held in memory, and a view in a file may have any number of rows.
pub(crate) const MOST_RANK: usize = 1 << 16;

/// The argument that names the rank of a block.
pub(crate) const BLOCK_RANK: &str = "ms_lora_block_rank";

/// How an adapter is added to the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// `alpha / r`.
    pub scale: f64,
    /// The type in which the sum is computed.
    pub arithmetic: Arithmetic,
}

/// The type in which an adapter is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// The product and its scaling in float32, rounded once to the weights' type, added in that type.
    #[default]
    Float32,
    /// Product, scaling and sum each rounded to the weights' type.
    ///
    /// # Source
    /// peft 0.7.1, which MindSpeed-LLM v2.0.0 merges with. What its converter of 2026 writes has the same bits.
    WeightType,
}

/// The adapter of some rows of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Global `[r, in]`.
    pub(crate) a: Name,
    /// Global `[rows, r]`.
    pub(crate) b: Name,
    /// Which rows of the parameter, in the order of `b`.
    pub(crate) rows: Region,
}

/// Canonical names of the two matrices of a parameter's adapter.
pub(crate) fn names(parameter: &Slot) -> [Name; 2] {
    Matrix::BOTH.map(|matrix| Name::low_rank(matrix, parameter, None))
}

/// The parts of both matrices that belong to a part of a parameter `[…, out, in]`, and their global shapes.
///
/// Ranks that cut the rows of the parameter share `A` and cut `B`; those that cut columns do the reverse.
pub(crate) fn lenses(spec: &ParamSpec, lens: &Lens, rank: usize) -> [(Shape, Lens); 2] {
    let (n, region) = (spec.shape.len(), &lens.region);
    let columns = region.dim == n - 1;
    let shape = |rows: usize, columns: usize| {
        let mut dims = spec.shape.to_vec();
        (dims[n - 2], dims[n - 1]) = (rows, columns);
        Shape::new(&dims)
    };
    let (a, b) = (shape(rank, spec.shape[n - 1]), shape(spec.shape[n - 2], rank));
    let part = |shape: &Shape, dim: usize, cut: bool| {
        let ranges = if cut { region.ranges.clone() } else { std::iter::once(0..shape[dim]).collect() };
        Region { lead: region.lead.clone().filter(|_| dim > 0), ..Region::along(shape, dim, ranges) }
    };
    let (a_part, b_part) = if columns {
        (part(&a, n - 1, true), part(&b, n - 2, false))
    } else {
        (part(&a, n - 2, false), part(&b, n - 2, true))
    };
    let form = |region: Region| match (lens.transposed, lens.shape.len() < n) {
        (true, _) => Lens::turned(region),
        (false, true) => Lens::single(region),
        (false, false) => Lens::plain(region),
    };
    [(a, form(a_part)), (b, form(b_part))]
}

/// The suffix after the name of a tensor that is not a module's weight: of experts in one tensor.
pub(crate) const GROUPED: [&str; 2] = ["_lora_a", "_lora_b"];

/// A file's names of the two adapter matrices of a tensor, which may be a module's weight.
pub(crate) fn local_names(name: &str, module: Option<&str>) -> [String; 2] {
    match module {
        Some(module) => Matrix::BOTH.map(|matrix| matrix.weight_name(module)),
        None => GROUPED.map(|end| format!("{name}{end}")),
    }
}

/// An adapter's matrices for some rows of a parameter, in float32.
pub(crate) struct Loaded {
    pub(crate) merge: Merge,
    pub(crate) columns: usize,
    /// First row, counted over a stack.
    pub(crate) first: usize,
    /// For each row: which part, and which of its rows.
    pub(crate) rows: Vec<Option<(usize, usize)>>,
    pub(crate) parts: Vec<Matrices>,
}

/// The two matrices of an adapter.
pub(crate) struct Matrices {
    pub(crate) rank: usize,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

impl Loaded {
    /// Adds the adapter to elements of type `dtype` that begin with element `start` of the parameter.
    pub(crate) fn apply(&self, start: usize, bytes: &mut [u8], dtype: DType) {
        let size = dtype.size();
        let mut delta = vec![0f32; self.columns];
        let (mut at, count) = (0, bytes.len() / size);
        while at < count {
            let (row, column) = ((start + at) / self.columns, (start + at) % self.columns);
            let n = (self.columns - column).min(count - at);
            if let Some((part, b_row)) = self.rows[row - self.first] {
                let m = &self.parts[part];
                delta[..n].fill(0.0);
                for k in 0..m.rank {
                    let b = m.b[b_row * m.rank + k];
                    let a = &m.a[k * self.columns + column..][..n];
                    // One rounding per step, as the fused multiplication and addition of upstream's libraries has it.
                    let b = f64::from(b);
                    delta[..n]
                        .iter_mut()
                        .zip(a)
                        .for_each(|(d, a)| *d = (b * f64::from(*a) + f64::from(*d)) as f32);
                }
                self.add(&mut bytes[at * size..(at + n) * size], &delta[..n], dtype);
            }
            at += n;
        }
    }

    fn add(&self, bytes: &mut [u8], delta: &[f32], dtype: DType) {
        let scale = self.merge.scale as f32;
        macro_rules! each {
            ($bits:ty, $read:expr, $round:expr, $write:expr) => {
                for (b, &d) in bytes.chunks_exact_mut(size_of::<$bits>()).zip(delta) {
                    let w = $read(<$bits>::from_le_bytes((&*b).try_into().expect("exact chunk")));
                    let d = match self.merge.arithmetic {
                        Arithmetic::Float32 => $round(scale * d),
                        Arithmetic::WeightType => $round($round(d) * scale),
                    };
                    b.copy_from_slice(&$write(w + d).to_le_bytes());
                }
            };
        }
        match dtype {
            DType::Bf16 => {
                each!(u16, |x| bf16::from_bits(x).to_f32(), |x: f32| bf16::from_f32(x).to_f32(), |x: f32| {
                    bf16::from_f32(x)
                })
            }
            DType::F16 => {
                each!(u16, |x| f16::from_bits(x).to_f32(), |x: f32| f16::from_f32(x).to_f32(), |x: f32| {
                    f16::from_f32(x)
                })
            }
            DType::F32 => each!(f32, |x| x, |x: f32| x, |x: f32| x),
            _ => unreachable!("checked when the adapter was loaded"),
        }
    }
}

/// Adapters by the parameter that they change.
pub(crate) type Adapters = BTreeMap<Slot, Vec<Part>>;
