//! Classes with grouped-query attention and mixtures of experts.

use serde_json::json;

use super::dense::{glm, qwen2, qwen3};
use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{
    ACTIVATION, BIAS, DECODER, QKV_BIAS, WINDOW, WINDOW_ALTERNATING, WINDOW_EVEN_BELOW, WINDOW_SWITCHED_ALL,
};
use crate::hf::moe::{
    DENSE_WIDTH, GATED_SHARED_512, GATED_SHARED_5632, GROUPS, GROUPS_ALWAYS, LAYERS, LAYERS_BUT,
    LAYERS_FROM_1, NOAUX, NONE_WITHOUT, RENORMALISE, ROUTER, SCALE, SHARED_1, WIDTH, count, experts, router,
    shared, top_k,
};
use crate::hf::rope::{COUNTED_ROPE, PARTIAL_ROPE, PHI_MOE_ROPE, ROPE, STRETCHED_ROPE, only_longrope};
use crate::hf::tensors::{EXPERTS_TENSORS, LLAMA_TENSORS, Tensors};
use crate::sizes::{Activation, Biases, GatedDelta, Layer, Mixer, Router, RouterDtype, Score};
use crate::{Family, ModelConfig, Norm, QkNorm, Rope, RopeScaling};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] =
    &[MIXTRAL, QWEN3_MOE, QWEN2_MOE, GLM4_MOE, PHI_MOE, GPT_OSS, MINIMAX_M2, LING, QWEN3_NEXT, OLMOE];

/// Mixtral.
const MIXTRAL: Class = class!(
    Family::new("Mixtral", &MIXTRAL_TENSORS),
    ["mixtral"],
    "MixtralForCausalLM",
    |c| {
        c.groups = 8;
        c.max_positions = 131_072;
        c.norm_eps = 1e-5;
        c.rope = Rope::plain(1e6);
        c.moe = experts(Router { score: Score::SoftmaxOfChosen, ..ROUTER });
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, WINDOW],
        &[count("num_local_experts"), NONE_WITHOUT, top_k("num_experts_per_tok"), DENSE_WIDTH, LAYERS],
    ],
);

/// Qwen's router and experts.
const QWEN_EXPERTS: &[Field] =
    &[count("num_experts"), NONE_WITHOUT, top_k("num_experts_per_tok"), WIDTH, RENORMALISE];

/// Qwen1.5-MoE and Qwen2-MoE: a gated shared expert.
const QWEN2_MOE: Class = class!(
    Family::new("Qwen2Moe", &SINGLE_SHARED_TENSORS),
    ["qwen2_moe"],
    "Qwen2MoeForCausalLM",
    |c| {
        qwen2(c);
        c.groups = 16;
        c.moe = experts(ROUTER);
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, Field::flag("qkv_bias", |c| Some(&mut c.bias.qkv)), WINDOW_EVEN_BELOW],
        QWEN_EXPERTS,
        &[GATED_SHARED_5632, LAYERS_BUT],
    ],
);

/// Qwen3-MoE.
const QWEN3_MOE: Class = class!(
    Family::new("Qwen3Moe", &EXPERTS_TENSORS),
    ["qwen3_moe"],
    "Qwen3MoeForCausalLM",
    |c| {
        qwen3(c);
        c.groups = 4;
        c.head_dim = 0;
        c.moe = experts(ROUTER);
    },
    &[DECODER, ROPE, &[ACTIVATION, BIAS, WINDOW_SWITCHED_ALL], QWEN_EXPERTS, &[LAYERS_BUT]],
);

/// Projections whose values are cut at a bound.
const CLIPPED: Field = Field::reading(|f, _| match f.float("clip_qkv")? {
    Some(bound) => Err(f.unsupported(format!("field `clip_qkv`: expected null, got {bound}"))),
    None => Ok(()),
});

/// `OLMoE`: norms of queries and keys over whole projections, experts everywhere.
const OLMOE: Class = class!(
    Family::new("Olmoe", &EXPERTS_TENSORS),
    ["olmoe"],
    "OlmoeForCausalLM",
    |c| {
        c.max_positions = 4096;
        c.qk_norm = QkNorm::WholeProjection;
        c.norm_eps = 1e-5;
        c.moe = experts(ROUTER);
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, BIAS, CLIPPED],
        &[count("num_experts"), top_k("num_experts_per_tok"), DENSE_WIDTH, RENORMALISE, LAYERS],
    ],
);

fn delta(c: &mut ModelConfig) -> Option<&mut GatedDelta> {
    c.gated_delta.as_mut()
}

