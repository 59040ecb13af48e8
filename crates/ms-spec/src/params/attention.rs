//! Parameters of attention.

use ms_core::Partition;

use super::build::Table;
use super::{Init, SumGrad};
use crate::parts::{Attention, Mla};
use crate::{ModelConfig, Norm, QkNorm};

pub(super) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, module: &str) {
    let name = |rest: &str| format!("{module}.{rest}");
    let (heads, groups) = c.heads_of(index);
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(&name("linear_proj.weight"), columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(&name("linear_proj.bias"), c.hidden);
    }
    match &c.attention {
        Attention::Latent(mla) => latent(t, c, mla, module),
        Attention::Grouped if c.scores.output_gate => {
            let (n, g, d) = (heads, groups, c.head_dim);
            for (part, rows) in [("q_proj", 2 * n * d), ("k_proj", g * d), ("v_proj", g * d)] {
                t.matrix(&name(&format!("{part}.weight")), [rows, c.hidden], Table::rows(1), t.std());
                if c.bias.qkv {
                    t.vector(&name(&format!("{part}.bias")), rows, Table::rows(1), Init::Zeros, SumGrad::No);
                }
            }
            head_norms(t, c, (heads, groups), module);
        }
        Attention::Grouped => {
            let rows = c.qkv_rows(index);
            t.matrix(&name("linear_qkv.weight"), [rows, c.hidden], Table::rows(1), t.std());
            if c.bias.qkv {
                t.vector(&name("linear_qkv.bias"), rows, Table::rows(1), Init::Zeros, SumGrad::No);
            }
            head_norms(t, c, (heads, groups), module);
        }
    }
    if c.scores.head_gate {
        t.matrix(&name("g_proj.weight"), [heads, c.hidden], Table::rows(1), t.std());
    }
    if c.scores.sinks {
        t.vector(&name("sinks"), heads, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    if let Some(i) = c.indexer.filter(|_| !c.layer(index).borrows_index) {
        // Queries of the scorer come from the query latent, or from the stream where there is none.
        let latent = c.mla().and_then(|m| m.q_rank).unwrap_or(c.hidden);
        let whole = |t: &mut Table<'_>, rest: &str, shape: [usize; 2]| {
            t.matrix(&name(&format!("dsa_indexer.{rest}.weight")), shape, Partition::Replicated, t.std());
        };
        whole(t, "wq_b", [i.heads * i.head_dim, latent]);
        whole(t, "wk", [i.head_dim, c.hidden]);
        let sum = SumGrad::OverTpWithSequenceParallel;
        t.norm_of(Norm::LayerNorm, &name("dsa_indexer.k_norm"), i.head_dim, sum);
        whole(t, "weights_proj", [i.heads, c.hidden]);
    }
}

/// Attention to the keys and values of the layer before: only a query projection, but norms of its own for both.
pub(super) fn query_only(t: &mut Table<'_>, c: &ModelConfig) {
    let rows = c.heads * c.head_dim;
    t.matrix("self_attention.linear_proj.weight", [c.hidden, rows], Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias("self_attention.linear_proj.bias", c.hidden);
    }
    t.matrix("self_attention.linear_qkv.weight", [rows, c.hidden], Table::rows(1), t.std());
    if c.bias.qkv {
        t.vector("self_attention.linear_qkv.bias", rows, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    head_norms(t, c, (c.heads, c.groups), "self_attention");
}

fn head_norms(t: &mut Table<'_>, c: &ModelConfig, (heads, groups): (usize, usize), module: &str) {
    let (q, k) = match c.qk_norm {
        QkNorm::None => return,
        QkNorm::PerHead | QkNorm::PerHeadAfterRope => (c.head_dim, c.head_dim),
        QkNorm::WholeProjection => (heads * c.head_dim, groups * c.head_dim),
    };
    t.norm_of(c.norm, &format!("{module}.q_layernorm"), q, SumGrad::OverTp);
    t.norm_of(c.norm, &format!("{module}.k_layernorm"), k, SumGrad::OverTp);
}

fn latent(t: &mut Table<'_>, c: &ModelConfig, m: &Mla, module: &str) {
    let name = |rest: &str| format!("{module}.{rest}");
    let queries = c.heads * (m.nope + m.rope);
    let rows = m.q_rank.unwrap_or(queries) + m.kv_rank + m.rope;
    // Every rank holds all of it; without a query latent each only uses its own heads' rows.
    let sum = if m.q_rank.is_some() { SumGrad::OverTpWithSequenceParallel } else { SumGrad::OverTp };
    t.push(&name("linear_qkv.weight"), &[rows, c.hidden], Partition::Replicated, t.std(), sum);
    if c.bias.qkv {
        t.vector(&name("linear_qkv.bias"), rows, Partition::Replicated, Init::Zeros, sum);
    }
    let by_sequence = SumGrad::OverTpWithSequenceParallel;
    if let Some(rank) = m.q_rank {
        t.norm_of(c.norm, &name("q_layernorm"), rank, by_sequence);
    }
    t.norm_of(c.norm, &name("kv_layernorm"), m.kv_rank, by_sequence);
    if let Some(rank) = m.q_rank {
        t.matrix(&name("linear_q_up_proj.weight"), [queries, rank], Table::rows(1), t.std());
    }
    let rows = c.heads * (m.nope + m.value);
    t.matrix(&name("linear_kv_up_proj.weight"), [rows, m.kv_rank], Table::rows(1), t.std());
}
