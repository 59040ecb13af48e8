//! Sparse attention: an indexer next to attention picks the keys that each query sees.

use crate::params::{SumGrad, Table};
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::{AxisRule, NO_RING, ShardingRule, UNCONCERNED, nothing};
use crate::sizes::{Indexer, Norm};
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "sparse attention",
    tp: AxisRule::Shared("every rank scores all keys; what trains them is summed over heads of all ranks"),
    cp: AxisRule::WholeDocuments {
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
        // Queries of the scorer come from what those of attention do.
        let width = c.queries_of().unwrap_or(c.hidden);
        let whole = |t: &mut Table<'_>, role: Role, shape: [usize; 2]| {
            t.xavier(role, shape, SumGrad::No);
        };
        t.of(Part::Indexer);
        whole(t, Role::WqB, [i.heads * i.head_dim, width]);
        whole(t, Role::Wk, [i.head_dim, c.hidden]);
        // Every rank sees all tokens, and what all heads make of them.
        t.norm_of(Norm::LayerNorm, Role::KNorm, i.head_dim, SumGrad::No);
        whole(t, Role::WeightsProj, [i.heads, c.hidden]);
    }
}

impl Activations {
    /// Bytes of the keys that queries have picked; `None`: none has. Layers that borrow picks refer to the same ones, but ranks
    /// that exchange heads for tokens gather those of all queries in each, unless attention runs `again`.
    pub(crate) fn picks(&self, c: &ModelConfig, number: usize, again: bool) -> Option<usize> {
        let longest = self.row * self.context_ranks();
        let indexer = c.indexer.as_ref().filter(|i| longest > i.top_k || self.trains_indexer)?;
        let own = 4 * self.tokens * indexer.top_k.min(longest);
        Some(match self.ulysses_and_ring.0 {
            ranks if ranks > 1 && !again => ranks * own,
            _ if c.layer(number).borrows_index => 0,
            _ => own,
        })
    }

    /// What an indexer of tokens keeps while it is trained: keys before their norm with its statistics, and the gradients
    /// with respect to queries, keys of all tokens and weights of heads. Inputs are those of attention.
    pub(crate) fn indexer(&self, c: &ModelConfig, number: usize) -> SavedBytes {
        let own = |_: &&Indexer| self.trains_indexer && !c.layer(number).borrows_index;
        let Some(i) = c.indexer.as_ref().filter(own) else { return (0, 0) };
        let (tokens, element, wide) = (self.tokens, self.element_bytes, self.element_bytes.max(4));
        let keys = self.tokens * self.context_ranks();
        let gradients = (tokens * i.heads + keys) * i.head_dim * element + tokens * i.heads * wide;
        (tokens * i.head_dim * element, gradients + 2 * tokens * wide)
    }
}
