//! The compressor for pooled entries: one entry for every complete window of tokens.

use crate::cache::PoolCache;
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use crate::residual::NormShape;
use ms_core::{ParamId, Pooling, Result, Rotary, Tensor, Var, Window, ops};
use ms_dist::GatheredRows;
use ms_spec::Role;
use std::sync::Arc;

/// Rows that windows are pooled of.
static ROWS_TO_POOL: GatheredRows = GatheredRows {
    rows: "rows to pool",
    again: "rows to pool again",
    gradients: "gradients of rows to pool",
};

/// By what their softmax weighs them.
static GATES: GatheredRows = GatheredRows {
    rows: "gates of rows",
    again: "gates of rows again",
    gradients: "gradients of gates of rows",
};

/// One compressor.
#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    kv: Linear,
    gate: Linear,
    ape: ParamId,
    norm: Linear,
    norm_shape: NormShape,
    shape: Pooling,
    rotary: Rotary,
}

/// Entries that a pass can see.
pub(crate) struct Entries {
    /// `[B,D]`.
    pub(crate) rows: Var,
    /// For each document: the row of its first entry, and how many it has.
    pub(crate) documents: Vec<(usize, usize)>,
}

/// Windows that a pass completes.
#[derive(Default)]
struct Complete {
    windows: Vec<Window>,
    /// Positions of their first tokens.
    positions: Vec<i32>,
    /// Where entries are kept, with a cache.
    places: Vec<usize>,
    /// For each document: the row of its first entry, and how many it has in the end.
    documents: Vec<(usize, usize)>,
}

impl Compressor {
    pub(crate) fn new(scope: &Scope<'_>, shape: Pooling, norm_shape: NormShape, rotary: &Rotary) -> Self {
        Self {
            kv: scope.linear(Role::Wkv),
            gate: scope.linear(Role::Wgate),
            ape: scope.id(Role::Ape),
            norm: scope.linear(Role::Norm),
            norm_shape,
            shape,
            rotary: rotary.clone(),
        }
    }

    pub(crate) fn shape(&self) -> Pooling {
        self.shape
    }

    /// The entries of every document, computed from the stream `x[T,H]` and the cache contents. If context-parallel ranks
    /// share documents, rows are gathered and every rank computes all entries: windows are those of a single rank, wherever a
    /// rank's tokens begin.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut PoolCache>,
        x: &Var,
    ) -> Result<Entries> {
        let (kv, gate) = (pass.linear(x, self.kv)?, pass.linear(x, self.gate)?);
        let Some(cache) = cache else {
            let (kv, gate) = (pass.rows_of_all(&kv, &ROWS_TO_POOL)?, pass.rows_of_all(&gate, &GATES)?);
            let complete = self.windows_of_documents(pass)?;
            let rows = self.pool(pass, &kv, &gate, &complete)?;
            return Ok(Entries { rows, documents: complete.documents });
        };
        let (complete, rows) = self.join(pass, cache, [kv.value(), gate.value()])?;
        let [kv, gate] = rows.map(|rows| pass.g.constant(rows));
        let new = self.pool(pass, &kv, &gate, &complete)?;
        cache.keep(new.value(), &complete.places)?;
        Ok(Entries { rows: pass.g.constant(cache.entries().clone()), documents: complete.documents })
    }

    /// All windows of documents that ranks hold from their beginning.
    fn windows_of_documents(&self, pass: &Pass<'_>) -> Result<Complete> {
        let ratio = self.shape.ratio;
        let (documents, positions) = pass.batch.documents()?;
        let mut complete = Complete::default();
        for s in documents {
            let count = s.q_len / ratio;
            complete.documents.push((complete.windows.len(), count));
            for w in 0..count {
                let own = s.q_start + w * ratio;
                complete.windows.push(self.window(own, w));
                complete.positions.push(positions[own]);
            }
        }
        Ok(complete)
    }

    fn window(&self, own: usize, number: usize) -> Window {
        Window { own, before: (self.shape.overlap && number > 0).then(|| own - self.shape.ratio) }
    }

    /// The windows that new tokens complete, and the rows that those are made of.
    fn join(
        &self,
        pass: &Pass<'_>,
        cache: &mut PoolCache,
        new: [&Tensor; 2],
    ) -> Result<(Complete, [Tensor; 2])> {
        let ratio = self.shape.ratio;
        let (mut complete, mut sources) = (Complete::default(), Vec::new());
        for (s, &slot) in pass.batch.segments.iter().zip(pass.slots) {
            let seen = s.k_len - s.q_len;
            let (first, last) = (seen / ratio, s.k_len / ratio);
            // The current window and, with overlap, the one before.
            let begin = (first * ratio).saturating_sub(if self.shape.overlap { ratio } else { 0 });
            let row = sources.len();
            sources.extend((begin..seen).map(|p| Err(cache.remembered(slot, p))));
            sources.extend((s.q_start..s.q_start + s.q_len).map(Ok));
            for w in first..last {
                complete.windows.push(self.window(row + w * ratio - begin, w));
                complete.positions.push((w * ratio) as i32);
                complete.places.push(cache.place(slot, w));
            }
            complete.documents.push((cache.place(slot, 0), last));
        }
        let rows = [cache.rows(0, new[0], &sources)?, cache.rows(1, new[1], &sources)?];
        for (s, &slot) in pass.batch.segments.iter().zip(pass.slots) {
            cache.remember(slot, s.k_len - s.q_len, s.q_start..s.q_start + s.q_len, new)?;
        }
        Ok((complete, rows))
    }

    /// Entries of complete windows, normed and rotated.
    fn pool(&self, pass: &mut Pass<'_>, kv: &Var, gate: &Var, complete: &Complete) -> Result<Var> {
        let ape = pass.param(self.ape);
        let ape = ops::cast(pass.g, &ape, ape.value().dtype().wide())?;
        let windows: Arc<[Window]> = complete.windows.as_slice().into();
        let pooled = ops::pool_windows(pass.g, kv, gate, &ape, &windows, &self.shape)?;
        let normed = self.norm_shape.apply(pass, self.norm, &pooled)?;
        let positions = Tensor::from_slice(pass.g.device().arena(), [windows.len()], &complete.positions)?;
        ops::rotate_last(pass.g, &normed, self.shape.dim, &self.rotary, &positions, false)
    }
}
