//! Dense feed-forward networks.

use ms_core::Axis;

use crate::ModelConfig;
use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::Feed;

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
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, module: &str, ffn: usize) {
    let blocks = if c.activation.gated() { 2 } else { 1 };
    t.matrix(&format!("{module}.linear_fc1.weight"), [blocks * ffn, c.hidden], Table::rows(blocks), t.std());
    if c.bias.mlp {
        let bias = format!("{module}.linear_fc1.bias");
        t.vector(&bias, blocks * ffn, Table::rows(blocks), Init::Zeros, SumGrad::No);
    }
    t.matrix(&format!("{module}.linear_fc2.weight"), [c.hidden, ffn], Table::columns(), t.out_std());
    if c.bias.mlp {
        t.whole_bias(&format!("{module}.linear_fc2.bias"), c.hidden);
    }
}
