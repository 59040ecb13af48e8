//! Parameters of attention.

use ms_core::Partition;

use super::build::Table;
use super::{Init, SumGrad};
use crate::parts::{Attention, Compressed, Mla};
use crate::{ModelConfig, Norm, QkNorm};

pub(super) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, module: &str) {
    if let Attention::Compressed(compressed) = &c.attention {
        return to_entries(t, c, index, compressed, module);
    }
    let name = |rest: &str| format!("{module}.{rest}");
    let (heads, groups) = c.heads_of(index);
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(&name("linear_proj.weight"), columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(&name("linear_proj.bias"), c.hidden);
    }
    match &c.attention {
        Attention::Latent(mla) => latent(t, c, mla, module),
        Attention::Compressed(_) => unreachable!("returned above"),
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

/// Attention to a window and pooled entries. Each rank's heads see the whole row of a token, and all entries.
fn to_entries(t: &mut Table<'_>, c: &ModelConfig, index: usize, a: &Compressed, module: &str) {
    let (h, d, heads, whole) = (c.hidden, c.head_dim, c.heads, Partition::Replicated);
    let name = |rest: &str| format!("{module}.{rest}");
    let (init, sum) = (t.std(), SumGrad::OverTp);
    t.vector(&name("attn_sink"), heads, Table::rows(1), Init::Zeros, SumGrad::No);
    t.push(&name("linear_q.weight"), &[a.q_rank, h], whole, init, sum);
    t.norm_of(c.norm, &name("q_layernorm"), a.q_rank, sum);
    t.matrix(&name("linear_q_up_proj.weight"), [heads * d, a.q_rank], Table::rows(1), init);
    t.push(&name("linear_kv.weight"), &[d, h], whole, init, sum);
    t.norm_of(c.norm, &name("kv_layernorm"), d, sum);
    let blocks = [a.out_groups * a.out_rank, heads / a.out_groups * d];
    t.matrix(&name("linear_o_down_proj.weight"), blocks, Table::rows(1), init);
    t.matrix(&name("linear_o_up_proj.weight"), [h, blocks[0]], Table::columns(), t.out_std());
    let Some(pooled) = c.layer(index).pooled else { return };
    let series = if pooled.picked { 2 } else { 1 };
    let compressor = |t: &mut Table<'_>, module: &str, dim: usize, sum: SumGrad| {
        let part = |rest: &str| format!("{module}.{rest}");
        t.push(&part("ape"), &[pooled.ratio, series * dim], whole, init, sum);
        t.list.last_mut().expect("just pushed").decay = false;
        t.norm_of(c.norm, &part("norm"), dim, sum);
        t.push(&part("wgate.weight"), &[series * dim, h], whole, init, sum);
        t.push(&part("wkv.weight"), &[series * dim, h], whole, init, sum);
    };
    compressor(t, &name("compressor"), d, sum);
    let Some(i) = c.indexer.filter(|_| pooled.picked) else { return };
    let by_sequence = SumGrad::OverTpWithSequenceParallel;
    compressor(t, &name("indexer.kv_compressor"), i.head_dim, by_sequence);
    t.push(&name("indexer.wq_b.weight"), &[i.heads * i.head_dim, a.q_rank], whole, init, by_sequence);
    t.push(&name("indexer.weights_proj.weight"), &[i.heads, h], whole, init, by_sequence);
}
