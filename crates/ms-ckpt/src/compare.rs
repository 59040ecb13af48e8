//! Comparison of two checkpoints of one model, and verification of a single one.

use std::collections::BTreeSet;

use ms_core::{DType, Region, Shape};

use crate::Result;
use crate::checkpoint::{Checkpoint, counts_words};
use crate::name::Name;
use crate::stored::{Global, Piece};

/// How a tensor of one checkpoint relates to the tensor of the same name in another.
#[derive(Clone, Debug, PartialEq)]
pub enum Relation {
    /// Every element has the same value.
    Equal,
    /// Some have other values.
    Different {
        /// How many elements differ.
        elements: usize,
        /// The largest difference.
        max_abs: f64,
        /// The largest difference over the larger magnitude of the two values.
        max_rel: f64,
    },
    /// Another shape in the second.
    Shape(Vec<usize>),
    /// Only in the first.
    OnlyFirst,
    /// Only in the second.
    OnlySecond,
}

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Canonical name.
    pub name: String,
    /// Element types in both, where the tensor is in both.
    pub dtypes: (Option<DType>, Option<DType>),
    /// The outcome.
    pub relation: Relation,
}

/// The result of reading every element of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verified {
    /// Tensors and elements that were read.
    pub tensors: usize,
    /// Elements of all tensors.
    pub elements: usize,
    /// Tensors with values that are not finite, and how many.
    pub not_finite: Vec<(String, usize)>,
    /// Copies on other ranks, or parts that overlap others, that differ from the first: canonical name and file, each pair once.
    pub unequal_copies: Vec<(String, String)>,
}

/// Elements that are read at a time.
const CHUNK: usize = 1 << 20;

/// Ranges of rows of about [`CHUNK`] elements that make up a tensor, one after the other: a shape may claim any number.
fn slices(shape: &Shape) -> impl Iterator<Item = Region> + use<> {
    let shape = *shape;
    let rows = shape.first().copied().unwrap_or(1);
    let width = shape.numel() / rows.max(1);
    let step = (CHUNK / width.max(1)).max(1);
    // Of a tensor without elements there may be more rows than can be counted.
    let rows = if width == 0 { 0 } else { rows };
    (0..rows)
        .step_by(step)
        .map(move |r| Region::along(&shape, 0, std::iter::once(r..r.saturating_add(step).min(rows))))
}

impl Checkpoint {
    /// Compares the files with the checksums recorded when they were written, if any: in checkpoints of this toolchain's own
    /// form, and next to those that it converted.
    ///
    /// # Errors
    /// The file whose bytes are not those that were written; I/O errors.
    pub fn check_sums(&self) -> Result<()> {
        if self.form != crate::Form::Sharded {
            return crate::checksums::check(&self.root, self.files.iter().map(crate::Mapped::path));
        }
        // Adapters from elsewhere may have another form.
        let folders = self.files.iter().filter_map(|file| file.path().parent());
        let folders = folders.filter(|folder| folder.starts_with(&self.root));
        let folders: std::collections::BTreeSet<_> = folders.collect();
        folders.into_iter().try_for_each(crate::sharded::check_sums)
    }

