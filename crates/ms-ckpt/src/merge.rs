//! Adapters of a checkpoint: loaded from another checkpoint, and merged while reading.

use ms_core::{DType, Region, Shape};
use ms_spec::Slot;

use crate::adapter::{BLOCK_RANK, GROUPED, Loaded, Matrices, Merge};
use crate::checkpoint::Checkpoint;
use crate::name::{Name, TensorKind};
use crate::{Error, Result};

impl Checkpoint {
    /// Parameters that have an adapter.
    pub fn adapted(&self) -> impl Iterator<Item = &Slot> {
        self.adapters.keys()
    }

    /// The name of an adapter of experts that files hold grouped, without an expert's name.
    pub fn grouped_adapter(&self) -> Option<&str> {
        let first = self.adapters.values().flatten().filter_map(|p| self.globals.get(&p.a)?.pieces.first());
        first.map(|piece| self.stored[piece.stored].name.as_str()).find(|name| name.ends_with(GROUPED[0]))
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

    /// From now on, adds the adapters to the weights that are read.
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
    pub(crate) fn load_adapter(
        &self,
        name: &Name,
        bounds: &std::ops::Range<usize>,
    ) -> Result<Option<Loaded>> {
        let (Some(merge), TensorKind::Weight(slot)) = (self.merge, name.kind()) else { return Ok(None) };
        let Some(parts) = self.adapters.get(&slot) else { return Ok(None) };
        let shape = self.global(name)?.shape;
        let dtype = self.global(name)?.dtype;
        if !matches!(dtype, DType::Bf16 | DType::F16 | DType::F32) {
            return Err(Error::Cast { name: name.to_string(), from: DType::F32, to: dtype });
        }
        let n = shape.len();
        let (out, columns) = (shape[n - 2], shape[n - 1]);
        let total = shape.numel() / columns.max(1);
        let first = (bounds.start / columns.max(1)).min(total);
        let last = bounds.end.div_ceil(columns.max(1)).min(total);
        let mut loaded = Loaded { merge, columns, first, rows: vec![None; last - first], parts: Vec::new() };
        // From a stack, only the requested experts.
        let experts = if n == 3 { first / out..last.div_ceil(out) } else { 0..1 };
        for part in parts {
            for expert in experts.clone() {
                let lead = (n == 3).then(|| expert..expert + 1);
                let read = |name: &Name| -> Result<(Vec<f32>, Shape)> {
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
