//! The indexer loss: which formula, and the accumulated values.

use ms_core::{Divergence, Result, Tensor};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Which keys the indexer loss covers, and its formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexerObjective {
    /// MindSpeed-LLM's: the picked keys; with another formula for pooled entries than for tokens.
    MindSpeed,
    /// Megatron-LM's: the picked keys if `sparse`, else all that a query sees.
    Megatron {
        /// Whether the picked keys alone count.
        sparse: bool,
    },
}

impl IndexerObjective {
    /// Whether all keys that a query sees count, not only those that are picked.
    pub(super) fn of_all(self) -> bool {
        self == Self::Megatron { sparse: false }
    }

    /// The formula, of those whose indexers have `own` from MindSpeed-LLM.
    pub(super) fn divergence(self, own: Divergence) -> Divergence {
        match self {
            Self::MindSpeed => own,
            Self::Megatron { .. } => Divergence::MEGATRON,
        }
    }
}

/// The loss of a micro-batch's indexers.
#[derive(Clone, Debug)]
pub struct IndexerLoss {
    /// Which.
    pub objective: IndexerObjective,
    /// The factor of a query's divergence in gradients: with the coefficient and the scale of the main loss.
    pub factor: f64,
    /// The factor of a query's divergence in reports.
    pub weight: f64,
    /// Where layers report.
    pub losses: Arc<IndexerLosses>,
}

/// Losses of indexers, summed over the passes that record.
#[derive(Debug, Default)]
pub struct IndexerLosses(Mutex<BTreeMap<usize, Vec<(f64, Tensor)>>>);

impl IndexerLosses {
    pub(super) fn add(&self, layer: usize, weight: f64, sum: Tensor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(layer).or_default().push((weight, sum));
    }

    /// The sum of all since the last call, coefficients included; zero on a device without values.
    ///
    /// # Errors
    /// If a value cannot be read.
    pub fn take(&self) -> Result<f64> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut total = 0.0;
        for (weight, sum) in all.into_values().flatten().filter(|(_, sum)| !sum.is_meta()) {
            total += weight * sum.ready()?.to_reals()?[0];
        }
        Ok(total)
    }
}
