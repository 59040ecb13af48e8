//! Hunyuan's classes and its successor's.

use serde_json::json;

use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, BIAS, DECODER};
use crate::hf::moe::{
    GROUPS, LAYERS, LAYERS_BY_NAME, NOAUX, NONE_WITHOUT, PLAIN_NETWORKS, ROUTER, WIDTH, count, experts, moe,
    one_shared, renormalise, router, scale, shared, top_k,
};
use crate::hf::rope::{ALPHA_ROPE, ROPE};
use crate::hf::tensors::{EXPERTS_TENSORS, Tensors};
use crate::sizes::{Layer, Mixer, Router, RouterDtype, SharedExpert};
use crate::{Family, ModelConfig, QkNorm, Result, Rope};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[HY_V3, HUNYUAN_V1, HUNYUAN_LARGE];

/// Hunyuan 3.
const HY_V3: Class = class!(
    Family::new("HyV3", &HY_V3_TENSORS),
    ["hy_v3"],
    "HYV3ForCausalLM",
    |c| {
        c.qk_norm = QkNorm::PerHead;
        c.norm_eps = 1e-5;
        c.head_dim = 128;
        c.max_positions = 131_072;
        c.groups = 8;
        c.rope = Rope::plain(11_158_840.0);
        c.init_std = 0.006;
        c.moe = experts(Router { scale: 2.826, ..NOAUX });
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, BIAS, PLAIN_NETWORKS],
        &[
            count("num_experts"),
            NONE_WITHOUT,
            top_k("num_experts_per_tok"),
            WIDTH,
            shared("num_shared_experts").else_by(one_shared),
            GROUPS,
            renormalise("route_norm"),
            scale("router_scaling_factor"),
            LAYERS_BY_NAME,
        ],
    ],
);

fn hunyuan(c: &mut ModelConfig) {
    c.norm_eps = 1e-5;
    c.moe = experts(Router { dtype: RouterDtype::F32, ..ROUTER });
}

/// Experts of both classes; without a number of them the model is dense.
const HUNYUAN_EXPERTS: &[Field] = &[
    Field::same_size("num_experts", |c| Some(&mut moe(c)?.experts)),
    NONE_WITHOUT,
    Field::same_size("moe_topk", |c| Some(&mut moe(c)?.top_k))
        .else_by(|c| moe(c).into_iter().for_each(|m| m.top_k = 1)),
    WIDTH,
    LAYERS,
];

const SHARED: &str = "num_shared_expert";

/// Shared experts, each as wide as a dense layer.
fn read_hunyuan_shared(f: &crate::fields::Fields<'_>, c: &mut ModelConfig, silent: usize) -> Result<()> {
    let n = f.same_size(SHARED)?.unwrap_or(silent);
    let mixed = f.on_unless_said("use_mixed_mlp_moe")?;
    let shared = SharedExpert { ffn: n.saturating_mul(c.ffn), gate: false, wide_gate: false };
    moe(c).into_iter().for_each(|m| m.shared = (mixed && n > 0).then_some(shared));
    Ok(())
}

fn write_hunyuan_shared(c: &ModelConfig, w: &mut crate::field::Writer) {
    if let Some(m) = &c.moe {
        w.set(SHARED, json!(m.shared.map_or(0, |s| s.ffn / c.ffn.max(1))));
        w.set("use_mixed_mlp_moe", json!(m.shared.is_some()));
    }
}

const NORMS_AFTER_ROPE: Field = Field::flag_as(
    "use_qk_norm",
    |c| Some(c.qk_norm == QkNorm::PerHeadAfterRope),
    |c, on| c.qk_norm = if on { QkNorm::PerHeadAfterRope } else { QkNorm::None },
);

/// The class of transformers: it always has a shared expert, and divides the experts' weights by their sum.
const HUNYUAN_V1: Class = class!(
    Family::new("HunyuanMoe", &HY_V1_TENSORS),
    ["hunyuan_v1_moe"],
    "HunYuanMoEV1ForCausalLM",
    |c| {
        hunyuan(c);
        c.qk_norm = QkNorm::PerHeadAfterRope;
        router(c).into_iter().for_each(|r| r.renormalise = true);
    },
    &[
        DECODER,
        ALPHA_ROPE,
        &[ACTIVATION, BIAS, NORMS_AFTER_ROPE],
        HUNYUAN_EXPERTS,
        &[Field::rule(|f, c| read_hunyuan_shared(f, c, 1), write_hunyuan_shared)],
    ],
    |c| {
        let plain = c.has(Mixer::SharedKv) || c.moe.as_ref().is_some_and(|m| m.shared.is_none());
        plain.then_some("keys that layers share, and experts without a shared one")
    }
);

/// Cross-layer attention: in groups of this many layers, only the first has keys and values.
const SHARED_KEYS: Field = Field::rule(
    |f, c| {
        if f.flag("use_cla")?.unwrap_or(false) {
            let share = f.size("cla_share_factor")?.unwrap_or(2).max(1);
            let layer = |l: usize| Layer {
                mixer: if l.is_multiple_of(share) { Mixer::Attention } else { Mixer::SharedKv },
                ..Layer::default()
            };
            c.pattern = (0..c.layers).map(layer).collect();
        }
        Ok(())
    },
    |c, w| {
        w.set("use_cla", json!(c.has(Mixer::SharedKv)));
        let share = (1..c.layers).find(|&l| c.layer(l).mixer == Mixer::Attention).unwrap_or(c.layers);
        w.set("cla_share_factor", json!(share));
    },
);

/// The published class: it divides the experts' weights only where there are several.
const HUNYUAN_LARGE: Class = class!(
    Family::new("HunyuanMoe", &HY_V1_TENSORS),
    ["hunyuan"],
    "HunYuanForCausalLM",
    hunyuan,
    &[
        DECODER,
        ALPHA_ROPE,
        &[ACTIVATION, BIAS, NORMS_AFTER_ROPE, SHARED_KEYS],
        HUNYUAN_EXPERTS,
        &[
            Field::rule(|f, c| read_hunyuan_shared(f, c, 0), write_hunyuan_shared),
            Field::then(|c| moe(c).into_iter().for_each(|m| m.router.renormalise = m.top_k > 1)),
        ],
    ],
);

const HY_V1_TENSORS: Tensors = Tensors {
    parent: Some(&EXPERTS_TENSORS),
    rows: &[
        ("q_norm", "model.layers.{L}.self_attn.query_layernorm.weight"),
        ("k_norm", "model.layers.{L}.self_attn.key_layernorm.weight"),
        ("router", "model.layers.{L}.mlp.gate.wg.weight"),
        ("shared.gate", "model.layers.{L}.mlp.shared_mlp.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_mlp.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_mlp.down_proj.weight"),
    ],
};

const HY_V3_TENSORS: Tensors = Tensors {
    parent: Some(&HY_V1_TENSORS),
    rows: &[
        ("q_norm", "model.layers.{L}.self_attn.q_norm.weight"),
        ("k_norm", "model.layers.{L}.self_attn.k_norm.weight"),
        ("router", "model.layers.{L}.mlp.router.gate.weight"),
        ("router_bias", "model.layers.{L}.mlp.expert_bias"),
        // Of a prediction layer: the embedding and the output layer are the model's.
        ("mtp.embed", ""),
        ("mtp.norm", "model.layers.{L}.final_layernorm.weight"),
        ("mtp.head", ""),
    ],
};
