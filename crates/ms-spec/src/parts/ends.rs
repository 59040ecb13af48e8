//! The ends of a model: embedding, final norm and output layer.

use ms_core::{Axis, Partition, UpdatedBy};

use crate::description::Site;
use crate::params::{Init, SumGrad, Table};
use crate::parts;
use crate::saved_bytes::Activations;
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED};
use crate::sizes::{Mixer, Norm, Position};
use crate::{ModelConfig, Part, Place, Role};

/// How ranks share them.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "embedding, output layer and loss",
    tp: AxisRule::Shared("rows of the vocabulary"),
    cp: AxisRule::Shared("tokens"),
    ep: UNCONCERNED,
    has: |_| true,
    divides: |c, axis| match axis {
        Axis::Tp => vec![("padded vocabulary", c.padded_vocab)],
        _ => Vec::new(),
    },
};

/// The weights before the first layer.
pub(crate) fn embedding(t: &mut Table<'_>, c: &ModelConfig) {
    t.at(Place::Embedding, Part::Embedding);
    t.matrix(Role::WordEmbeddings, [c.padded_vocab, c.hidden], Table::rows(1), t.std());
    if c.position == Position::Learned {
        let shape = [c.max_positions, c.hidden];
        t.matrix(Role::PositionEmbeddings, shape, Partition::Replicated, t.std());
    }
    if c.embedding_norm {
        t.norm_of(Norm::LayerNorm, Role::WordEmbeddingsNorm, c.hidden, SumGrad::OverTpWithSequenceParallel);
    }
}

/// The weights after the last layer.
pub(crate) fn head(t: &mut Table<'_>, c: &ModelConfig) {
    t.at(Place::Head, Part::Last);
    parts::params_around(t, c, Site::End);
    t.of(Part::Last);
    t.norm(c.last_norm(), c.hidden);
    t.of(Part::Output);
    if !c.tied {
        t.matrix(Role::Own, [c.padded_vocab, c.hidden], Table::rows(1), t.std());
        if c.reward {
            t.list.last_mut().expect("just pushed").updated_by = UpdatedBy::Nothing;
        }
    }
    if c.bias.head {
        t.vector(Role::Own.bias(), c.padded_vocab, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    if c.reward {
        t.of(Part::Reward);
        t.matrix(Role::Own, [1, c.hidden], Table::columns(), t.std());
        t.whole_bias(Role::Own, 1);
    }
}

/// FLOPs of a token for logits, forward and backward.
pub(crate) fn flops(c: &ModelConfig) -> f64 {
    6.0 * c.hidden as f64 * c.padded_vocab as f64
}

impl Activations {
    /// Ids, and positions where attention sees them.
    pub(crate) fn embedding(&self, c: &ModelConfig) -> usize {
        if c.has(Mixer::Attention) { 8 * self.tokens } else { 4 * self.tokens }
    }

    /// The stream before the last norm, one number per row, and the gradient of the normed stream.
    pub(crate) fn head(&self, c: &ModelConfig) -> usize {
        let end = self.wrapper_bytes(c, Site::End);
        let rstd = self.stream() * self.element_bytes.max(4);
        2 * self.stream_bytes(c) + rstd + end
    }

    /// The gradient of a use of the output layer, which is computed in the forward pass.
    pub(crate) fn output_gradient(&self, c: &ModelConfig) -> usize {
        (c.padded_vocab / self.tp).saturating_mul(c.hidden).saturating_mul(self.element_bytes.max(4))
    }
}
