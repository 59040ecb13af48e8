//! Gated DeltaNet.

use ms_core::{Axis, Partition};

use crate::kept::{Activations, Kept};
use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::{A, conv_init};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::{GatedDelta, Norm};
use crate::{ModelConfig, Part, Role};

/// What tensor-parallel ranks share out.
const KEY_HEADS: &str =
    "key heads of the gated delta net, which Megatron-LM does not cut either and MindSpeed-LLM never shares,";

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "gated delta net",
    tp: How::Shared(
        "key heads with the value heads that use them; fewer key heads than ranks are refused, as by Megatron-LM, while MindSpeed-LLM refuses any",
    ),
    cp: How::Shared("value heads for tokens; their keys are copied where key heads do not divide"),
    ep: UNCONCERNED,
    has: |c| c.gated_delta.is_some(),
    divides: |c, axis| match (axis, &c.gated_delta) {
        // Megatron-LM (2026), `megatron/core/transformer/transformer_config.py`, asks for it; MindSpeed-LLM (2026),
        // `qwen3_next_gated_deltanet_attention.py`, refuses tensor parallelism of these layers altogether.
        (Axis::Tp, Some(g)) => vec![(KEY_HEADS, g.key_heads)],
        (Axis::Cp, Some(g)) => vec![("value heads of a rank's gated delta net", g.value_heads)],
        _ => Vec::new(),
    },
};

/// Its weights.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig) {
    let g = c.gated_delta.as_ref().expect("validate: a gated delta layer needs its sizes");
    let (half, values) = (g.qk_rows() / 2, g.value_rows());
    t.of(Part::GatedDelta);
    t.vector(Role::DtBias, g.value_heads, Table::rows(1), Init::Ones, SumGrad::No);
    t.vector(Role::ALog, g.value_heads, Table::rows(1), A, SumGrad::No);
    let cut = Partition::Sections { axis: Axis::Tp, dim: 0, sizes: [half, half, values, 0, 0] };
    let rows = g.qk_rows() + values;
    t.push(Role::Conv1d, &[rows, 1, g.conv], cut, conv_init(g.conv), SumGrad::No);
    // Rows come by key head: its query, its key, its values, their gates.
    t.matrix(Role::InProjQkvz, [g.qk_rows() + 2 * values, c.hidden], Table::rows(1), t.std());
    t.matrix(Role::InProjBa, [2 * g.value_heads, c.hidden], Table::rows(1), t.std());
    t.norm_of(Norm::Rms, Role::Norm, g.value_dim, SumGrad::OverTp);
    t.matrix(Role::OutProj, [c.hidden, values], Table::columns(), t.out_std());
}

impl Activations {
    /// Queries, keys and values before and behind the convolution, strengths and decays with what they are made of; gates,
    /// outputs before and behind their norm, and gated.
    pub(crate) fn gated_delta(&self, g: &GatedDelta) -> Kept {
        let (qkv, values) = ((g.qk_rows() + g.value_rows()) / self.tp, g.value_rows() / self.tp);
        let heads = g.value_heads / self.tp;
        let (wide, weights) = self.wide(qkv * g.conv + 2 * heads);
        let rows = 2 * qkv * wide + 4 * values * self.element_bytes;
        (self.tokens * (rows + 4 * heads * wide) + weights, self.tokens * heads * wide)
    }
}