/// Attention in every fourth layer, unless `layer_types` says otherwise.
const DELTA_LAYERS: Field = Field::rule(
    |f, c| {
        let mixer = |full: bool| if full { Mixer::Attention } else { Mixer::GatedDelta };
        let interval = f.size("full_attention_interval")?.unwrap_or(4).max(1);
        let mixers: Vec<Mixer> = match f.texts("layer_types")? {
            Some(types) => types.iter().map(|t| mixer(*t == "full_attention")).collect(),
            None => (0..c.layers).map(|l| mixer((l + 1) % interval == 0)).collect(),
        };
        c.pattern = mixers.into_iter().map(|mixer| Layer { mixer, ..Layer::default() }).collect();
        Ok(())
    },
    |c, w| {
        let kind = |l| match c.layer(l).mixer {
            Mixer::GatedDelta => "linear_attention",
            _ => "full_attention",
        };
        w.set("layer_types", (0..c.layers).map(kind).collect());
    },
);

/// Qwen3-Next: gated delta net layers, gated attention.
const QWEN3_NEXT: Class = class!(
    Family::new("Qwen3Next", &QWEN3_NEXT_TENSORS),
    ["qwen3_next"],
    "Qwen3NextForCausalLM",
    |c| {
        qwen3(c);
        c.groups = 2;
        c.norm = Norm::RmsUnitOffset;
        c.rope = Rope { fraction: 0.25, ..Rope::plain(10_000.0) };
        c.head_dim = 256;
        c.sliding_window = None;
        c.gated_delta =
            Some(GatedDelta { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, conv: 4 });
        c.moe = experts(Router { renormalise: true, ..ROUTER });
        c.scores.output_gate = true;
    },
    &[
        DECODER,
        PARTIAL_ROPE,
        &[
            ACTIVATION,
            BIAS,
            Field::size("linear_num_key_heads", |c| Some(&mut delta(c)?.key_heads)),
            Field::size("linear_num_value_heads", |c| Some(&mut delta(c)?.value_heads)),
            Field::size("linear_key_head_dim", |c| Some(&mut delta(c)?.key_dim)),
            Field::size("linear_value_head_dim", |c| Some(&mut delta(c)?.value_dim)),
            Field::size("linear_conv_kernel_dim", |c| Some(&mut delta(c)?.conv)),
            DELTA_LAYERS,
        ],
        QWEN_EXPERTS,
        &[GATED_SHARED_512, LAYERS_BUT],
    ],
);

/// Phi-3.5-MoE: LayerNorm, biases, sparsemixer.
const PHI_MOE: Class = class!(
    Family::new("PhiMoe", &MIXTRAL_TENSORS),
    ["phimoe"],
    "PhimoeForCausalLM",
    |c| {
        c.groups = 8;
        c.norm = Norm::LayerNorm;
        c.max_positions = 131_072;
        c.norm_eps = 1e-5;
        c.rope = Rope::plain(1e6);
        c.moe = experts(Router { score: Score::SparseMixer { jitter: 0.01 }, ..ROUTER });
    },
    &[
        DECODER,
        PHI_MOE_ROPE,
        &[ACTIVATION, BIAS, Field::flag("lm_head_bias", |c| Some(&mut c.bias.head)), WINDOW],
        &[
            count("num_local_experts"),
            NONE_WITHOUT,
            top_k("num_experts_per_tok"),
            DENSE_WIDTH,
            Field::float("router_jitter_noise", |c| match &mut router(c)?.score {
                Score::SparseMixer { jitter } => Some(jitter),
                _ => None,
            }),
            LAYERS,
        ],
    ],
    only_longrope,
);

/// gpt-oss: sinks, biases everywhere.
const GPT_OSS: Class = class!(
    Family::new("GptOss", &GPT_OSS_TENSORS),
    ["gpt_oss"],
    "GptOssForCausalLM",
    |c| {
        c.bias = Biases { qkv: true, out: true, mlp: true, head: false };
        c.groups = 8;
        c.head_dim = 64;
        c.max_positions = 131_072;
        c.sliding_window = Some(128);
        c.norm_eps = 1e-5;
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 4096,
            mscale: None,
            attention_factor: None,
            truncate: false,
        };
        c.rope = Rope { scaling, ..Rope::plain(150_000.0) };
        c.activation = Activation::SwigluClamped { alpha: 1.702, limit: 7.0 };
        c.moe = experts(Router { score: Score::SoftmaxOfChosen, linear_bias: true, ..ROUTER });
        c.scores.sinks = true;
    },
    &[
        DECODER,
        STRETCHED_ROPE,
        &[
            ACTIVATION,
            BIAS,
            WINDOW_ALTERNATING,
            Field::float("swiglu_alpha", |c| match &mut c.activation {
                Activation::SwigluClamped { alpha, .. } => Some(alpha),
                _ => None,
            }),
            Field::float("swiglu_limit", |c| match &mut c.activation {
                Activation::SwigluClamped { limit, .. } => Some(limit),
                _ => None,
            }),
        ],
        &[count("num_local_experts"), NONE_WITHOUT, top_k("num_experts_per_tok"), DENSE_WIDTH, LAYERS],
    ],
);

