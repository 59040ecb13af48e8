//! Indexer statistics.

use super::Engine;
use crate::Result;
use ms_core::{Axis, Tensor};
use ms_dist::ReduceOp;

impl Engine {
    /// The loss of indexers since the last call, with its coefficient: a mean over the model's layers, as upstream counts
    /// them (prediction modules, which it adds to the sum, do not count as layers), and over this many micro-batches of each
    /// replica. `None`: no indexer is trained.
    ///
    /// # Source
    /// MindSpeed-LLM (2026), `dsa_indexer.py`, `DSAIndexerLossLoggingHelper`; Megatron-LM's of the same name.
    pub(super) fn indexer_loss(&self, micro_batches: usize) -> Result<Option<f64>> {
        let config = self.model.config();
        if self.config.loss.indexer.is_none() || config.indexer.is_none() {
            return Ok(None);
        }
        let mine = Tensor::from_slice(self.device.arena(), [1], &[self.indexer_losses.take()?])?;
        let sum = self.ctx.dp_cp.all_reduce("loss of indexers", mine, ReduceOp::Sum)?.wait()?;
        let sum = self.ctx.pp.all_reduce("loss of indexers", sum, ReduceOp::Sum)?.wait()?;
        let passes = config.layers * micro_batches * self.ctx.grid.size(Axis::Dp);
        Ok(Some(sum.ready()?.as_slice::<f64>()?[0] / passes.max(1) as f64))
    }
}
