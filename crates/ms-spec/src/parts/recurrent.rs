//! The trait of recurrent mixers, each kind of which has its own file, and what they have in common.

use crate::field::Field;
use crate::params::{Init, Table};
use crate::part_flag::PartFlag;
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::ShardingRule;
use crate::sizes::Mixer;
use crate::{ArgNames, ModelConfig, Result, Role};

/// A kind of recurrent mixer, independent of a model's sizes.
pub(crate) struct Recurrence {
    pub(crate) mixer: Mixer,
    /// What it is called where a model lacks its sizes or they are none.
    pub(crate) what: &'static str,
    /// The norm before it.
    pub(crate) norm: Option<Role>,
    /// How ranks share it.
    pub(crate) rule: ShardingRule,
    /// Megatron's arguments of it.
    pub(crate) arguments: &'static [Field],
    /// Those that its sizes are made of.
    pub(crate) args: ArgNames,
    /// The flags that describe it alone.
    pub(crate) flags: &'static [PartFlag],
    /// Those of Megatron's arguments that name one number of it.
    pub(crate) same_number: &'static [&'static [&'static str]],
    /// The norm after the last layer of a model with this mixer.
    pub(crate) last_norm: Role,
    /// Whether layers of such a model that are alike may stand in front of each other in Megatron's distributed checkpoints.
    pub(crate) stacked: bool,
    /// A model's sizes of it.
    pub(crate) of: fn(&ModelConfig) -> Option<&dyn Recurrent>,
}

/// What follows from the sizes of a mixer with a state.
pub(crate) trait Recurrent {
    /// All sizes, and products of them, none of which may be 0 or absurdly large.
    fn sizes(&self) -> Vec<usize>;

    /// Checks that they fit together.
    fn check(&self) -> Result<()>;

    /// Its weights.
    fn params(&self, t: &mut Table<'_>, c: &ModelConfig);

    /// What a pass keeps of it.
    fn kept(&self, a: &Activations, c: &ModelConfig) -> SavedBytes;

    /// FLOPs of a token, forward and backward, where upstream counts them.
    fn flops(&self, _: &ModelConfig) -> Option<f64> {
        None
    }

    /// Gives a small model such sizes, as small as `ranks` ranks can share.
    fn shrink(&self, small: &mut ModelConfig, ranks: usize);
}

/// Bound of the initial weights of a depthwise convolution of width `conv`, as in torch.
pub(crate) fn conv_init(conv: usize) -> Init {
    Init::Uniform { bound: (1.0 / conv as f64).sqrt() }
}

/// Initial logarithms of decays.
pub(crate) const A: Init = Init::LogOfUniform { low: 1.0, high: 16.0 };

/// Initial steps between two numbers, before their softplus.
pub(crate) fn dt((low, high): (f64, f64)) -> Init {
    Init::InverseSoftplus { low, high }
}
