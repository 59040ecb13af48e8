//! The share of a micro-batch that a context-parallel rank has.

use crate::Result;
use ms_core::Arena;
use ms_data::MicroBatch;
use ms_dist::ParallelCtx;
use ms_nn::Batch;

/// Which tokens of a micro-batch a rank has.
pub(crate) struct Share {
    /// Their numbers in the micro-batch, in the order in which the rank holds them; `None`: all.
    tokens: Option<Vec<usize>>,
}

/// A rank's tokens.
pub(crate) struct Part {
    pub(crate) labels: Vec<i32>,
}

/// The share of the rank of `ctx` in `mb`.
///
/// # Errors
/// If the micro-batch cannot be shared out.
pub(crate) fn share(_mb: &MicroBatch, _ctx: &ParallelCtx) -> Result<Share> {
    Ok(Share { tokens: None })
}

impl Share {
    /// The rank's elements of a value for each token.
    pub(crate) fn take<T: Copy>(&self, values: &[T]) -> Vec<T> {
        match &self.tokens {
            None => values.to_vec(),
            Some(tokens) => tokens.iter().map(|&t| values[t]).collect(),
        }
    }

    pub(crate) fn of(&self, mb: &MicroBatch) -> Part {
        Part { labels: self.take(&mb.labels) }
    }

    /// Of each of the rank's tokens the row of the micro-batch it stands in.
    pub(crate) fn rows(&self, mb: &MicroBatch) -> Vec<u32> {
        let total = mb.tokens.len();
        let mut row_of = Vec::with_capacity(total);
        for (row, &end) in mb.row_ends.iter().enumerate() {
            row_of.resize(end, row as u32);
        }
        self.take(&row_of)
    }

    /// The rank's tokens as a batch.
    pub(crate) fn batch(&self, arena: &Arena, mb: &MicroBatch) -> Result<Batch> {
        Ok(Batch::new(arena, &self.take(&mb.tokens), &self.take(&mb.position_ids), &mb.cu_seqlens)?)
    }
}
