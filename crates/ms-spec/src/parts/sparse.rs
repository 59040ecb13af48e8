//! Sparse attention: a scorer beside attention picks the keys that each query sees.

use ms_core::Partition;

use crate::kept::Activations;
use crate::params::{SumGrad, Table};
use crate::rule::{How, NO_RING, Rule, UNCONCERNED, nothing};
use crate::sizes::Norm;
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "sparse attention",
    tp: How::Shared("every rank scores all keys"),
    cp: How::WholeDocuments {
        how: "gathered: latents and the indexer's keys; queries pick among the keys of whole documents. Ulysses: heads for tokens, picks and the indexer's keys gathered",
        otherwise: NO_RING,
    },
    ep: UNCONCERNED,
    has: |c| c.indexer.is_some(),
    divides: nothing,
};

/// The weights of a layer's scorer, if it has one of its own, under attention's `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if let Some(i) = c.indexer.filter(|_| !c.layer(index).borrows_index) {
        // Queries of the scorer come from the query latent, or from the stream where there is none.
        let latent = c.mla().and_then(|m| m.q_rank).unwrap_or(c.hidden);
        let whole = |t: &mut Table<'_>, role: Role, shape: [usize; 2]| {
            t.matrix(role, shape, Partition::Replicated, t.std());
        };
        t.of(Part::Indexer);
        whole(t, Role::WqB, [i.heads * i.head_dim, latent]);
        whole(t, Role::Wk, [i.head_dim, c.hidden]);
        let sum = SumGrad::OverTpWithSequenceParallel;
        t.norm_of(Norm::LayerNorm, Role::KNorm, i.head_dim, sum);
        whole(t, Role::WeightsProj, [i.heads, c.hidden]);
    }
}

impl Activations {
    /// Bytes of the keys that queries have picked; `None`: none has. Layers that borrow picks refer to the same ones, but ranks
    /// that exchange heads for tokens gather those of all queries in each, unless attention runs `again`.
    pub(crate) fn picks(&self, c: &ModelConfig, number: usize, again: bool) -> Option<usize> {
        let indexer = c.indexer.as_ref().filter(|i| self.row * self.context_ranks() > i.top_k)?;
        let own = 4 * self.tokens * indexer.top_k;
        Some(match self.ulysses_and_ring.0 {
            ranks if ranks > 1 && !again => ranks * own,
            _ if c.layer(number).borrows_index => 0,
            _ => own,
        })
    }
}
