//! Inputs to the count of saved bytes; [`crate::activations`] and the parts do the counting.

use crate::ModelConfig;
use crate::save_policy::{Recompute, SavePolicy};
use crate::swapped::Swapped;
use ms_core::{Dispatcher, RingCache, RingCachePolicy};

/// What determines the size of the activations that a forward pass saves for its backward.
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
    /// Ranks that exchange heads for tokens (Ulysses), and those that pass keys and values around (ring).
    pub ulysses_and_ring: (usize, usize),
    /// What layers save of the latter.
    pub ring_cache: RingCache,
    /// Whether a loss of their own trains the indexers of sparse attention.
    pub trains_indexer: bool,
    /// Which layers are recomputed as a whole.
    pub recompute: Recompute,
    /// Which activations the others do not save.
    pub save_policy: SavePolicy,
}

/// Bytes that a mixer saves after its norm: rows, and small per-token values that stay when rows are swapped out.
pub(crate) type SavedBytes = (usize, usize);

/// Bytes that a mixer saves after its norm: rows before and after its core, and small per-token values that stay when rows
/// are swapped out.
#[derive(Clone, Copy, Default)]
pub(crate) struct MixerBytes {
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) statistics: usize,
    /// The part of `before` and of `after` that the core saves, if they are distinguished.
    pub(crate) core: (usize, usize),
    /// The part of `after` that the last projection saves.
    pub(crate) joined: usize,
}

impl MixerBytes {
    /// What goes to the host of it where the parts `swapped` do.
    pub(crate) fn leaving(&self, swapped: Swapped) -> usize {
        if swapped.has(Swapped::MIXER) {
            return self.before + self.after;
        }
        let of = |part, bytes: usize| if swapped.has(part) { bytes } else { 0 };
        // Both keep the heads' outputs where nothing gates them.
        let after = of(Swapped::CORE, self.core.1) + of(Swapped::PROJ, self.joined);
        of(Swapped::CORE, self.core.0) + after.min(self.after)
    }
}

/// Bytes that an MLP saves in addition to its input: before and after its activation.
#[derive(Clone, Copy, Default)]
pub(crate) struct MlpBytes {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

impl MlpBytes {
    pub(crate) fn all(self) -> usize {
        self.before + self.after
    }

    /// So many times it.
    pub(crate) fn times(self, n: usize) -> Self {
        Self { before: n * self.before, after: n * self.after }
    }

    /// What goes to the host of it, where it does as a `whole`, or parts of it.
    pub(crate) fn leaving(self, whole: bool, swapped: Swapped) -> usize {
        match (whole, swapped.has(Swapped::FC2)) {
            (true, _) => self.all(),
            (false, true) => self.after,
            (false, false) => 0,
        }
    }
}

/// Bytes that a layer of experts saves after its norm.
#[derive(Clone, Copy, Default)]
pub(crate) struct ExpertLayerBytes {
    /// The router's rows and scores.
    pub(crate) router: usize,
    /// Numbers of choices; they stay.
    pub(crate) choices: usize,
    /// Weights of choices, and columns that rows are recomputed from.
    pub(crate) around: usize,
    /// Rows that go into experts.
    pub(crate) into: usize,
    /// Rows that come out of them and do not go to the host anyway.
    pub(crate) out: usize,
    /// Rows that do.
    pub(crate) sent: usize,
    pub(crate) routed: MlpBytes,
    pub(crate) shared: MlpBytes,
    /// What a gate of shared experts takes.
    pub(crate) gate: usize,
}

impl ExpertLayerBytes {
    /// Everything that is saved, wherever it is.
    pub(crate) fn all(&self) -> usize {
        let rows = self.router + self.choices + self.around + self.into + self.out + self.sent + self.gate;
        rows + self.routed.all() + self.shared.all()
    }

    /// What goes to the host of it where the parts `swapped` do.
    pub(crate) fn leaving(&self, swapped: Swapped) -> usize {
        let has = |parts| swapped.has(parts);
        if has(Swapped::NETWORK) {
            return self.all() - self.choices;
        }
        let of = |parts, bytes: usize| if has(parts) { bytes } else { 0 };
        self.sent
            + of(Swapped::ROUTER, self.router)
            + of(Swapped::EXPERTS.union(Swapped::FC1), self.into)
            + self.routed.leaving(has(Swapped::EXPERTS), swapped)
            + self.shared.leaving(has(Swapped::SHARED_EXPERTS), swapped)
            + of(Swapped::SHARED_EXPERTS, self.gate)
    }
}

impl Activations {
    /// A micro-batch of one row of `tokens` tokens, on one rank, without recomputation.
    pub fn plain(tokens: usize, element_bytes: usize) -> Self {
        let (recompute, save_policy) = (Recompute::None, SavePolicy::default());
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
            save_policy,
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

    /// Bytes of rows of `width` elements whose columns are sharded over tensor-parallel ranks.
    pub(crate) fn inside(&self, width: usize) -> usize {
        self.tokens * width / self.tp * self.element_bytes
    }

    /// Ranks that share a sequence.
    pub(crate) fn context_ranks(&self) -> usize {
        self.ulysses_and_ring.0 * self.ulysses_and_ring.1
    }

    /// Whether a layer keeps what it has gathered of other ranks' tokens.
    pub(crate) fn keeps_gathered(&self, number: usize) -> bool {
        self.ring_cache.of_layer(number) == RingCachePolicy::KeysAndValues
    }

    /// Bytes of an unrounded number, and of unrounded copies of `weights` parameters, which f32 and f64 need not make.
    pub(crate) fn wide(&self, weights: usize) -> (usize, usize) {
        let wide = self.element_bytes.max(4);
        (wide, if self.element_bytes < wide { weights * wide } else { 0 })
    }
}
