//! Dense feed-forward networks.

use ms_core::Axis;

use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::Feed;
use crate::{ModelConfig, Part, Role};

/// How ranks share them.
pub(crate) const RULE: Rule = Rule {
    part: "dense networks",
    tp: How::Shared("columns, then rows"),
    cp: How::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.has_feed(Feed::Dense),
    divides: |c, axis| if axis == Axis::Tp { vec![("ffn size", c.ffn)] } else { Vec::new() },
};

/// The weights of a network of `ffn` columns, under `module`.
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
