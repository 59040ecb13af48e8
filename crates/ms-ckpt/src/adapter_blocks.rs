//! Adapters of projections that are one parameter here, as one adapter of that parameter, and apart again.
//!
//! A peft folder has an adapter for each of `q`, `k` and `v`; Megatron has one of the packed projection. The one is the
//! others in blocks: with rank `r` and the three `A` one below the other, row `i` of its `B` is a row of the projection it
//! belongs to, in the columns of that projection's block, and zero elsewhere:
//!
//! ```text
//! B A = [ Bq  0   0 ] [ Aq ]      rows of q, k and v in the order of the packed projection
//!       [ 0   Bk  0 ] [ Ak ]      rank 3r, so alpha grows with it: alpha / r stays
//!       [ 0   0   Bv] [ Av ]
//! ```
//!
//! Megatron knows one rank for all modules: the others are filled up with zeros. The sum is the same number by number; trained
//! further, the zeros get values, and then the blocks cannot be told apart any more.

use ms_core::{DType, Region, Shape};
use ms_spec::params;
use serde_json::json;

use crate::adapter::{self, BLOCK_RANK, Part};
use crate::checkpoint::Checkpoint;
use crate::layout::peft;
use crate::name::{Matrix as Half, Name};
use crate::stored::{Global, Piece, Stored};
use crate::{Error, Mapped, Result};

/// A matrix that is being made.
struct Matrix {
    name: Name,
    shape: [usize; 2],
    dtype: DType,
    bytes: Vec<u8>,
}

impl Matrix {
    fn zeros(name: Name, shape: [usize; 2], dtype: DType) -> Self {
        Self { name, shape, dtype, bytes: vec![0; shape[0] * shape[1] * dtype.size()] }
    }

    /// The bytes of `n` elements of a row.
    fn at(&mut self, row: usize, column: usize, n: usize) -> &mut [u8] {
        let size = self.dtype.size();
        let start = (row * self.shape[1] + column) * size;
        &mut self.bytes[start..start + n * size]
    }
}

impl Checkpoint {
    /// With one adapter for each adapted parameter, of one rank for all. A checkpoint that has such already is returned as it
    /// is. Adapters are held in memory.
    ///
    /// # Errors
    /// Adapters of different ranks, of rows that are no projection, or of stacked experts among others that are joined.
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
            let [out, columns] = spec.shape[..] else {
                return Err(Error::Cut(format!(
                    "the adapter of {} cannot be filled up: merge it",
                    spec.name
                )));
            };
            let projections = peft::projections(self.config(), &spec)?;
            let first = self.dtype(&parts[0].a)?;
            let mut types = parts.iter().flat_map(|p| [&p.a, &p.b]);
            let same = types.all(|name| self.dtype(name).is_ok_and(|d| d == first));
            let dtype = if same { first } else { DType::F32 };
            let [a_name, b_name] = adapter::names(&spec.slot);
            let mut a = Matrix::zeros(a_name.clone(), [rank * blocks, columns], dtype);
            let mut b = Matrix::zeros(b_name.clone(), [out, rank * blocks], dtype);
            for part in parts {
                let block = match part.rows.is_whole() {
                    true => Some(0),
                    false => projections.iter().position(|rows| *rows == part.rows),
                };
                let block = block.filter(|&n| n < blocks).ok_or_else(|| {
                    Error::Cut(format!(
                        "an adapter of {} covers rows that are no projection: merge it",
                        spec.name
                    ))
                })?;
                let own = self.matrix(&part.a, dtype)?;
                for (k, row) in own.chunks_exact(columns * dtype.size()).enumerate() {
                    a.at(block * rank + k, 0, columns).copy_from_slice(row);
                }
                let own = self.matrix(&part.b, dtype)?;
                let rows = part.rows.ranges.iter().cloned().flatten();
                for (row, values) in rows.zip(own.chunks_exact(rank * dtype.size())) {
                    b.at(row, block * rank, rank).copy_from_slice(values);
                }
            }
            matrices.extend([a, b]);
            let rows = Region::along(&spec.shape, 0, std::iter::once(0..out));
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

    /// With the adapters of projections apart that [`Checkpoint::with_joined_adapters`] joined. A checkpoint that has none
    /// such, or in which they were trained on together, is returned as it is.
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
            let ([part], [_, columns]) = (&parts[..], &spec.shape[..]) else { return Ok(self) };
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
                let mut b_own = Matrix::zeros(name(Half::B), [numbers.len(), rank], dtype);
                for (i, &row) in numbers.iter().enumerate() {
                    let values = &mut b[(row * all + block * rank) * size..][..rank * size];
                    b_own.at(i, 0, rank).copy_from_slice(values);
                    values.fill(0); // what is left over in the end belongs to no block
                }
                let a_own = &a[block * rank * columns * size..][..rank * columns * size];
                if a_own.iter().chain(&b_own.bytes).all(|byte| *byte == 0) {
                    continue; // a projection without an adapter
                }
                let shape = [rank, *columns];
                let a_own = Matrix { name: name(Half::A), shape, dtype, bytes: a_own.to_vec() };
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
            self.stored.push(Stored {
                name: m.name.to_string(),
                file: self.files.len() - 1,
                dtype: m.dtype,
                shape: m.shape.to_vec(),
                start: 0,
                strides: None,
                quantised: None,
            });
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
