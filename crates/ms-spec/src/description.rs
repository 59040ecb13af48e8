//! The description of an optional model part, in addition to its weights and saved bytes.

use crate::field::Field;
use crate::params::Table;
use crate::part_flag::PartFlag;
use crate::saved_bytes::Activations;
use crate::sharding_rule::ShardingRule;
use crate::{ModelConfig, Result};

/// An optional part other than a recurrent mixer; those describe themselves as `Recurrence`s.
pub(crate) struct Description {
    /// Its name in messages.
    pub(crate) words: &'static str,
    /// Whether a model has it.
    pub(crate) there: fn(&ModelConfig) -> bool,
    /// How ranks share it.
    pub(crate) rule: ShardingRule,
    /// Megatron's arguments of it.
    pub(crate) arguments: &'static [Field],
    /// The flags that describe it alone.
    pub(crate) flags: &'static [PartFlag],
    /// The flag that makes a model have it, and those that say how a run treats it and mean nothing without it.
    pub(crate) runs: (&'static str, &'static [&'static str]),
    /// What it has around a layer's sublayers, and after the last layer, if anything.
    pub(crate) wrapper: Option<SublayerWrapper>,
    /// Those of Megatron's arguments that name one number of it.
    pub(crate) same_number: &'static [&'static [&'static str]],
    /// Its sizes with their names, all of which must be non-zero; empty if a model does not have the part.
    pub(crate) sizes: fn(&ModelConfig) -> Vec<(&'static str, usize)>,
    /// Checks that they fit what is around it.
    pub(crate) check: fn(&ModelConfig) -> Result<()>,
    /// Shrinks it in a small model as far as it can still be shared by this many ranks with heads of it; the first argument
    /// is the model itself.
    pub(crate) shrink: fn(&ModelConfig, &mut ModelConfig, usize),
}

/// What a part around others has: around a layer's mixer, around its MLP, or after the last layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    Mixer,
    Network,
    End,
}

/// A part that stands around what is in a layer.
pub(crate) struct SublayerWrapper {
    /// Its weights there.
    pub(crate) params: fn(&mut Table<'_>, &ModelConfig, Site),
    /// Bytes that a pass keeps there of a model that may have it.
    pub(crate) kept: fn(&Activations, &ModelConfig, Site) -> usize,
    /// Rows of the stream that a token has between layers.
    pub(crate) rows: fn(&ModelConfig) -> usize,
}
