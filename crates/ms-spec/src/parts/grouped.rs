//! Grouped-query attention: queries, keys and values are separate projections.

use crate::attention_kind::AttentionKind;
use crate::params::{Init, SumGrad, Table};
use crate::parts::attention;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, MixerBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED, nothing, query_heads};
use crate::sizes::{Attention, Mixer, Norm, QkNorm};
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: ShardingRule = ShardingRule {
    part: "grouped attention (rotary, ALiBi, windows, sinks, softcap, gates)",
    tp: AxisRule::Shared(
        "heads; where key/value heads do not divide, ranks hand each other what their heads need",
    ),
    cp: AxisRule::Shared("ring, Ulysses, hybrid, gathered"),
    ep: UNCONCERNED,
    has: is_grouped,
    divides: query_heads,
};

/// How ranks share norms of all heads of a token together.
pub(crate) const WHOLE_PROJECTIONS: ShardingRule = ShardingRule {
    part: "norms over whole projections",
    tp: AxisRule::Shared("heads; statistics are summed"),
    cp: AxisRule::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.qk_norm == QkNorm::WholeProjection,
    divides: nothing,
};

fn is_grouped(c: &ModelConfig) -> bool {
    c.has(Mixer::Attention) && matches!(c.attention, Attention::Grouped)
}

/// Attention of grouped heads.
pub(crate) struct Grouped;

impl AttentionKind for Grouped {
    fn params(&self, t: &mut Table<'_>, c: &ModelConfig, index: usize) {
        attention::params(t, c, index, |t| params(t, c, index));
    }

    fn flops(&self, c: &ModelConfig, keys: f64) -> f64 {
        flops(c, keys)
    }

    fn kept(
        &self,
        a: &Activations,
        c: &ModelConfig,
        number: usize,
        save_policy: LayerSavePolicy,
    ) -> MixerBytes {
        a.grouped(c, number, save_policy)
    }

    fn normed(&self, c: &ModelConfig) -> bool {
        c.qk_norm != QkNorm::None
    }
}

/// Its weights but the output projection.
fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    let (heads, groups) = c.heads_of(index);
    if c.scores.output_gate {
        let (n, g, d) = (heads, groups, c.head_dim);
        for (role, rows) in [(Role::QProj, 2 * n * d), (Role::KProj, g * d), (Role::VProj, g * d)] {
            t.matrix(role, [rows, c.hidden], Table::rows(1), t.std());
            if c.bias.qkv {
                t.vector(role.bias(), rows, Table::rows(1), Init::Zeros, SumGrad::No);
            }
        }
    } else {
        let rows = c.qkv_rows(index);
        t.matrix(Role::LinearQkv, [rows, c.hidden], Table::rows(1), t.std());
        if c.bias.qkv {
            t.vector(Role::LinearQkv.bias(), rows, Table::rows(1), Init::Zeros, SumGrad::No);
        }
    }
    head_norms(t, c, (heads, groups));
}

/// Attention to the keys and values of the layer before: only a query projection, but norms of its own for both.
pub(crate) fn query_only(t: &mut Table<'_>, c: &ModelConfig) {
    t.of(Part::Attention);
    let rows = c.heads * c.head_dim;
    t.matrix(Role::LinearProj, [c.hidden, rows], Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(Role::LinearProj, c.hidden);
    }
    t.matrix(Role::LinearQkv, [rows, c.hidden], Table::rows(1), t.std());
    if c.bias.qkv {
        t.vector(Role::LinearQkv.bias(), rows, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    head_norms(t, c, (c.heads, c.groups));
}

fn head_norms(t: &mut Table<'_>, c: &ModelConfig, (heads, groups): (usize, usize)) {
    let (q, k) = match c.qk_norm {
        QkNorm::None => return,
        QkNorm::PerHead | QkNorm::PerHeadAfterRope => (c.head_dim, c.head_dim),
        QkNorm::WholeProjection => (heads * c.head_dim, groups * c.head_dim),
    };
    t.norm_of(c.norm, Role::QLayernorm, q, SumGrad::OverTp);
    t.norm_of(c.norm, Role::KLayernorm, k, SumGrad::OverTp);
}

/// FLOPs of a token, whose query sees `keys` keys, forward and backward. Heads that a model is described without are as wide as
/// Megatron's `kv_channels` by default, `H / N` rounded down.
pub(crate) fn flops(c: &ModelConfig, keys: f64) -> f64 {
    if c.heads == 0 {
        return 0.0;
    }
    let head = c.attention.kind().channels(c);
    let sharing = c.groups as f64 / c.heads as f64;
    12.0 * (c.hidden as f64 * (1.0 + sharing) + keys) * (head * c.heads) as f64
}

impl Activations {
    /// Projected rows, with those that norms take apart and what gates are made of; outputs and what gates leave.
    fn grouped(&self, c: &ModelConfig, number: usize, save_policy: LayerSavePolicy) -> MixerBytes {
        let (heads, groups) = c.heads_of(number);
        let width = (heads + 2 * groups) * c.head_dim;
        // The rotation's kernel norms packed rows; other norms take queries and keys apart.
        let raw = match c.qk_norm {
            QkNorm::PerHead if c.norm == Norm::Rms => width,
            QkNorm::None => 0,
            _ => (heads + groups) * c.head_dim,
        };
        let gates = usize::from(c.scores.output_gate) * heads * c.value_dim()
            + usize::from(c.scores.head_gate) * heads;
        let gated = if gates > 0 { heads * c.value_dim() } else { 0 };
        let wide = self.element_bytes.max(4);
        let norms = match c.qk_norm {
            QkNorm::None => 0,
            QkNorm::WholeProjection => 2 * self.tokens * wide,
            _ => self.tokens * (heads + groups) / self.tp * wide,
        };
        let (outputs, gated) = if save_policy.recompute_core_attention {
            (0, 0)
        } else {
            (self.inside(heads * c.value_dim()), self.inside(gated))
        };
        let statistics = norms + self.softmax(c, number, c.head_dim, save_policy);
        MixerBytes {
            before: self.inside(width + raw + gates),
            after: outputs + gated,
            statistics,
            core: (self.inside(width), outputs),
            joined: if gated > 0 { gated } else { outputs },
        }
    }
}
