//! Combining the adapters of separate projections into one adapter of the packed parameter, and splitting it again.
//!
//! A peft folder has an adapter for each of `q`, `k` and `v`; Megatron has one for the packed projection. The packed adapter
//! contains the others as blocks: its rank is `3r`, its `A` is the three `A` stacked, and row `i` of its `B` is the row of
//! the projection it belongs to, placed in the columns of that projection's block, with zeros elsewhere:
//!
//! ```text
//! B A = [ Bq  0   0 ] [ Aq ]      rows of q, k and v in the order of the packed projection
//!       [ 0   Bk  0 ] [ Ak ]      rank 3r, so alpha grows with it: alpha / r stays
//!       [ 0   0   Bv] [ Av ]
//! ```
//!
//! Megatron has one rank for all modules, so the other adapters are padded with zeros. The product is the same number by
//! number. After further training the zeros have values, and the blocks can no longer be separated.

use ms_core::{DType, Region, Shape};
use ms_spec::params;
use serde_json::json;

use crate::adapter::{self, BLOCK_RANK, Part};
use crate::checkpoint::Checkpoint;
use crate::layout::peft;
use crate::name::{Matrix as Half, Name};
use crate::stored::{Global, Piece, Stored};
use crate::torch::TensorView;
use crate::{Error, Mapped, Result};

/// A matrix that is being made, or a stack of them.
struct Matrix {
    name: Name,
    /// `[rows, columns]`, of a stack `[experts, rows, columns]`.
    shape: Vec<usize>,
    dtype: DType,
    bytes: Vec<u8>,
}

impl Matrix {
    fn zeros(name: Name, stack: &[usize], shape: [usize; 2], dtype: DType) -> Self {
        let shape = [stack, &shape[..]].concat();
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.size()];
        Self { name, shape, dtype, bytes }
    }

    /// The bytes of `n` elements of a row, counted over a stack.
    fn at(&mut self, row: usize, column: usize, n: usize) -> &mut [u8] {
        let size = self.dtype.size();
        let start = (row * self.shape[self.shape.len() - 1] + column) * size;
        &mut self.bytes[start..start + n * size]
    }
}

impl Checkpoint {
    /// With one adapter per adapted parameter, all of the same rank. A checkpoint that already has such adapters is returned
    /// unchanged. Adapters are held in memory.
    ///
    /// # Errors
    /// Adapters of different ranks, or of rows that are not a projection.
    pub fn with_joined_adapters(self) -> Result<Self> {
        let blocks = self.blocks()?;
        if blocks == 1 {
            return Ok(self);
        }
        let rank = self.adapter_rank();
        let rank = rank.ok_or_else(|| Error::folder(self.root(), "adapters of different ranks"))?;
        let (mut matrices, mut joined) = (Vec::new(), Vec::new());
        for spec in params(self.config()) {
            let Some(parts) = self.adapters.get(&spec.slot) else { continue };
            let (stack, [out, columns]) = sizes(&spec.shape);
            let experts: usize = stack.iter().product();
            let projections = peft::projections(self.config(), &spec)?;
            let first = self.dtype(&parts[0].a)?;
            let mut types = parts.iter().flat_map(|p| [&p.a, &p.b]);
            let same = types.all(|name| self.dtype(name).is_ok_and(|d| d == first));
            let dtype = if same { first } else { DType::F32 };
            let [a_name, b_name] = adapter::names(&spec.slot);
            let mut a = Matrix::zeros(a_name.clone(), stack, [rank * blocks, columns], dtype);
            let mut b = Matrix::zeros(b_name.clone(), stack, [out, rank * blocks], dtype);
            for part in parts {
                let block = if part.rows.is_whole() {
                    Some(0)
                } else {
                    projections.iter().position(|rows| *rows == part.rows)
                };
                let block = block.filter(|&n| n < blocks).ok_or_else(|| {
                    Error::Cut(format!(
                        "an adapter of {} covers rows that are no projection: merge it",
                        spec.name
                    ))
                })?;
                let own = self.matrix(&part.a, dtype)?;
                for (k, row) in own.chunks_exact(columns * dtype.size()).enumerate() {
                    let row_of = k / rank * rank * blocks + block * rank + k % rank;
                    a.at(row_of, 0, columns).copy_from_slice(row);
                }
                let own = self.matrix(&part.b, dtype)?;
                let rows = || part.rows.ranges.iter().cloned().flatten();
                let rows = (0..experts).flat_map(|e| rows().map(move |row| e * out + row));
                for (row, values) in rows.zip(own.chunks_exact(rank * dtype.size())) {
                    b.at(row, block * rank, rank).copy_from_slice(values);
                }
            }
            matrices.extend([a, b]);
            let rows = Region::along(&spec.shape, stack.len(), std::iter::once(0..out));
            joined.push((spec.slot, vec![Part { a: a_name, b: b_name, rows }]));
        }
        let mut this = self;
        for (name, parts) in joined {
            for part in this.adapters.insert(name, parts).into_iter().flatten() {
                this.globals.remove(&part.a);
                this.globals.remove(&part.b);
            }
        }
        this.hold(matrices);
        this.args.insert(BLOCK_RANK.to_owned(), json!(rank));
        Ok(this)
    }

