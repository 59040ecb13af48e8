//! Low-rank adapters: `W' = W + (alpha / r) B A`, added on the way from a file to a file.
//!
//! An adapter's tensors are globals of a checkpoint like any other: beside the parameter `X.weight` stand
//! `X.lora_A.default.weight` (`[r, in]`) and `X.lora_B.default.weight` (`[out, r]`, rows in the canonical order);
//! those of stacked experts have the experts in front. Adapters of Hugging Face's fused-apart projections are parts of
//! one parameter, each for rows of its own.

use std::collections::BTreeMap;

use half::{bf16, f16};
use ms_core::{DType, Region, Shape};
use ms_spec::ParamSpec;

use crate::adapter_blocks::BLOCK_RANK;
use crate::checkpoint::Checkpoint;
use crate::lens::Lens;
use crate::{Error, Result};

/// How an adapter is added to the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// `alpha / r`.
    pub scale: f64,
    /// In which type the sum is formed.
    pub arithmetic: Arithmetic,
}

/// In which type an adapter is added.
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
    pub(crate) a: String,
    /// Global `[rows, r]`.
    pub(crate) b: String,
    /// Which rows of the parameter, in the order of `b`.
    pub(crate) rows: Region,
}

/// Canonical names of the two matrices of a parameter's adapter.
pub(crate) fn names(parameter: &str) -> [String; 2] {
    let stem = parameter.strip_suffix(".weight").unwrap_or(parameter);
    [format!("{stem}.lora_A.default.weight"), format!("{stem}.lora_B.default.weight")]
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
    let (a_part, b_part) = match columns {
        true => (part(&a, n - 1, true), part(&b, n - 2, false)),
        false => (part(&a, n - 2, false), part(&b, n - 2, true)),
    };
    let form = |region: Region| match (lens.transposed, lens.shape.len() < n) {
        (true, _) => Lens::turned(region),
        (false, true) => Lens::single(region),
        (false, false) => Lens::plain(region),
    };
    [(a, form(a_part)), (b, form(b_part))]
}

/// What a file calls the two matrices beside a tensor.
pub(crate) fn local_names(name: &str) -> [String; 2] {
    match name.strip_suffix(".weight") {
        Some(stem) => [format!("{stem}.lora_A.default.weight"), format!("{stem}.lora_B.default.weight")],
        None => [format!("{name}_lora_a"), format!("{name}_lora_b")],
    }
}

/// An adapter's matrices for some rows of a parameter, in float32.
pub(crate) struct Loaded {
    merge: Merge,
    columns: usize,
    /// First row, counted over a stack.
    first: usize,
    /// For each row: which part, and which of its rows.
    rows: Vec<Option<(usize, usize)>>,
    parts: Vec<Matrices>,
}

struct Matrices {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
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

impl Checkpoint {
    /// Parameters that have an adapter.
    pub fn adapted(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// Whether there is nothing but adapters.
    pub fn is_adapter(&self) -> bool {
        !self.adapters.is_empty() && !self.globals.contains_key("embedding.word_embeddings.weight")
    }

    /// The rank of the adapters; `None` without some, or if they differ.
    pub fn adapter_rank(&self) -> Option<usize> {
        let ranks = self.adapters.values().flatten().map(|p| {
            let shape = self.globals.get(&p.a)?.shape;
            shape.get(shape.len() - 2).copied()
        });
        let ranks: Vec<Option<usize>> = ranks.collect();
        ranks.first().copied().flatten().filter(|r| ranks.iter().all(|x| *x == Some(*r)))
    }

    /// Takes the adapters, and base weights if there are some, of another checkpoint of the same model.
    pub fn with_adapter(mut self, other: Self) -> Self {
        let (files, stored) = (self.files.len(), self.stored.len());
        self.files.extend(other.files);
        self.stored.extend(other.stored.into_iter().map(|mut s| {
            s.file += files;
            s
        }));
        for (name, mut global) in other.globals {
            global.pieces.iter_mut().for_each(|p| p.stored += stored);
            self.globals.insert(name, global);
        }
        self.copies.extend(other.copies.into_iter().map(|(name, mut piece)| {
            piece.stored += stored;
            (name, piece)
        }));
        self.adapters.extend(other.adapters);
        if let Some(rank) = other.args.get(BLOCK_RANK) {
            self.args.insert(BLOCK_RANK.to_owned(), rank.clone());
        }
        self
    }

    /// Adds the adapters to the weights that are read from here on.
    ///
    /// # Errors
    /// A checkpoint without adapters.
    pub fn merged(mut self, merge: Merge) -> Result<Self> {
        if self.adapters.is_empty() {
            return Err(Error::folder(&self.root, "there are no adapters to merge"));
        }
        self.merge = Some(merge);
        Ok(self)
    }

    /// The adapter of the rows of `name` that have elements in `bounds`.
    pub(crate) fn load_adapter(&self, name: &str, bounds: &std::ops::Range<usize>) -> Result<Option<Loaded>> {
        let (Some(merge), Some(parts)) = (self.merge, self.adapters.get(name)) else { return Ok(None) };
        let shape = self.global(name)?.shape;
        let dtype = self.global(name)?.dtype;
        if !matches!(dtype, DType::Bf16 | DType::F16 | DType::F32) {
            return Err(Error::Cast { name: name.to_owned(), from: DType::F32, to: dtype });
        }
        let n = shape.len();
        let (out, columns) = (shape[n - 2], shape[n - 1]);
        let total = shape.numel() / columns.max(1);
        let first = (bounds.start / columns.max(1)).min(total);
        let last = bounds.end.div_ceil(columns.max(1)).min(total);
        let mut loaded = Loaded { merge, columns, first, rows: vec![None; last - first], parts: Vec::new() };
        // Of a stack, only the experts asked for.
        let experts = if n == 3 { first / out..last.div_ceil(out) } else { 0..1 };
        for part in parts {
            for expert in experts.clone() {
                let lead = (n == 3).then(|| expert..expert + 1);
                let read = |name: &str| -> Result<(Vec<f32>, Shape)> {
                    let shape = self.global(name)?.shape;
                    let region = match &lead {
                        Some(lead) => Region {
                            lead: Some(lead.clone()),
                            ..Region::along(&shape, 1, std::iter::once(0..shape[1]))
                        },
                        None => Region::whole(&shape),
                    };
                    let mut values = vec![0f32; region.local_shape().numel()];
                    let mut at = 0;
                    self.copy(name, &region, None, DType::F32, &mut |bytes| {
                        for (v, b) in values[at..].iter_mut().zip(bytes.chunks_exact(4)) {
                            *v = f32::from_le_bytes(b.try_into().expect("exact chunk"));
                        }
                        at += bytes.len() / 4;
                        Ok(())
                    })?;
                    Ok((values, shape))
                };
                let ((a, a_shape), (b, _)) = (read(&part.a)?, read(&part.b)?);
                let number = loaded.parts.len();
                let rank = a_shape[a_shape.len() - 2];
                for (b_row, row) in part.rows.ranges.iter().cloned().flatten().enumerate() {
                    if let Some(place) =
                        (expert * out + row).checked_sub(first).and_then(|r| loaded.rows.get_mut(r))
                    {
                        *place = Some((number, b_row));
                    }
                }
                loaded.parts.push(Matrices { rank, a, b });
            }
        }
        Ok(Some(loaded))
    }
}

/// Adapters by the parameter that they change.
pub(crate) type Adapters = BTreeMap<String, Vec<Part>>;
