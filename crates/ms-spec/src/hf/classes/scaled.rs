//! Dense decoders with factors on the embedding, the residual stream, scores or logits.

use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{
    ACTIVATION, BIAS, DECODER, MLP_BIAS, QUERY_SCALAR, ROOT_EMBEDDING, WINDOW_ALTERNATING, activation,
};
use crate::hf::moe::{self, DENSE_WIDTH, ROUTER};
use crate::hf::rope::ROPE;
use crate::hf::tensors::{LLAMA_TENSORS, Tensors};
use crate::sizes::{Activation, Block, Router};
use crate::{Family, ModelConfig, Norm};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[GEMMA, GEMMA2, MINICPM, GRANITE];

fn gemma(c: &mut ModelConfig) {
    c.norm = Norm::RmsUnitOffset;
    c.activation = Activation::GegluTanh;
    c.groups = 16;
    c.head_dim = 256;
    c.max_positions = 8192;
    c.tied = true;
}

/// What both generations have.
const GEMMA_SCALE: &[Field] = &[activation("hidden_activation"), EXACT_GELU, BIAS, ROOT_EMBEDDING];

/// `gelu` is the error function's under this name alone: transformers takes no notice of the older `hidden_act`.
const EXACT_GELU: Field = Field::reading(|f, c| {
    if f.text("hidden_activation")? == Some("gelu") {
        c.activation = Activation::GegluErf;
    }
    Ok(())
});

/// Gemma.
const GEMMA: Class = class!(
    Family::new("Gemma", &LLAMA_TENSORS),
    ["gemma"],
    "GemmaForCausalLM",
    gemma,
    &[DECODER, ROPE, GEMMA_SCALE],
);

/// Gemma 2: sandwich norms, softcaps, alternating windows.
const GEMMA2: Class = class!(
    Family::new("Gemma2", &GEMMA2_TENSORS),
    ["gemma2"],
    "Gemma2ForCausalLM",
    |c| {
        gemma(c);
        c.groups = 4;
        c.sliding_window = Some(4096);
        c.block = Block::Sandwich;
        (c.scores.softcap, c.logit_softcap) = (Some(50.0), Some(30.0));
    },
    &[
        DECODER,
        ROPE,
        GEMMA_SCALE,
        &[
            WINDOW_ALTERNATING,
            Field::maybe_float("attn_logit_softcapping", |c| Some(&mut c.scores.softcap)),
            Field::maybe_float("final_logit_softcapping", |c| Some(&mut c.logit_softcap)),
            QUERY_SCALAR.else_by(|c| c.scores.scale = (c.head_dim != 256).then(|| 256_f64.powf(-0.5))),
        ],
    ],
);

/// Factors by the depth and width of a small model that hyperparameters were found on.
pub(super) const MINICPM_SCALES: &[Field] = &[
    Field::whole_as("scale_emb", |c| Some(c.scales.embedding), |c, x| c.scales.embedding = x),
    Field::float_as("scale_depth", |c| Some(c.scales.residual * (c.layers as f64).sqrt()), scale_depth)
        .else_by(|c| scale_depth(c, 1.4)),
    Field::whole_as("dim_model_base", |c| Some(c.scales.logits * c.hidden as f64), model_base)
        .else_by(|c| model_base(c, 256.0)),
];

fn scale_depth(c: &mut ModelConfig, depth: f64) {
    c.scales.residual = depth / (c.layers as f64).sqrt();
}

fn model_base(c: &mut ModelConfig, base: f64) {
    c.scales.logits = base / c.hidden as f64;
}

/// What both generations of `MiniCPM` assume.
pub(super) fn minicpm(c: &mut ModelConfig) {
    c.tied = true;
    c.scales.embedding = 12.0;
}

/// MiniCPM, dense and MoE: scaled embedding, residual and logits.
const MINICPM: Class = class!(
    Family::new("MiniCpm", &MINICPM_TENSORS),
    ["minicpm"],
    "MiniCPMForCausalLM",
    |c| {
        minicpm(c);
        c.moe = moe::experts(Router { renormalise: true, ..ROUTER });
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, BIAS],
        MINICPM_SCALES,
        &[
            Field::size("num_experts", |c| Some(&mut moe::moe(c)?.experts)),
            // One expert is a dense MLP.
            Field::then(|c| c.moe = c.moe.take().filter(|m| m.experts > 1)),
            moe::top_k("num_experts_per_tok"),
            DENSE_WIDTH,
            moe::LAYERS,
        ],
    ],
);

/// Granite: scaled embedding, residual, scores and logits.
const GRANITE: Class = class!(
    Family::new("Granite", &LLAMA_TENSORS),
    ["granite"],
    "GraniteForCausalLM",
    |_| {},
    &[
        DECODER,
        ROPE,
        &[
            ACTIVATION,
            BIAS,
            MLP_BIAS,
            Field::whole_as(
                "embedding_multiplier",
                |c| Some(c.scales.embedding),
                |c, x| c.scales.embedding = x,
            ),
            Field::float("residual_multiplier", |c| Some(&mut c.scales.residual)),
            Field::whole_as(
                "logits_scaling",
                |c| Some(c.scales.logits.recip()),
                |c, x| {
                    c.scales.logits = x.recip();
                },
            ),
            Field::float_as("attention_multiplier", |c| Some(c.score_scale()), attention_multiplier)
                .else_by(|c| { attention_multiplier(c, 1.0) },),
        ],
    ],
);

fn attention_multiplier(c: &mut ModelConfig, scale: f64) {
    c.scores.scale = (scale != (c.head_dim as f64).powf(-0.5)).then_some(scale);
}

const MINICPM_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("router", "model.layers.{L}.mlp.gate.weight"),
        ("expert.gate", "model.layers.{L}.mlp.experts.{E}.w1.weight"),
        ("expert.up", "model.layers.{L}.mlp.experts.{E}.w3.weight"),
        ("expert.down", "model.layers.{L}.mlp.experts.{E}.w2.weight"),
    ],
};

const GEMMA2_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("post_attn_norm", "model.layers.{L}.post_attention_layernorm.weight"),
        ("norm2", "model.layers.{L}.pre_feedforward_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_feedforward_layernorm.weight"),
    ],
};
