//! Training of sparse-attention indexers by a loss of their own.

use ms_nn::{IndexerLoss, IndexerLosses, IndexerObjective};
use std::sync::Arc;

/// The loss that trains indexers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexerTraining {
    /// Which.
    pub objective: IndexerObjective,
    /// Its coefficient.
    pub coeff: f64,
}

impl IndexerTraining {
    /// What upstream's logs call it.
    pub fn name(&self) -> &'static str {
        match self.objective {
            IndexerObjective::MindSpeed => "dsa_indexer_loss",
            IndexerObjective::Megatron { .. } => "indexer loss",
        }
    }

    /// That of a micro-batch of `tokens` tokens, one of `micro_batches`, where the main loss is multiplied by `scale`: the mean
    /// over all its queries, whether they count in the main loss or not.
    ///
    /// Where the main loss is a sum over tokens, to be divided by how many there are in all, Megatron-LM takes the sum over
    /// queries, too; MindSpeed-LLM the mean of the micro-batch, which then weighs the less the more tokens there are.
    ///
    /// # Source
    /// Megatron-LM (2026), `dsa_indexer_loss.py`, `reduce_indexer_kl_sum`; `schedules.py`, `forward_step_calc_loss`.
    /// MindSpeed-LLM (2026), `dsa_indexer.py`, `forward_step_dsa_wrapper`.
    pub(crate) fn of(
        &self,
        (tokens, micro_batches): (usize, usize),
        (per_token_loss, scale): (bool, f64),
        losses: &Arc<IndexerLosses>,
    ) -> Arc<IndexerLoss> {
        let sums = per_token_loss && self.objective != IndexerObjective::MindSpeed;
        let weight = if sums { self.coeff } else { self.coeff / tokens.max(1) as f64 };
        let of_loss = if per_token_loss { 1.0 } else { 1.0 / micro_batches as f64 };
        let factor = weight * of_loss * scale;
        Arc::new(IndexerLoss { objective: self.objective, factor, weight, losses: losses.clone() })
    }
}
