//! What a part that only some models have says of itself, beside its weights and what passes keep.

use crate::field::Field;
use crate::part_flag::PartFlag;
use crate::rule::Rule;
use crate::{ModelConfig, Result};

/// A part that stands beside mixers with a state, which describe themselves as `Recurrence`s.
pub(crate) struct Description {
    /// How ranks share it.
    pub(crate) rule: Rule,
    /// Megatron's arguments of it.
    pub(crate) arguments: &'static [Field],
    /// The flags that describe it alone.
    pub(crate) flags: &'static [PartFlag],
    /// Those of Megatron's arguments that name one number of it.
    pub(crate) same_number: &'static [&'static [&'static str]],
    /// Its sizes with their names, none of which may be 0; none where a model does not have it.
    pub(crate) sizes: fn(&ModelConfig) -> Vec<(&'static str, usize)>,
    /// Checks that they fit what is around it.
    pub(crate) check: fn(&ModelConfig) -> Result<()>,
    /// Makes it as small in a small model as so many ranks can share that have heads of it; the first is the model itself.
    pub(crate) shrink: fn(&ModelConfig, &mut ModelConfig, usize),
}
