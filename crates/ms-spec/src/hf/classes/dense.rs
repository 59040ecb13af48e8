//! Dense decoders: Llama and its variants.

use serde_json::{Value, json};

use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{
    ACTIVATION, BIAS, DECODER, MLP_BIAS, QKV_BIAS, WINDOW, WINDOW_BY_LAYER, WINDOW_SWITCHED,
};
use crate::hf::rope::{PARTIAL_ROPE, PHI_ROPE, ROPE, only_longrope};
use crate::hf::tensors::{LLAMA_TENSORS, Tensors};
use crate::sizes::{Biases, Block};
use crate::{Family, ModelConfig, QkNorm, Rope};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[
    LLAMA, QWEN2, QWEN3, MINISTRAL, MISTRAL, GLM, GLM4, OLMO2, PHI3, SEED_OSS, AQUILA, INTERNLM, INTERNLM2,
    INTERNLM3,
];

/// Llama 1 to 3 and what shares its classes.
const LLAMA: Class = class!(
    Family::LLAMA,
    ["llama"],
    "LlamaForCausalLM",
    |_| {},
    &[DECODER, ROPE, &[ACTIVATION, BIAS, MLP_BIAS]],
);

/// Aquila: a Llama with its own class.
const AQUILA: Class = class!(
    Family::new("Aquila", &LLAMA_TENSORS),
    ["aquila"],
    "AquilaForCausalLM",
    |_| {},
    &[DECODER, ROPE, &[ACTIVATION]]
);

pub(super) fn qwen2(c: &mut ModelConfig) {
    c.bias = Biases { qkv: true, ..Biases::default() };
    c.groups = 32;
    c.max_positions = 32_768;
    c.sliding_window = Some(4096);
}

/// Qwen1.5, Qwen2, Qwen2.5: biases in q, k and v.
const QWEN2: Class = class!(
    Family::new("Qwen2", &LLAMA_TENSORS),
    ["qwen2"],
    "Qwen2ForCausalLM",
    qwen2,
    &[DECODER, ROPE, &[ACTIVATION, WINDOW_SWITCHED]],
);

pub(super) fn qwen3(c: &mut ModelConfig) {
    qwen2(c);
    c.bias = Biases::default();
    c.qk_norm = QkNorm::PerHead;
    c.head_dim = 128;
}

/// Qwen3: q and k are normalised per head.
const QWEN3: Class = class!(
    Family::new("Qwen3", &LLAMA_TENSORS),
    ["qwen3"],
    "Qwen3ForCausalLM",
    qwen3,
    &[DECODER, ROPE, &[ACTIVATION, BIAS, WINDOW_SWITCHED]],
);

fn mistral(c: &mut ModelConfig) {
    c.groups = 8;
    c.max_positions = 131_072;
    c.sliding_window = Some(4096);
}

/// Mistral: a Llama, possibly with a sliding window.
const MISTRAL: Class = class!(
    Family::new("Mistral", &LLAMA_TENSORS),
    ["mistral"],
    "MistralForCausalLM",
    mistral,
    &[DECODER, ROPE, &[ACTIVATION, QKV_BIAS, WINDOW]],
);

/// Ministral: the same with the window in some of the layers.
const MINISTRAL: Class = class!(
    MISTRAL.family,
    ["ministral"],
    "MinistralForCausalLM",
    mistral,
    &[DECODER, ROPE, &[ACTIVATION, WINDOW_BY_LAYER]],
    |c| c.pattern.iter().all(|l| !l.global).then_some("windows of all layers"),
);

const ONE_BIAS: Field = Field::flag_as(
    "bias",
    |c| Some(c.bias.qkv),
    |c, on| {
        (c.bias.qkv, c.bias.out) = (on, on);
    },
);

/// Where the file has it, the class rotates by this, and by no other field. `dynamic` stretches frequencies only behind the
/// window, where nothing is computed.
///
/// # Source
/// `InternLMAttention._init_rope` of `modeling_internlm.py`, published with the weights.
const ROTARY: Field = Field::rule(
    |f, c| {
        let Some(own) = f.object("rotary")? else { return Ok(()) };
        if let Some(other) = own.text("type")?.filter(|kind| !["origin", "dynamic"].contains(kind)) {
            return Err(
                f.unsupported(format!("rotary type `{other}` is not supported; supported: origin, dynamic"))
            );
        }
        c.rope = Rope::plain(own.float("base")?.unwrap_or(10_000.0));
        Ok(())
    },
    |c, w| w.set("rotary", json!({"base": c.rope.base, "type": "dynamic"})),
);

/// InternLM: biases in all attention projections.
const INTERNLM: Class = class!(
    Family::new("InternLm", &LLAMA_TENSORS),
    ["internlm"],
    "InternLMForCausalLM",
    |c| {
        c.bias = Biases { qkv: true, out: true, ..Biases::default() };
    },
    &[DECODER, ROPE, &[ROTARY, ACTIVATION, ONE_BIAS]],
);

/// InternLM2 and 2.5: packed `wqkv`.
const INTERNLM2: Class = class!(
    Family::new("InternLm2", &INTERNLM2_TENSORS),
    ["internlm2"],
    "InternLM2ForCausalLM",
    |_| {},
    &[DECODER, ROPE, &[ACTIVATION, ONE_BIAS]],
);

