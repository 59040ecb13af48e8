//! Gated DeltaNet.

use ms_core::{Axis, Partition};
use serde_json::json;

use crate::error::divides;
use crate::field::Field;
use crate::params::{Init, SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::parts::recurrent::{Recurrence, Recurrent, conv_init};
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED};
use crate::sizes::{GatedDelta, Layer, Mixer, Norm};
use crate::{ArgNames, ModelConfig, Part, Result, Role};

pub(crate) static KIND: Recurrence = Recurrence {
    mixer: Mixer::GatedDelta,
    what: "gated delta net",
    norm: Some(Role::InputLayernorm),
    rule: RULE,
    arguments: ARGUMENTS,
    args: &[&["full_attention_interval"]],
    flags: FLAGS,
    same_number: &[&["rotary_percent", "partial_rotary_factor"]],
    last_norm: Role::FinalLayernorm,
    stacked: true,
    of: |c| c.gated_delta.as_ref().map(|sizes| sizes as _),
};

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--full-attention-interval", "[0,16384]", "gated delta models: every N-th layer has full attention"),
    PartFlag::new("--linear-key-head-dim", "[0,16777216]", "gated delta layers: size of a key head"),
    PartFlag::new("--linear-num-key-heads", "[0,16384]", "gated delta layers: number of key heads"),
    PartFlag::new("--linear-num-value-heads", "[0,16384]", "gated delta layers: number of value heads"),
    PartFlag::new("--linear-value-head-dim", "[0,16777216]", "gated delta layers: size of a value head"),
    PartFlag::new("--partial-rotary-factor", "[0,1]", "share of each head that is rotated"),
];

/// What Megatron's arguments say of it.
const ARGUMENTS: &[Field] = &[
    LAYERS,
    Field::size("linear_num_key_heads", |c| Some(&mut c.gated_delta.as_mut()?.key_heads)).needed(),
    Field::size("linear_num_value_heads", |c| Some(&mut c.gated_delta.as_mut()?.value_heads)).needed(),
    Field::size("linear_key_head_dim", |c| Some(&mut c.gated_delta.as_mut()?.key_dim)).needed(),
    Field::size("linear_value_head_dim", |c| Some(&mut c.gated_delta.as_mut()?.value_dim)).needed(),
    // The flag of Mamba layers, as upstream's `qwen3_next_gated_deltanet_attention.py` has it.
    Field::size("mamba_d_conv", |c| Some(&mut c.gated_delta.as_mut()?.conv))
        .or(&["mamba_d_conv", "linear_conv_kernel_dim"]),
    ROTATED,
];

/// The rotated share of a head in the model's attention layers, with a field name of its own.
const ROTATED: Field = Field::float_as(
    "partial_rotary_factor",
    |c| c.gated_delta.map(|_| c.rope.fraction),
    |c, fraction| {
        if fraction > 0.0 {
            c.rope.fraction = fraction;
        }
    },
);

/// Gated DeltaNet, and attention in the last layer of every group.
const LAYERS: Field = Field::rule(
    |f, c| {
        let Some(interval) = f.size("full_attention_interval")?.filter(|&n| n > 0) else { return Ok(()) };
        c.gated_delta = Some(GatedDelta { key_heads: 0, value_heads: 0, key_dim: 0, value_dim: 0, conv: 4 });
        c.scores.output_gate = true;
        let layer = |l: usize| Layer {
            mixer: if (l + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::GatedDelta },
            ..Layer::default()
        };
        c.pattern = (0..c.layers).map(layer).collect();
        Ok(())
    },
    |c, w| {
        if c.gated_delta.is_some() {
            let first = (0..c.layers).find(|&l| c.layer(l).mixer == Mixer::Attention);
            w.set("full_attention_interval", json!(first.unwrap_or(c.layers) + 1));
        }
    },
);

/// What is sharded over tensor-parallel ranks.
const KEY_HEADS: &str =
    "key heads of the gated delta net, which Megatron-LM does not cut either and MindSpeed-LLM never shares";

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "gated delta net",
    tp: AxisRule::Shared(
        "key heads with the value heads that use them; fewer key heads than ranks are refused, as by Megatron-LM, while MindSpeed-LLM refuses any",
    ),
    cp: AxisRule::Shared("value heads for tokens; their keys are copied where key heads do not divide"),
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

impl Recurrent for GatedDelta {
    fn sizes(&self) -> Vec<usize> {
        vec![self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.conv]
    }

    fn check(&self) -> Result<()> {
        let args: ArgNames = &[&["linear_num_value_heads"], &["linear_num_key_heads"]];
        divides(args, "value heads", self.value_heads, "key heads", self.key_heads)
    }

    fn params(&self, t: &mut Table<'_>, c: &ModelConfig) {
        let (half, values) = (self.qk_rows() / 2, self.value_rows());
        t.of(Part::GatedDelta);
        t.vector(Role::DtBias, self.value_heads, Table::rows(1), Init::Ones, SumGrad::No);
        // MindSpeed-LLM's head, `qwen3_next_gated_deltanet_attention.py`; Mamba's begins with 1.
        let decays = Init::LogOfUniform { low: 0.0, high: 16.0 };
        t.vector(Role::ALog, self.value_heads, Table::rows(1), decays, SumGrad::No);
        let cut = Partition::Sections { axis: Axis::Tp, dim: 0, sizes: [half, half, values, 0, 0] };
        let rows = self.qk_rows() + values;
        t.push(Role::Conv1d, &[rows, 1, self.conv], cut, conv_init(self.conv), SumGrad::No);
        // Rows come by key head: its query, its key, its values, their gates.
        t.matrix(Role::InProjQkvz, [self.qk_rows() + 2 * values, c.hidden], Table::rows(1), t.std());
        t.matrix(Role::InProjBa, [2 * self.value_heads, c.hidden], Table::rows(1), t.std());
        t.norm_of(Norm::Rms, Role::Norm, self.value_dim, SumGrad::OverTp);
        t.matrix(Role::OutProj, [c.hidden, values], Table::columns(), t.out_std());
    }

    /// Queries, keys and values before and after the convolution, strengths and decays with their inputs; gates, outputs
    /// before and after their norm, and gated.
    fn kept(&self, a: &Activations, _: &ModelConfig) -> SavedBytes {
        let (qkv, values) = ((self.qk_rows() + self.value_rows()) / a.tp, self.value_rows() / a.tp);
        let heads = self.value_heads / a.tp;
        let (wide, weights) = a.wide(qkv * self.conv + 2 * heads);
        let rows = 2 * qkv * wide + 4 * values * a.element_bytes;
        (a.tokens * (rows + 4 * heads * wide) + weights, a.tokens * heads * wide)
    }

    fn shrink(&self, small: &mut ModelConfig, ranks: usize) {
        let value_heads = ranks * (self.value_heads / self.key_heads.max(1)).clamp(1, 2);
        let (key_dim, value_dim) = (self.key_dim.min(8), self.value_dim.min(8));
        small.gated_delta = Some(Self { key_heads: ranks, value_heads, key_dim, value_dim, ..*self });
    }
}
