//! Parameters of feed-forward networks and mixtures of experts.

use ms_core::Partition;

use super::build::Table;
use super::{Init, SumGrad};
use crate::ModelConfig;

pub(super) fn dense(t: &mut Table<'_>, c: &ModelConfig, module: &str, ffn: usize) {
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

pub(super) fn experts(t: &mut Table<'_>, c: &ModelConfig, hashed: bool) {
    let moe = c.moe.as_ref().expect("validate: a layer of experts needs their sizes");
    let by_sequence = SumGrad::OverTpWithSequenceParallel;
    let (e, h, f) = (moe.experts, c.hidden, moe.ffn);
    let choices = e + moe.zero_experts;
    // Routers run where experts do, on all tokens of the ranks that share an expert, so their gradients are summands.
    t.push("mlp.router.weight", &[choices, h], Partition::Replicated, t.std(), SumGrad::OverTp);
    if moe.router.linear_bias {
        t.vector("mlp.router.bias", choices, Partition::Replicated, Init::Zeros, SumGrad::OverTp);
    }
    if hashed {
        let (rows, numbers) = ([c.vocab, moe.top_k], Init::RoundRobin { of: e });
        t.matrix("mlp.router.tid2eid", rows, Partition::Replicated, numbers);
        let table = t.list.last_mut().expect("just pushed");
        (table.trained, table.decay, table.integral) = (false, false, true);
    } else if moe.router.bias {
        t.vector("mlp.router.expert_bias", choices, Partition::Replicated, Init::Zeros, SumGrad::No);
        t.list.last_mut().expect("just pushed").trained = false;
    }
    let blocks = if c.activation.gated() { 2 } else { 1 };
    let rows = Partition::Experts { dim: 1, blocks };
    t.push("mlp.experts.linear_fc1.weight", &[e, blocks * f, h], rows, t.std(), SumGrad::No);
    if c.bias.mlp {
        t.push("mlp.experts.linear_fc1.bias", &[e, blocks * f], rows, Init::Zeros, SumGrad::No);
        t.list.last_mut().expect("just pushed").decay = false;
    }
    let columns = Partition::Experts { dim: 2, blocks: 1 };
    t.push("mlp.experts.linear_fc2.weight", &[e, h, f], columns, t.out_std(), SumGrad::No);
    if c.bias.mlp {
        // Whole on every rank that shares its experts; the first of them adds it.
        let shared = Partition::Split { axis: ms_core::Axis::Ep, dim: 0, blocks: 1 };
        t.push("mlp.experts.linear_fc2.bias", &[e, h], shared, Init::Zeros, SumGrad::OverTp);
        t.list.last_mut().expect("just pushed").decay = false;
    }
    if let Some(shared) = &moe.shared {
        dense(t, c, "mlp.shared_experts", shared.ffn);
        if shared.gate {
            t.push("mlp.shared_experts.gate_weight", &[1, h], Partition::Replicated, t.std(), by_sequence);
        }
    }
}