    /// With the adapters that [`Checkpoint::with_joined_adapters`] joined separated by projection. A checkpoint without
    /// joined adapters, or in which they were trained further together, is returned unchanged.
    ///
    /// # Errors
    /// What reading returns.
    pub fn with_parted_adapters(self) -> Result<Self> {
        let rank = self.args().get(BLOCK_RANK).and_then(serde_json::Value::as_u64).map(|n| n as usize);
        let (Some(rank), Some(all)) = (rank, self.adapter_rank()) else { return Ok(self) };
        if rank == 0 || all <= rank || !all.is_multiple_of(rank) {
            return Ok(self);
        }
        let (mut matrices, mut parted) = (Vec::new(), Vec::new());
        for spec in params(self.config()) {
            let Some(parts) = self.adapters.get(&spec.slot) else { continue };
            let [part] = &parts[..] else { return Ok(self) };
            let (stack, [out, columns]) = sizes(&spec.shape);
            let experts: usize = stack.iter().product();
            let dtype = self.dtype(&part.a)?;
            if self.dtype(&part.b)? != dtype {
                return Ok(self);
            }
            let (a, mut b) = (self.matrix(&part.a, dtype)?, self.matrix(&part.b, dtype)?);
            let size = dtype.size();
            let mut own = Vec::new();
            let projections = peft::projections(self.config(), &spec)?;
            if projections.len() * rank > all {
                return Ok(self);
            }
            let apart = projections.len() > 1;
            for (block, rows) in projections.into_iter().enumerate() {
                let numbers: Vec<usize> = rows.ranges.iter().cloned().flatten().collect();
                let name = |matrix| Name::low_rank(matrix, &spec.slot, apart.then_some(block));
                let mut a_own = Matrix::zeros(name(Half::A), stack, [rank, columns], dtype);
                let mut b_own = Matrix::zeros(name(Half::B), stack, [numbers.len(), rank], dtype);
                for e in 0..experts {
                    let from = (e * all + block * rank) * columns * size;
                    a_own
                        .at(e * rank, 0, rank * columns)
                        .copy_from_slice(&a[from..][..rank * columns * size]);
                    for (i, &row) in numbers.iter().enumerate() {
                        let values = &mut b[((e * out + row) * all + block * rank) * size..][..rank * size];
                        b_own.at(e * numbers.len() + i, 0, rank).copy_from_slice(values);
                        values.fill(0); // what is left over in the end belongs to no block
                    }
                }
                if a_own.bytes.iter().chain(&b_own.bytes).all(|byte| *byte == 0) {
                    continue; // a projection without an adapter
                }
                own.push(Part { a: a_own.name.clone(), b: b_own.name.clone(), rows });
                matrices.extend([a_own, b_own]);
            }
            if b.iter().any(|byte| *byte != 0) {
                return Ok(self);
            }
            parted.push((spec.slot, own));
        }
        let mut this = self;
        this.adapters.extend(parted);
        this.adapters.retain(|_, parts| !parts.is_empty());
        this.hold(matrices);
        this.args.remove(BLOCK_RANK);
        Ok(this)
    }