/// Norms of queries and keys: over whole projections, unless a file says otherwise.
const MINIMAX_NORMS: Field = Field::rule(
    |f, c| {
        match f.text("qk_norm_type")?.unwrap_or("per_layer") {
            "per_layer" if f.on_unless_said("use_qk_norm")? => {}
            "per_head" => c.qk_norm = QkNorm::PerHead,
            _ => c.qk_norm = QkNorm::None,
        }
        Ok(())
    },
    |c, w| {
        w.set("use_qk_norm", json!(c.qk_norm != QkNorm::None));
        w.set("qk_norm_type", json!(if c.qk_norm == QkNorm::PerHead { "per_head" } else { "per_layer" }));
    },
);

/// MiniMax-M2: norms over whole projections.
const MINIMAX_M2: Class = class!(
    Family::new("MiniMaxM2", &MIXTRAL_TENSORS),
    ["minimax_m2"],
    "MiniMaxM2ForCausalLM",
    |c| {
        c.qk_norm = QkNorm::WholeProjection;
        c.groups = 8;
        c.head_dim = 128;
        c.max_positions = 196_608;
        c.rope = Rope::plain(5e6);
        c.moe = experts(NOAUX);
    },
    &[
        DECODER,
        COUNTED_ROPE,
        &[ACTIVATION, MINIMAX_NORMS],
        &[count("num_local_experts"), NONE_WITHOUT, top_k("num_experts_per_tok"), DENSE_WIDTH, LAYERS],
    ],
);

const PER_HEAD_NORMS: Field = Field::flag_as(
    "use_qk_norm",
    |c| Some(c.qk_norm == QkNorm::PerHead),
    |c, on| c.qk_norm = if on { QkNorm::PerHead } else { QkNorm::None },
);

/// GLM-4.5.
const GLM4_MOE: Class = class!(
    Family::new("Glm4Moe", &EXPERTS_TENSORS),
    ["glm4_moe"],
    "Glm4MoeForCausalLM",
    |c| {
        glm(c);
        c.groups = 8;
        c.bias = Biases::default();
        c.rope = Rope { fraction: 0.5, ..Rope::plain(10_000.0) };
        c.head_dim = 0;
        c.norm_eps = 1e-5;
        c.moe = experts(NOAUX);
    },
    &[
        DECODER,
        PARTIAL_ROPE,
        &[ACTIVATION, QKV_BIAS, PER_HEAD_NORMS],
        &[
            count("n_routed_experts"),
            NONE_WITHOUT,
            top_k("num_experts_per_tok"),
            WIDTH,
            shared("n_shared_experts"),
            SHARED_1,
            GROUPS_ALWAYS,
            RENORMALISE,
            SCALE,
            LAYERS_FROM_1,
        ],
    ],
);

/// Ling 2.0 and Ring (BailingMoeV2).
const LING: Class = class!(
    Family::new("Ling", &LING_TENSORS),
    ["bailing_moe", "bailing_moe_v2"],
    "BailingMoeV2ForCausalLM",
    |c| {
        c.groups = 4;
        c.head_dim = 128;
        c.qk_norm = QkNorm::PerHead;
        c.rope = Rope { fraction: 0.5, ..Rope::plain(600_000.0) };
        c.max_positions = 32_768;
        c.moe = experts(NOAUX);
    },
    &[
        DECODER,
        PARTIAL_ROPE,
        &[
            ACTIVATION,
            PER_HEAD_NORMS,
            Field::flag("use_qkv_bias", |c| Some(&mut c.bias.qkv)),
            Field::flag("use_bias", |c| Some(&mut c.bias.out)),
            Field::told("use_rmsnorm", |_| json!(true)),
        ],
        &[
            count("num_experts"),
            NONE_WITHOUT,
            top_k("num_experts_per_tok"),
            WIDTH,
            shared("num_shared_experts"),
            GROUPS,
            RENORMALISE,
            SCALE,
            Field::word("score_function", ling_score, take_ling_score, |_| &["sigmoid", "softmax"]),
            Field::flag("moe_router_enable_expert_bias", |c| Some(&mut router(c)?.bias)),
            Field::word("router_dtype", router_type, take_router_type, |_| &["fp32", "bf16", "fp16"]),
            LAYERS,
        ],
    ],
);