    fn floats(&self, name: &Name, region: &Region, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        self.copy(name, region, None, DType::F32, &mut |bytes| {
            out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("exact chunk"))));
            Ok(())
        })
    }

    /// Compares every tensor of the model with that of another checkpoint, whatever form and sharding they have.
    ///
    /// Padding rows of vocabulary tensors are ignored. `each` is called with the outcomes in the order of names.
    ///
    /// # Errors
    /// Damage found while reading.
    pub fn compare(&self, other: &Self, each: &mut dyn FnMut(Compared)) -> Result<()> {
        let names: BTreeSet<&Name> = self.globals.keys().chain(other.globals.keys()).collect();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for name in names {
            let (first, second) = (self.globals.get(name), other.globals.get(name));
            let dtypes = (first.map(|g| g.dtype), second.map(|g| g.dtype));
            let relation = match (first, second) {
                (Some(_), None) => Relation::OnlyFirst,
                (None, _) => Relation::OnlySecond,
                (Some(x), Some(y)) => {
                    let shape = self.without_padding(name, &x.shape);
                    if shape != other.without_padding(name, &y.shape) {
                        Relation::Shape(y.shape.to_vec())
                    } else {
                        let mut seen = (0, 0f64, 0f64);
                        for region in slices(&shape) {
                            self.floats(name, &region, &mut a)?;
                            other.floats(name, &region, &mut b)?;
                            for (&x, &y) in a.iter().zip(&b) {
                                if x.to_bits() != y.to_bits() && x != y {
                                    let (x, y) = (f64::from(x), f64::from(y));
                                    let abs = (x - y).abs();
                                    let abs = if abs.is_nan() { f64::INFINITY } else { abs };
                                    let rel = abs / x.abs().max(y.abs()).max(f64::MIN_POSITIVE);
                                    seen = (seen.0 + 1, seen.1.max(abs), seen.2.max(rel));
                                }
                            }
                        }
                        match seen {
                            (0, ..) => Relation::Equal,
                            (elements, max_abs, max_rel) => {
                                Relation::Different { elements, max_abs, max_rel }
                            }
                        }
                    }
                }
            };
            each(Compared { name: name.to_string(), dtypes, relation });
        }
        Ok(())
    }

    /// The shape of a tensor without rows that only pad the vocabulary.
    fn without_padding(&self, name: &Name, shape: &Shape) -> Shape {
        let mut dims = shape.to_vec();
        if let Some(rows) = dims.first_mut().filter(|_| counts_words(name)) {
            *rows = (*rows).min(self.config.vocab);
        }
        Shape::new(&dims)
    }

    /// Reads every element: finds values that are not finite, and copies on several ranks, or overlapping parts, that differ.
    ///
    /// # Errors
    /// The first damage, with its place.
    pub fn verify(&self) -> Result<Verified> {
        self.check_sums()?;
        let mut found = Verified::default();
        let mut values = Vec::new();
        for (name, global) in &self.globals {
            let mut bad = 0;
            for region in slices(&global.shape) {
                if global.dtype.is_float() {
                    self.floats(name, &region, &mut values)?;
                    bad += values.iter().filter(|x| !x.is_finite()).count();
                } else {
                    self.copy(name, &region, None, global.dtype, &mut |_| Ok(()))?;
                }
            }
            found.tensors += 1;
            found.elements = found.elements.saturating_add(global.shape.numel());
            if bad > 0 {
                found.not_finite.push((name.to_string(), bad));
            }
        }
        let mut unequal = BTreeSet::new();
        let parts = |g: &Global| g.pieces.iter().map(Piece::elements).fold(0, usize::saturating_add);
        let overlapping = self.globals.iter().filter(|(_, g)| parts(g) > g.shape.numel());
        let overlapping = overlapping.flat_map(|(name, g)| g.pieces.iter().map(move |piece| (name, piece)));
        for (name, piece) in self.copies.iter().map(|(name, piece)| (name, piece)).chain(overlapping) {
            let stored = &self.stored[piece.stored];
            let (mut first, mut copy) = (Vec::new(), Vec::new());
            self.copy(name, &piece.region, piece.flat.clone(), stored.dtype, &mut |bytes| {
                first.extend_from_slice(bytes);
                Ok(())
            })?;
            self.copy_run(piece, 0, piece.elements(), &mut |bytes, _| {
                copy.extend_from_slice(bytes);
                Ok(())
            })?;
            if first != copy {
                let file = self.files[stored.file].path();
                let file = file.strip_prefix(&self.root).unwrap_or(file).display().to_string();
                unequal.insert((name.to_string(), file));
            }
        }
        found.unequal_copies = unequal.into_iter().collect();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_make_up_a_tensor_and_those_of_any_shape_begin_at_once() {
        let of = |shape: &[usize]| slices(&Shape::new(shape));
        assert!(of(&[]).eq([Region::whole(&Shape::new(&[]))]));
        let rows: Vec<usize> = of(&[5, 1 << 19]).map(|slice| slice.local_shape()[0]).collect();
        assert_eq!(rows, [2, 2, 1]);
        assert_eq!(of(&[1 << 62, 0]).count() + of(&[0, 3]).count(), 0);
        assert_eq!(of(&[1 << 62, 2]).next().map(|slice| slice.first()), Some(0));
    }
}