    /// How many adapters the parameter has at most that has most of them.
    fn blocks(&self) -> Result<usize> {
        let mut most = 1;
        for spec in params(self.config()) {
            let apart = self.adapters.get(&spec.slot).is_some_and(|p| p.iter().any(|p| !p.rows.is_whole()));
            if apart {
                most = most.max(peft::projections(self.config(), &spec)?.len());
            }
        }
        Ok(most)
    }

    /// The bytes of a matrix of an adapter.
    fn matrix(&self, name: &Name, dtype: DType) -> Result<Vec<u8>> {
        let shape = self.global(name)?.shape;
        let mut bytes = vec![0; shape.numel() * dtype.size()];
        self.read_named(name, &Region::whole(&shape), None, dtype, &mut bytes)?;
        Ok(bytes)
    }

    /// Takes matrices that were made.
    fn hold(&mut self, matrices: Vec<Matrix>) {
        for m in matrices {
            self.files.push(Mapped::held(&self.root, m.bytes));
            let view = TensorView { dtype: m.dtype, shape: m.shape.clone(), start: 0, strides: None };
            self.stored.push(Stored::of(m.name.to_string(), self.files.len() - 1, view));
            let shape = Shape::new(&m.shape);
            let piece = Piece {
                stored: self.stored.len() - 1,
                region: Region::whole(&shape),
                flat: None,
                view: None,
            };
            self.globals.insert(m.name, Global { shape, dtype: m.dtype, pieces: vec![piece] });
        }
    }
}

/// The dimensions of a stack, if it is one, and those of its matrices.
fn sizes(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (stack, matrix) = shape.split_at(shape.len() - 2);
    (stack, [matrix[0], matrix[1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_spec::{Part as Of, Place, Role, Slot};

    /// As MindSpeed-LLM's `set_model_layer_mlp_lora` has it: one `A` for both projections of an expert, half of the rows of `B`.
    #[test]
    fn a_packed_adapter_of_experts_is_one_of_each_experts_projections() {
        let dir = tempfile::tempdir().unwrap();
        let json = json!({
            "model_type": "qwen3_moe", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4,
            "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 8, "num_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 3
        });
        let config = ms_spec::hf::read_config(&json).unwrap();
        crate::write_hf(dir.path(), &config, DType::F32, false, &mut |spec| {
            Ok(vec![0; spec.shape.numel() * 4])
        })
        .unwrap();
        let mut source = crate::open(dir.path()).unwrap();
        let slot = Slot {
            place: Place::Layer(0),
            part: Of::Experts,
            half: None,
            role: Role::LinearFc1,
            bias: false,
        };
        let [a, b] = adapter::names(&slot);
        // Elements are their own numbers: A is [2, 2, 4], B [2, 6, 2].
        let counted = |name: &Name, shape: Vec<usize>| {
            let n: usize = shape.iter().product();
            let bytes = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
            Matrix { name: name.clone(), shape, dtype: DType::F32, bytes }
        };
        source.hold(vec![counted(&a, vec![2, 2, 4]), counted(&b, vec![2, 6, 2])]);
        let rows = Region::along(&Shape::new(&[2, 6, 4]), 1, std::iter::once(0..6));
        source.adapters.insert(slot, vec![Part { a, b, rows }]);
        let (tensors, modules) = peft::tensors(&source).unwrap();
        assert_eq!(modules, ["gate_proj", "up_proj"]);
        let got: Vec<(String, Vec<usize>, Vec<f32>)> = tensors
            .into_iter()
            .map(|t| {
                let mut bytes = vec![0; t.shape.iter().product::<usize>() * 4];
                source.read_named(&t.global, &t.region, None, DType::F32, &mut bytes).unwrap();
                (t.name, t.shape, ms_testing::floats(&bytes))
            })
            .collect();
        let count = |range: std::ops::Range<u8>| range.map(f32::from).collect::<Vec<f32>>();
        let mut want = Vec::new();
        for (e, a, gate, up) in [(0, 0..8, 0..6, 6..12), (1, 8..16, 12..18, 18..24)] {
            for (projection, b) in [("gate", gate), ("up", up)] {
                let name = format!("base_model.model.model.layers.0.mlp.experts.{e}.{projection}_proj");
                want.push((format!("{name}.lora_A.weight"), vec![2, 4], count(a.clone())));
                want.push((format!("{name}.lora_B.weight"), vec![3, 2], count(b)));
            }
        }
        assert_eq!(got, want);
    }
}
