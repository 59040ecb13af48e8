//! Dense MLPs.

use ms_core::Axis;

use crate::params::{Init, SumGrad, Table};
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, MlpBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED};
use crate::sizes::Feed;
use crate::{ModelConfig, Part, Role};

/// How ranks share them.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "dense networks",
    tp: AxisRule::Shared("columns, then rows"),
    cp: AxisRule::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.has_feed(Feed::Dense),
    divides: |c, axis| if axis == Axis::Tp { vec![("ffn size", c.ffn)] } else { Vec::new() },
};

/// The weights of an MLP of `ffn` columns, under `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, part: Part, ffn: usize) {
    t.of(part);
    let blocks = if c.activation.gated() { 2 } else { 1 };
    t.matrix(Role::LinearFc1, [blocks * ffn, c.hidden], Table::rows(blocks), t.std());
    if c.bias.mlp {
        t.vector(Role::LinearFc1.bias(), blocks * ffn, Table::rows(blocks), Init::Zeros, SumGrad::No);
    }
    t.matrix(Role::LinearFc2, [c.hidden, ffn], Table::columns(), t.out_std());
    if c.bias.mlp {
        t.whole_bias(Role::LinearFc2, c.hidden);
    }
}

/// FLOPs per token in an MLP of `ffn` columns, forward and backward: three matrices if there is a gate.
pub(crate) fn flops(c: &ModelConfig, ffn: usize) -> f64 {
    let matrices = if c.activation.gated() { 3.0 } else { 2.0 };
    6.0 * matrices * c.hidden as f64 * ffn as f64
}

impl Activations {
    /// An MLP of `ffn` columns after its norm: before the activation, with the gate's half, and after it.
    pub(crate) fn dense(&self, c: &ModelConfig, ffn: usize, save_policy: LayerSavePolicy) -> MlpBytes {
        let before = match (save_policy.recompute_inner, c.activation.gated()) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        };
        let after = usize::from(!save_policy.recompute_activations);
        MlpBytes { before: self.inside(before * ffn), after: self.inside(after * ffn) }
    }
}
