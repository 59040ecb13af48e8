//! Multi-head latent attention.

use ms_core::Partition;

use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED, query_heads};
use crate::sizes::{Attention, Mixer, Mla};
use crate::{ModelConfig, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "latent attention",
    tp: How::Shared("heads; latents are made on shares of the tokens"),
    cp: How::Shared("as grouped attention"),
    ep: UNCONCERNED,
    has: |c| c.has(Mixer::Attention) && matches!(c.attention, Attention::Latent(_)),
    divides: query_heads,
};

/// Its weights but the output projection, under `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, m: &Mla) {
    let queries = c.heads * (m.nope + m.rope);
    let rows = m.q_rank.unwrap_or(queries) + m.kv_rank + m.rope;
    // Every rank holds all of it; without a query latent each only uses its own heads' rows.
    let sum = if m.q_rank.is_some() { SumGrad::OverTpWithSequenceParallel } else { SumGrad::OverTp };
    t.push(Role::LinearQkv, &[rows, c.hidden], Partition::Replicated, t.std(), sum);
    if c.bias.qkv {
        t.vector(Role::LinearQkv.bias(), rows, Partition::Replicated, Init::Zeros, sum);
    }
    if let Some(rank) = m.q_rank {
        t.norm_of(c.norm, Role::QLayernorm, rank, sum);
    }
    t.norm_of(c.norm, Role::KvLayernorm, m.kv_rank, sum);
    if let Some(rank) = m.q_rank {
        t.matrix(Role::LinearQUpProj, [queries, rank], Table::rows(1), t.std());
    }
    let rows = c.heads * (m.nope + m.value);
    t.matrix(Role::LinearKvUpProj, [rows, m.kv_rank], Table::rows(1), t.std());
}
