//! The ends of a model: embedding, last norm and output layer.

use ms_core::{Axis, Partition};

use crate::ModelConfig;
use crate::params::{Init, Place, SumGrad, Table};
use crate::parts::hyper_connections;
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::{Norm, Position};

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
    t.at(Place::Embedding, "");
    t.matrix("embedding.word_embeddings.weight", [c.padded_vocab, c.hidden], Table::rows(1), t.std());
    if c.position == Position::Learned {
        let shape = [c.max_positions, c.hidden];
        t.matrix("embedding.position_embeddings.weight", shape, Partition::Replicated, t.std());
    }
    if c.embedding_norm {
        t.norm_of(
            Norm::LayerNorm,
            "embedding.word_embeddings.norm",
            c.hidden,
            SumGrad::OverTpWithSequenceParallel,
        );
    }
}

/// The weights behind the last layer.
pub(crate) fn head(t: &mut Table<'_>, c: &ModelConfig) {
    t.at(Place::Head, "");
    hyper_connections::params(t, c, "hc_head", true);
    let last = if c.mamba2.is_some() { "decoder.final_norm" } else { "decoder.final_layernorm" };
    t.norm(last, c.hidden);
    if !c.tied {
        t.matrix("output_layer.weight", [c.padded_vocab, c.hidden], Table::rows(1), t.std());
        t.list.last_mut().expect("just pushed").trained = !c.reward;
    }
    if c.bias.head {
        t.vector("output_layer.bias", c.padded_vocab, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    if c.reward {
        t.matrix("rm_head.weight", [1, c.hidden], Table::columns(), t.std());
        t.whole_bias("rm_head.bias", 1);
    }
}