/// The published class has fields of its own, `qkv_bias` and `bias`; transformers' takes Llama's, which are read first.
const INTERNLM3: Class = class!(
    Family::new("InternLm3", &LLAMA_TENSORS),
    ["internlm3"],
    "InternLM3ForCausalLM",
    |c| {
        c.groups = 2;
        c.max_positions = 32_768;
        c.head_dim = 128;
        c.norm_eps = 1e-5;
    },
    &[
        DECODER,
        ROPE,
        &[
            ACTIVATION,
            BIAS.read_only(),
            MLP_BIAS.read_only(),
            Field::rule(
                |f, c| {
                    let (qkv, rest) = (f.flag("qkv_bias")?, f.flag("bias")?);
                    if qkv.or(rest).is_some() {
                        (c.bias.qkv, c.bias.out) = (qkv.unwrap_or(false), rest.unwrap_or(false));
                    }
                    c.bias.mlp = rest.unwrap_or(c.bias.mlp);
                    Ok(())
                },
                |c, w| {
                    w.set("qkv_bias", c.bias.qkv.into());
                    w.set("bias", c.bias.out.into());
                },
            ),
        ],
    ],
);

/// Seed-OSS: biases in q, k and v.
const SEED_OSS: Class = class!(
    Family::new("SeedOss", &LLAMA_TENSORS),
    ["seed_oss"],
    "SeedOssForCausalLM",
    |c| {
        c.bias = Biases { qkv: true, ..Biases::default() };
        c.groups = 8;
        c.head_dim = 128;
        c.max_positions = 524_288;
    },
    &[
        DECODER,
        ROPE,
        &[ACTIVATION, QKV_BIAS, MLP_BIAS, Field::flag("attention_out_bias", |c| Some(&mut c.bias.out))],
    ],
);

pub(super) fn glm(c: &mut ModelConfig) {
    c.bias = Biases { qkv: true, ..Biases::default() };
    c.groups = 2;
    c.max_positions = 131_072;
    c.rope = Rope { fraction: 0.5, interleaved: true, ..Rope::plain(10_000.0) };
    c.norm_eps = 1.562_5e-7;
    c.head_dim = 128;
}

/// GLM-4-9B in transformers' class.
const GLM: Class = class!(
    Family::new("Glm", &GLM_TENSORS),
    ["glm"],
    "GlmForCausalLM",
    glm,
    &[DECODER, PARTIAL_ROPE, &[ACTIVATION, QKV_BIAS]]
);

/// GLM-4-0414 and GLM-Z1: sandwich norms.
const GLM4: Class = class!(
    Family::new("Glm4", &GLM4_TENSORS),
    ["glm4"],
    "Glm4ForCausalLM",
    |c| {
        glm(c);
        c.block = Block::Sandwich;
    },
    GLM.fields,
);

/// Phi-3.5-mini: packed projections, longrope.
const PHI3: Class = class!(
    Family::new("Phi3", &PHI3_TENSORS),
    ["phi3"],
    "Phi3ForCausalLM",
    |c| {
        c.max_positions = 4096;
        c.norm_eps = 1e-5;
    },
    &[DECODER, PHI_ROPE, &[ACTIVATION, WINDOW, NO_PADDING]],
    only_longrope,
);

/// The token that the class pads with where nothing is said, whose row a smaller vocabulary does not have.
const NO_PADDING: Field = Field::told("pad_token_id", |_| Value::Null).written_if(|c| c.vocab <= 32_000);

/// `OLMo` 2: norms after the sublayers, and over whole projections.
const OLMO2: Class = class!(
    Family::new("Olmo2", &OLMO2_TENSORS),
    ["olmo2"],
    "Olmo2ForCausalLM",
    |c| {
        c.qk_norm = QkNorm::WholeProjection;
        c.norm_eps = 1e-5;
        c.block = Block::Post;
    },
    &[DECODER, ROPE, &[ACTIVATION, BIAS]],
);

const PHI3_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("qkv_cat", "model.layers.{L}.self_attn.qkv_proj.weight"),
        ("gate_up", "model.layers.{L}.mlp.gate_up_proj.weight"),
    ],
};

const GLM_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[("gate_up", "model.layers.{L}.mlp.gate_up_proj.weight")],
};

const GLM4_TENSORS: Tensors = Tensors {
    parent: Some(&GLM_TENSORS),
    rows: &[
        ("post_attn_norm", "model.layers.{L}.post_self_attn_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_mlp_layernorm.weight"),
    ],
};

const OLMO2_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("norm1", ""),
        ("norm2", ""),
        ("post_attn_norm", "model.layers.{L}.post_attention_layernorm.weight"),
        ("post_mlp_norm", "model.layers.{L}.post_feedforward_layernorm.weight"),
    ],
};

const INTERNLM2_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "model.tok_embeddings.weight"),
        ("head", "output.weight"),
        ("norm", "model.norm.weight"),
        ("norm1", "model.layers.{L}.attention_norm.weight"),
        ("norm2", "model.layers.{L}.ffn_norm.weight"),
        ("qkv_grouped", "model.layers.{L}.attention.wqkv.weight"),
        ("o", "model.layers.{L}.attention.wo.weight"),
        ("gate", "model.layers.{L}.feed_forward.w1.weight"),
        ("up", "model.layers.{L}.feed_forward.w3.weight"),
        ("down", "model.layers.{L}.feed_forward.w2.weight"),
    ],
};
