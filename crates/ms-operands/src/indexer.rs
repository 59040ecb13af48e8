//! The indexer's training loss: the divergence between its distribution over keys and attention's.

/// The divergence between an indexer's distribution over the keys of a query and attention's, and how zeros are avoided. `t`
/// is attention's, which sums to one, `p` the softmax of the indexer's scores over the same keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// `Σ (t + eps) · (ln(t + eps) - ln(p + eps))`.
    Smoothed {
        /// Added to both.
        eps: f64,
    },
    /// `Σ t · (ln max(t / (Σ t + eps), eps) - ln(p + eps))`.
    Floored {
        /// Added, and the smallest argument of a logarithm.
        eps: f64,
    },
    /// `Σ t · (ln max(t, eps) - ln p)`, with the logarithm of the softmax itself.
    Exact {
        /// The smallest argument of a logarithm.
        eps: f64,
    },
}

impl Divergence {
    /// Over picked keys.
    ///
    /// # Source
    /// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/dsa_indexer.py`, `compute_dsa_indexer_loss`.
    pub const PICKED: Self = Self::Smoothed { eps: 1e-8 };
    /// Over picked pooled entries.
    ///
    /// # Source
    /// The same file, `compute_dsa_indexer_loss_dsv4` and `compute_indexer_loss`.
    pub const POOLED: Self = Self::Floored { eps: 1e-9 };
    /// Megatron-LM's.
    ///
    /// # Source
    /// Megatron-LM (2026), `megatron/core/transformer/experimental_attention_variant/dsa_indexer_loss.py`.
    pub const MEGATRON: Self = Self::Exact { eps: 1e-10 };
}
