//! The ends of a model: embedding, last norm and output layer.

use ms_core::{Axis, Change, Partition};

use crate::params::{Init, SumGrad, Table};
use crate::parts::hyper_connections;
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::{Norm, Position};
use crate::{ModelConfig, Part, Place, Role};

/// How ranks share them.
pub(crate) const RULE: Rule = Rule {
    part: "embedding, output layer and loss",
    tp: How::Shared("rows of the vocabulary"),
    cp: How::Shared("tokens"),
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

/// The weights behind the last layer.
pub(crate) fn head(t: &mut Table<'_>, c: &ModelConfig) {
    t.at(Place::Head, Part::LastStreams);
    hyper_connections::params(t, c, Part::LastStreams, true);
    t.of(Part::Last);
    let last = if c.mamba2.is_some() { Role::FinalNorm } else { Role::FinalLayernorm };
    t.norm(last, c.hidden);
    t.of(Part::Output);
    if !c.tied {
        t.matrix(Role::Own, [c.padded_vocab, c.hidden], Table::rows(1), t.std());
        if c.reward {
            t.list.last_mut().expect("just pushed").change = Change::Nothing;
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
