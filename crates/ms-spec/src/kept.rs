//! What decides how many bytes a forward pass keeps; [`crate::activations`] and the parts count them.

use crate::ModelConfig;
use crate::keeping::{Keeping, Recompute};
use ms_core::{Dispatcher, KeptOfRing, RingCache};

/// What decides the size of what a forward pass keeps for its backward.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Tokens of a micro-batch on the rank.
    pub tokens: usize,
    /// Tokens of one of its rows.
    pub row: usize,
    /// Bytes of an element of the stream.
    pub element_bytes: usize,
    /// Ranks that share a matrix.
    pub tp: usize,
    /// Whether they share the tokens between matrices.
    pub sequence_parallel: bool,
    /// Ranks that share an expert.
    pub etp: usize,
    /// Ranks that share the experts.
    pub ep: usize,
    /// How tokens reach them.
    pub dispatcher: Dispatcher,
    /// Ranks that exchange heads for tokens, and those that pass keys and values around.
    pub ulysses_and_ring: (usize, usize),
    /// What layers keep of the latter.
    pub ring_cache: RingCache,
    /// Whether a loss of their own trains the indexers of sparse attention.
    pub trains_indexer: bool,
    /// Which layers run again as a whole.
    pub recompute: Recompute,
    /// What the others keep less of.
    pub keeping: Keeping,
}

/// Bytes that a mixer keeps behind its norm: rows, and small numbers of each token that stay where rows leave.
pub(crate) type Kept = (usize, usize);

/// Bytes that a mixer keeps behind its norm: rows before its core and behind it, and small numbers of each token that stay where
/// rows leave.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixed {
    pub(crate) before: usize,
    pub(crate) behind: usize,
    pub(crate) statistics: usize,
}

impl Activations {
    /// Without recomputation: a micro-batch of one row of `tokens` tokens, on one rank.
    pub fn plain(tokens: usize, element_bytes: usize) -> Self {
        let (recompute, keeping) = (Recompute::None, Keeping::default());
        Self {
            tokens,
            row: tokens,
            element_bytes,
            tp: 1,
            sequence_parallel: false,
            etp: 1,
            ep: 1,
            dispatcher: Dispatcher::default(),
            ulysses_and_ring: (1, 1),
            ring_cache: RingCache::default(),
            trains_indexer: false,
            recompute,
            keeping,
        }
    }

    /// Tokens of the stream on this rank.
    pub(crate) fn stream(&self) -> usize {
        if self.sequence_parallel { self.tokens / self.tp } else { self.tokens }
    }

    /// Bytes of the rank's rows of the stream, of one stream where there are several.
    pub(crate) fn stream_bytes(&self, c: &ModelConfig) -> usize {
        self.stream() * c.hidden * self.element_bytes
    }

    /// Bytes of rows of `width` elements of which tensor-parallel ranks share the columns.
    pub(crate) fn inside(&self, width: usize) -> usize {
        self.tokens * width / self.tp * self.element_bytes
    }

    /// Ranks that share a sequence.
    pub(crate) fn context_ranks(&self) -> usize {
        self.ulysses_and_ring.0 * self.ulysses_and_ring.1
    }

    /// Whether a layer keeps what it has gathered of other ranks' tokens.
    pub(crate) fn keeps_gathered(&self, number: usize) -> bool {
        self.ring_cache.of_layer(number) == KeptOfRing::KeysAndValues
    }

    /// Bytes of an unrounded number, and of unrounded copies of `weights` parameters, which f32 and f64 need not make.
    pub(crate) fn wide(&self, weights: usize) -> (usize, usize) {
        let wide = self.element_bytes.max(4);
        (wide, if self.element_bytes < wide { weights * wide } else { 0 })
    }
}
