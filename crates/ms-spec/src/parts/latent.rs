//! Multi-head latent attention.

use ms_core::Partition;

use crate::ModelConfig;
use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, Rule, UNCONCERNED, query_heads};
use crate::sizes::{Attention, Mixer, Mla};

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
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, m: &Mla, module: &str) {
    let name = |rest: &str| format!("{module}.{rest}");
    let queries = c.heads * (m.nope + m.rope);
    let rows = m.q_rank.unwrap_or(queries) + m.kv_rank + m.rope;
    // Every rank holds all of it; without a query latent each only uses its own heads' rows.
    let sum = if m.q_rank.is_some() { SumGrad::OverTpWithSequenceParallel } else { SumGrad::OverTp };
    t.push(&name("linear_qkv.weight"), &[rows, c.hidden], Partition::Replicated, t.std(), sum);
    if c.bias.qkv {
        t.vector(&name("linear_qkv.bias"), rows, Partition::Replicated, Init::Zeros, sum);
    }
    if let Some(rank) = m.q_rank {
        t.norm_of(c.norm, &name("q_layernorm"), rank, sum);
    }
    t.norm_of(c.norm, &name("kv_layernorm"), m.kv_rank, sum);
    if let Some(rank) = m.q_rank {
        t.matrix(&name("linear_q_up_proj.weight"), [queries, rank], Table::rows(1), t.std());
    }
    let rows = c.heads * (m.nope + m.value);
    t.matrix(&name("linear_kv_up_proj.weight"), [rows, m.kv_rank], Table::rows(1), t.std());
}