fn ling_score(c: &ModelConfig) -> Option<&'static str> {
    let score = c.moe.as_ref()?.router.score;
    Some(if score == Score::Sigmoid { "sigmoid" } else { "softmax" })
}

fn take_ling_score(c: &mut ModelConfig, word: &str) -> bool {
    if let Some(r) = router(c) {
        r.score = if word == "sigmoid" { Score::Sigmoid } else { Score::Softmax };
    }
    matches!(word, "sigmoid" | "softmax")
}

fn router_type(c: &ModelConfig) -> Option<&'static str> {
    Some(match c.moe.as_ref()?.router.dtype {
        RouterDtype::Model => "bf16",
        RouterDtype::F32 | RouterDtype::F64 => "fp32",
    })
}

fn take_router_type(c: &mut ModelConfig, word: &str) -> bool {
    let dtype = if word == "fp32" { RouterDtype::F32 } else { RouterDtype::Model };
    router(c).into_iter().for_each(|r| r.dtype = dtype);
    true
}

const SINGLE_SHARED_TENSORS: Tensors = Tensors {
    parent: Some(&EXPERTS_TENSORS),
    rows: &[
        ("shared.gate", "model.layers.{L}.mlp.shared_expert.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.mlp.shared_expert.up_proj.weight"),
        ("shared.down", "model.layers.{L}.mlp.shared_expert.down_proj.weight"),
        ("shared_gate", "model.layers.{L}.mlp.shared_expert_gate.weight"),
    ],
};

const QWEN3_NEXT_TENSORS: Tensors = Tensors {
    parent: Some(&SINGLE_SHARED_TENSORS),
    rows: &[
        ("own.self_attention.A_log", "model.layers.{L}.linear_attn.A_log"),
        ("own.self_attention.dt_bias", "model.layers.{L}.linear_attn.dt_bias"),
        ("own.self_attention.conv1d", "model.layers.{L}.linear_attn.conv1d.weight"),
        ("own.self_attention.in_proj_qkvz", "model.layers.{L}.linear_attn.in_proj_qkvz.weight"),
        ("own.self_attention.in_proj_ba", "model.layers.{L}.linear_attn.in_proj_ba.weight"),
        ("own.self_attention.norm", "model.layers.{L}.linear_attn.norm.weight"),
        ("own.self_attention.out_proj", "model.layers.{L}.linear_attn.out_proj.weight"),
        // The prediction layer is a separate model; vocabulary matrices are shared.
        ("mtp.layer", "mtp.layers.{K}"),
        ("mtp.embed", ""),
        ("mtp.enorm", "mtp.pre_fc_norm_embedding.weight"),
        ("mtp.hnorm", "mtp.pre_fc_norm_hidden.weight"),
        ("mtp.eh_proj", "mtp.fc.weight"),
        ("mtp.norm", "mtp.norm.weight"),
        ("mtp.head", ""),
    ],
};

const MIXTRAL_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("router", "model.layers.{L}.block_sparse_moe.gate.weight"),
        ("router_bias", "model.layers.{L}.block_sparse_moe.e_score_correction_bias"),
        ("expert.gate", "model.layers.{L}.block_sparse_moe.experts.{E}.w1.weight"),
        ("expert.up", "model.layers.{L}.block_sparse_moe.experts.{E}.w3.weight"),
        ("expert.down", "model.layers.{L}.block_sparse_moe.experts.{E}.w2.weight"),
    ],
};

const LING_TENSORS: Tensors = Tensors {
    parent: Some(&EXPERTS_TENSORS),
    rows: &[
        ("embed", "model.word_embeddings.weight"),
        ("qkv_cat", "model.layers.{L}.attention.query_key_value.weight"),
        ("q_norm", "model.layers.{L}.attention.query_layernorm.weight"),
        ("k_norm", "model.layers.{L}.attention.key_layernorm.weight"),
        ("o", "model.layers.{L}.attention.dense.weight"),
        ("router_bias", "model.layers.{L}.mlp.gate.expert_bias"),
        // Of a prediction layer: the embedding and the output layer are the model's.
        ("mtp.embed", ""),
        ("mtp.norm", "model.layers.{L}.final_layernorm.weight"),
        ("mtp.head", ""),
    ],
};

/// gpt-oss stacks its experts, input-major, with gate and up in even and odd columns.
const GPT_OSS_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("sinks", "model.layers.{L}.self_attn.sinks"),
        ("router", "model.layers.{L}.mlp.router.weight"),
        ("experts.gate_up", "model.layers.{L}.mlp.experts.gate_up_proj"),
        ("experts.down", "model.layers.{L}.mlp.experts.down_proj"),
    ],
};
