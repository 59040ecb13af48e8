//! Attention: what all kinds have in common, and queries about a model's attention.

use ms_core::{HeadLayout, RingCachePolicy};

use crate::attention_kind::{Picks, Section};
use crate::params::{Init, SumGrad, Table};
use crate::parts::sparse;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::Activations;
use crate::sizes::Position;
use crate::{Frequencies, ModelConfig, Part, Role, Rope};

/// The weights of a layer's attention with one output projection; `own` adds those of its kind.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, own: impl FnOnce(&mut Table<'_>)) {
    t.of(Part::Attention);
    let heads = c.heads_of(index).0;
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(Role::LinearProj, columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(Role::LinearProj, c.hidden);
    }
    own(t);
    if c.scores.head_gate {
        t.matrix(Role::GProj, [heads, c.hidden], Table::rows(1), t.std());
    }
    if c.scores.sinks {
        t.vector(Role::Sinks, heads, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    sparse::params(t, c, index);
}

impl ModelConfig {
    /// Elements of a value head.
    pub fn value_dim(&self) -> usize {
        self.attention.kind().value_dim(self)
    }

    /// Elements of a head that may be rotated.
    pub(crate) fn most_rotated(&self) -> usize {
        self.attention.kind().rotated().unwrap_or(self.head_dim)
    }

    /// Elements of a query and key head that are rotated.
    pub fn rotated(&self) -> usize {
        self.attention.kind().rotated().unwrap_or_else(|| self.rope.rotated(self.head_dim))
    }

    /// Rotary position embedding of layer `index`.
    pub fn rope_of(&self, index: usize) -> &Rope {
        if let Some(rope) = self.attention.kind().rope(&self.layer(index)) {
            return rope;
        }
        let own = self.windowed.as_ref().filter(|_| self.window(index).is_some());
        own.map_or(&self.rope, |w| &w.rope)
    }

    /// Rotary frequencies of layer `index` for sequences of up to `tokens` tokens; some kinds of scaling depend on the
    /// length.
    pub fn frequencies(&self, index: usize, tokens: usize) -> Frequencies {
        let rope = self.rope_of(index);
        let rotated = self.attention.kind().rotated().unwrap_or_else(|| rope.share(self.head_dim));
        rope.frequencies(rotated, tokens)
    }

    /// Length up to which a sequence uses other rotary frequencies than one of `positions` tokens, if any: such sequences
    /// have tables of their own.
    pub fn switches_behind(&self, positions: usize) -> Option<usize> {
        let original = (0..self.layers).find_map(|layer| self.rope_of(layer).switches_behind());
        original.filter(|&n| self.position == Position::Rope && n < positions)
    }

    /// What `q . k` is multiplied by: the given scale or `D^-0.5`; for latent attention stretched by yarn, times the
    /// square of yarn's magnitude.
    pub fn score_scale(&self) -> f64 {
        let plain = self.scores.scale.unwrap_or_else(|| (self.head_dim as f64).powf(-0.5));
        self.attention.kind().scale(self, plain)
    }

    /// What an indexer picks for attention; `None`: the model has none.
    pub fn picks(&self) -> Option<Picks> {
        self.indexer.and_then(|_| self.attention.kind().picks())
    }

    /// Whether dropout applies to attention weights: upstream's kernels for attention that selects its keys have no dropout.
    pub fn drops_weights(&self) -> bool {
        self.indexer.is_none() && self.keys_by_head()
    }

    /// Whether heads have keys and values, alone or in groups, as opposed to one row per token for all heads.
    pub fn keys_by_head(&self) -> bool {
        self.attention.kind().keys_by_head()
    }

    /// Whether one projection of the stream makes queries, keys and values, or what they are made of.
    pub fn projects_once(&self) -> bool {
        self.attention.kind().projects_once()
    }

    /// Width of what queries are made of, if that is not the stream.
    pub fn queries_of(&self) -> Option<usize> {
        self.attention.kind().queries_of()
    }

    /// Columns that context-parallel ranks gather for the attention of layer `index`.
    pub fn entering(&self, index: usize) -> usize {
        self.attention_kind(index).entering(self)
    }

    /// Heads as the attention of layer `index` computes them, of all ranks together.
    pub fn attended(&self, index: usize) -> HeadLayout {
        self.attention_kind(index).heads(self, index)
    }

    /// Rows of attention's projection of the stream that others hold as matrices of their own; none: they do not.
    pub fn projection_sections(&self) -> Vec<Section> {
        self.attention.kind().sections(self)
    }

    /// What each head's rows of a weight of attention are for, and how many there are: Megatron's files may hold them apart, by
    /// these names (`--mla-mm-split`).
    pub fn head_parts(&self, role: Role) -> Option<[(&'static str, usize); 2]> {
        self.attention.kind().head_parts(role)
    }

    /// MindSpeed-LLM v2.0.0's name of a weight, if it differs.
    pub fn old_word(&self, role: Role) -> Option<&'static str> {
        self.attention.kind().old_word(role)
    }

    /// Whether upstream's rotation in attention takes yarn's factor as it is given.
    pub fn rotates_by_itself(&self) -> bool {
        self.attention.kind().rotates_by_itself()
    }
}

impl Activations {
    /// What attention saves for heads of `dim` elements, unless it is recomputed: the softmax's sums, and keys and values of
    /// other ranks.
    pub(crate) fn softmax(
        &self,
        c: &ModelConfig,
        number: usize,
        dim: usize,
        save_policy: LayerSavePolicy,
    ) -> usize {
        if save_policy.recompute_core_attention {
            return 0;
        }
        self.tokens * c.heads_of(number).0 / self.tp * self.element_bytes.max(4)
            + self.of_ring(c, number, dim)
    }

    /// Bytes of the keys and values of other ranks that a layer of attention keeps.
    fn of_ring(&self, c: &ModelConfig, number: usize, dim: usize) -> usize {
        let (ulysses, ring) = self.ulysses_and_ring;
        // Where there are fewer heads of keys than ranks that exchange heads, these have one each.
        let groups = (c.heads_of(number).1 / self.tp).max(ulysses);
        let half = self.tokens * groups * dim * self.element_bytes;
        match self.ring_cache.of_layer(number) {
            RingCachePolicy::Nothing => 0,
            RingCachePolicy::Keys => (ring - 1) * half,
            RingCachePolicy::KeysAndValues => (ring - 1) * 2 * half,
        }
    }
}
