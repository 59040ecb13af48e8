//! Attention whose queries, keys and values are projections of their own.

use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED, nothing, query_heads};
use crate::sizes::{Attention, Mixer, QkNorm};
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "grouped attention (rotary, ALiBi, windows, sinks, softcap, gates)",
    tp: How::Shared(
        "heads; where key/value heads do not divide, ranks hand each other what their heads need",
    ),
    cp: How::Shared("ring, Ulysses, hybrid, gathered"),
    ep: UNCONCERNED,
    has: is_grouped,
    divides: query_heads,
};

/// How ranks share norms of all heads of a token together.
pub(crate) const WHOLE_PROJECTIONS: Rule = Rule {
    part: "norms over whole projections",
    tp: How::Shared("heads; statistics are summed"),
    cp: How::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.qk_norm == QkNorm::WholeProjection,
    divides: nothing,
};

fn is_grouped(c: &ModelConfig) -> bool {
    c.has(Mixer::Attention) && matches!(c.attention, Attention::Grouped)
}

/// Its weights but the output projection.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
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
