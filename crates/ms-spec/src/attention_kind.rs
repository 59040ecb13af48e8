//! The trait through which a kind of attention describes itself, in addition to its rule, arguments and flags.

use crate::params::Table;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, MixerBytes};
use crate::sizes::Layer;
use crate::{ModelConfig, Role, Rope};
use ms_core::HeadLayout;
use std::ops::Range;

/// What an indexer picks for attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picks {
    /// Keys of tokens.
    Tokens,
    /// Entries that are made of several tokens.
    Entries,
}

/// Rows of the projection of the stream that others hold as a matrix of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The rows.
    pub rows: Range<usize>,
    /// What families' tables of tensors call them.
    pub slot: &'static str,
    /// What Megatron's own modules call them.
    pub module: &'static str,
}

/// A kind of attention. What is not said here of a question is so of attention with grouped keys and values, and of most.
pub(crate) trait AttentionKind {
    /// The weights of layer `index`, under its module.
    fn params(&self, t: &mut Table<'_>, c: &ModelConfig, index: usize);

    /// FLOPs of a token, whose query sees `keys` keys, forward and backward.
    fn flops(&self, c: &ModelConfig, keys: f64) -> f64;

    /// Bytes that a pass saves for a layer after its norm.
    fn kept(
        &self,
        a: &Activations,
        c: &ModelConfig,
        number: usize,
        save_policy: LayerSavePolicy,
    ) -> MixerBytes;

    /// Heads as attention computes them, of all ranks together.
    fn heads(&self, c: &ModelConfig, number: usize) -> HeadLayout {
        let (heads, groups) = c.heads_of(number);
        let heads_per_group = heads.checked_div(groups).unwrap_or(0);
        HeadLayout { groups, heads_per_group, head_dim: c.head_dim }
    }

    /// Elements of a head if no argument gives them: Megatron's `kv_channels`.
    fn channels(&self, c: &ModelConfig) -> usize {
        c.head_dim
    }

    /// Elements of a value head.
    fn value_dim(&self, c: &ModelConfig) -> usize {
        c.head_dim
    }

    /// Elements of a query and key head that are rotated, where that is a size of its own and no share of the head.
    fn rotated(&self) -> Option<usize> {
        None
    }

    /// The rotation of a layer, where it is not the model's.
    fn rope(&self, _layer: &Layer) -> Option<&Rope> {
        None
    }

    /// What `q . k` is multiplied by, of what it would be.
    fn scale(&self, _c: &ModelConfig, plain: f64) -> f64 {
        plain
    }

    /// Width of what queries are made of, if that is not the stream.
    fn queries_of(&self) -> Option<usize> {
        None
    }

    /// Columns that ranks with shares of the tokens gather for a layer.
    fn entering(&self, c: &ModelConfig) -> usize {
        c.hidden
    }

    /// What an indexer may pick for it; `None`: it has none.
    fn picks(&self) -> Option<Picks> {
        None
    }

    /// Whether layers that are not listed, those of prediction modules, see all keys.
    fn sees_all(&self) -> bool {
        true
    }

    /// Whether heads have keys and values, alone or in groups.
    fn keys_by_head(&self) -> bool {
        true
    }

    /// Whether one projection of the stream makes queries, keys and values, or what they are made of.
    fn projects_once(&self) -> bool {
        true
    }

    /// Whether what queries and keys are made of, or they, have norms.
    fn normed(&self, c: &ModelConfig) -> bool;

    /// Whether a pass keeps what ranks have gathered of the input.
    fn keeps_gathered_input(&self) -> bool {
        false
    }

    /// Whether its input is saved only by the projection.
    fn keeps_input(&self, _keeping: LayerSavePolicy) -> bool {
        true
    }

    /// The bytes saved after the core that are swapped to the host whichever parts are.
    fn leaving(&self, _keeping: LayerSavePolicy, _mixed: &MixerBytes) -> usize {
        0
    }

    /// The projection in parts, as others hold it; none: it is one for them, too, or rows of the heads.
    fn sections(&self, _c: &ModelConfig) -> Vec<Section> {
        Vec::new()
    }

    /// What each head's rows of a weight are for, and how many: where Megatron's files may hold them apart, by these names.
    fn head_parts(&self, _role: Role) -> Option<[(&'static str, usize); 2]> {
        None
    }

    /// MindSpeed-LLM v2.0.0's name of a weight, if it differs.
    fn old_word(&self, _role: Role) -> Option<&'static str> {
        None
    }

    /// Whether upstream's rotation of it is of its own, and takes yarn's factor as it is given.
    fn rotates_by_itself(&self) -> bool {
        false
    }

    /// Megatron's name for its rotary positions.
    fn rotary_word(&self) -> &'static str {
        "rope"
    }

    /// Whether its window has an argument of its own.
    fn has_window(&self) -> bool {
        false
    }

    /// Whether models with it have no dense MLPs.
    fn without_dense(&self) -> bool {
        false
    }
}
