//! Classes of the first generation, which have their own names for fields that later ones share.

use serde_json::json;

use super::dense;
use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{
    ACTIVATION, ACTIVATIONS, DECODER, FFN, NAMES, NO_DROPOUT, Names, RMS_OR_LAYER_NORM, WHOLE_HEADS,
    WINDOW_SWITCHED, head_dim, heads, sizes,
};
use crate::hf::rope::{ROPE, ROPE_READ};
use crate::hf::tensors::{LLAMA_TENSORS, Tensors};
use crate::sizes::{Activation, Biases, Position};
use crate::{Family, ModelConfig, Norm};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[BAICHUAN2, BAICHUAN, QWEN1, CHATGLM, BLOOM, GPT2];

/// The models of 13 billion parameters call the longest position otherwise, and have no rotation.
const BAICHUAN_POSITION: Field = Field::rule(
    |f, c| {
        if f.get("max_position_embeddings").is_none() && f.get("model_max_length").is_some() {
            c.position = Position::Alibi;
        }
        Ok(())
    },
    |c, w| {
        if c.position == Position::Alibi {
            w.out.shift_remove("max_position_embeddings");
            w.set("model_max_length", json!(c.max_positions));
        }
    },
);

/// The second generation normalises the rows of its output layer. Its class is spelled with a small c; a file that names
/// none is known by its vocabulary.
const BAICHUAN_HEAD: Field = Field::reading(|f, c| {
    let classes = f.texts("architectures")?.unwrap_or_default();
    c.unit_head_rows = classes.contains(&BAICHUAN2.name) || c.vocab == 125_696;
    Ok(())
});

/// Baichuan 1 and 2: packed `W_pack`; 13B with ALiBi.
const BAICHUAN: Class = class!(
    Family::new("Baichuan", &BAICHUAN_TENSORS),
    ["baichuan"],
    "BaiChuanForCausalLM",
    |c| {
        c.max_positions = 4096;
    },
    &[DECODER, ROPE, &[ACTIVATION, BAICHUAN_POSITION, BAICHUAN_HEAD]],
    |c| c.unit_head_rows.then_some("normalised rows of the output layer")
);

const BAICHUAN2: Class = Class {
    name: "BaichuanForCausalLM",
    lacks: |c| (!c.unit_head_rows).then_some("rows of the output layer as they are"),
    ..BAICHUAN
};

/// Behind the length that it was trained for, the class stretches frequencies and scales queries, unless a file says that it
/// does not: that length is the model's.
///
/// # Source
/// `QWenModel.forward` and `QWenAttention.forward` of `modeling_qwen.py`, published with the weights.
const TRAINED_LENGTH: Field = Field::reading(|f, c| {
    let mut stretched = false;
    for field in ["use_dynamic_ntk", "use_logn_attn"] {
        stretched |= f.on_unless_said(field)?;
    }
    let trained = f.size("seq_length")?.unwrap_or(8192);
    if stretched && trained > 0 {
        c.max_positions = c.max_positions.min(trained);
    }
    Ok(())
});

/// Qwen, the first generation.
const QWEN1: Class = class!(
    Family::new("Qwen1", &QWEN1_TENSORS),
    ["qwen"],
    "QWenLMHeadModel",
    |c| {
        dense::qwen2(c);
        c.groups = 0;
        c.max_positions = 8192;
    },
    &[
        &sizes(Names { eps: "layer_norm_epsilon", positions: "seq_length", ..NAMES }),
        &[
            TRAINED_LENGTH,
            heads(NAMES)[0],
            // The file counts gate and up together.
            Field::size_as("intermediate_size", |c| Some(2 * c.ffn), |c, n| c.ffn = n / 2).or(FFN).needed(),
            crate::hf::common::GROUPS.read_only(),
            head_dim("kv_channels"),
            NO_DROPOUT,
            ACTIVATION,
            ROPE_READ,
            Field::float("rotary_emb_base", |c| Some(&mut c.rope.base)),
            Field::float("rotary_pct", |c| Some(&mut c.rope.fraction)),
            WINDOW_SWITCHED,
        ],
    ],
);

/// ChatGLM3 and GLM-4 in their own class.
const CHATGLM: Class = class!(
    Family::new("ChatGlm", &CHATGLM_TENSORS),
    ["chatglm"],
    "ChatGLMModel",
    |c| {
        dense::glm(c);
        c.norm_eps = 1e-5;
        c.bias = Biases::default();
    },
    &[
        &sizes(CHATGLM_NAMES),
        &heads(CHATGLM_NAMES),
        &[
            Field::told("padded_vocab_size", |c| json!(c.vocab)),
            head_dim("kv_channels"),
            Field::rule(
                |f, c| {
                    c.groups = if f.flag("multi_query_attention")?.unwrap_or(false) {
                        f.size("multi_query_group_num")?.unwrap_or(1)
                    } else {
                        c.heads
                    };
                    Ok(())
                },
                |c, w| {
                    w.set("multi_query_attention", json!(c.groups != c.heads));
                    w.set("multi_query_group_num", json!(c.groups));
                },
            ),
            Field::flag_as(
                "add_bias_linear",
                |c| Some(c.bias.out),
                |c, all| {
                    (c.bias.qkv, c.bias.out, c.bias.mlp) = (all, all, all);
                },
            ),
            Field::flag_as("add_qkv_bias", |c| Some(c.bias.qkv), |c, on| c.bias.qkv |= on),
            ROPE_READ,
            // The base is a multiple of the usual one, regardless of other fields.
            Field::float_as(
                "rope_ratio",
                |c| Some(c.rope.base / 10_000.0),
                |c, x| c.rope.base = 10_000.0 * x,
            )
            .else_by(|c| c.rope.base = 10_000.0),
            ACTIVATION.read_only(),
            RMS_OR_LAYER_NORM,
            Field::only("post_layer_norm", true, "a model without a final norm"),
            Field::only("apply_residual_connection_post_layernorm", false, RESIDUAL_AFTER),
            Field::told("original_rope", |_| json!(true)),
        ],
    ],
);

const CHATGLM_NAMES: Names = Names {
    layers: "num_layers",
    ffn: "ffn_hidden_size",
    eps: "layernorm_epsilon",
    positions: "seq_length",
    ..NAMES
};

const RESIDUAL_AFTER: &str = "the residual after the norm";

fn bloom(c: &mut ModelConfig) {
    c.bias = Biases { qkv: true, out: true, mlp: true, head: false };
    c.norm = Norm::LayerNorm;
    c.activation = Activation::GeluTanh;
    c.norm_eps = 1e-5;
    c.tied = true;
    c.position = Position::Alibi;
    c.embedding_norm = true;
}

const BLOOM_NAMES: Names = Names {
    layers: "n_layer",
    heads: "n_head",
    ffn: "n_inner",
    eps: "layer_norm_epsilon",
    positions: "seq_length",
    ..NAMES
};

/// Width of dense layers, where nothing is said four times the model's.
const FOUR_WIDE: Field =
    Field::size("n_inner", |c| Some(&mut c.ffn)).or(FFN).else_by(|c| c.ffn = c.hidden.saturating_mul(4));

/// Bloom.
const BLOOM: Class = class!(
    Family::new("Bloom", &BLOOM_TENSORS),
    ["bloom"],
    "BloomForCausalLM",
    bloom,
    &[
        &sizes(BLOOM_NAMES),
        &[heads(BLOOM_NAMES)[0], FOUR_WIDE],
        WHOLE_HEADS,
        &[
            ACTIVATION.read_only(),
            Field::only("apply_residual_connection_post_layernorm", false, RESIDUAL_AFTER),
        ],
    ],
);

const GPT2_NAMES: Names = Names { hidden: "n_embd", positions: "n_positions", ..BLOOM_NAMES };

/// GPT-2 and GPT-3.
const GPT2: Class = class!(
    Family::new("Gpt2", &GPT2_TENSORS),
    ["gpt2"],
    "GPT2LMHeadModel",
    |c| {
        bloom(c);
        c.max_positions = 1024;
        c.position = Position::Learned;
        c.embedding_norm = false;
    },
    &[
        &sizes(GPT2_NAMES),
        &[heads(GPT2_NAMES)[0], FOUR_WIDE],
        WHOLE_HEADS,
        &[
            Field::word("activation_function", gpt2_activation, take_gpt2_activation, |_| GPT2_ACTIVATIONS)
                .or(ACTIVATIONS),
            Field::only("scale_attn_by_inverse_layer_idx", false, UNSCALED),
            Field::only("scale_attn_weights", true, UNSCALED),
        ],
    ],
);

const UNSCALED: &str = "attention whose scores are not scaled by the root of the head size alone";

const GPT2_ACTIVATIONS: &[&str] = &["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"];

fn gpt2_activation(c: &ModelConfig) -> Option<&'static str> {
    Some(if c.activation == Activation::GeluErf { "gelu" } else { "gelu_new" })
}

fn take_gpt2_activation(c: &mut ModelConfig, word: &str) -> bool {
    if word == "gelu" {
        c.activation = Activation::GeluErf;
    }
    GPT2_ACTIVATIONS.contains(&word)
}

const BAICHUAN_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[("qkv_cat", "model.layers.{L}.self_attn.W_pack.weight")],
};

const QWEN1_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "transformer.wte.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.ln_1.weight"),
        ("norm2", "transformer.h.{L}.ln_2.weight"),
        ("qkv_cat", "transformer.h.{L}.attn.c_attn.weight"),
        ("o", "transformer.h.{L}.attn.c_proj.weight"),
        ("up", "transformer.h.{L}.mlp.w1.weight"),
        ("gate", "transformer.h.{L}.mlp.w2.weight"),
        ("down", "transformer.h.{L}.mlp.c_proj.weight"),
    ],
};

/// GPT-2 keeps linear layers as `[in, out]`: slots that end in `.T`.
const GPT2_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "transformer.wte.weight"),
        ("positions", "transformer.wpe.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.ln_1.weight"),
        ("norm2", "transformer.h.{L}.ln_2.weight"),
        ("qkv_cat.T", "transformer.h.{L}.attn.c_attn.weight"),
        ("o.T", "transformer.h.{L}.attn.c_proj.weight"),
        ("fc1.T", "transformer.h.{L}.mlp.c_fc.weight"),
        ("down.T", "transformer.h.{L}.mlp.c_proj.weight"),
    ],
};

const BLOOM_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "transformer.word_embeddings.weight"),
        ("embed_norm", "transformer.word_embeddings_layernorm.weight"),
        ("head", "lm_head.weight"),
        ("norm", "transformer.ln_f.weight"),
        ("norm1", "transformer.h.{L}.input_layernorm.weight"),
        ("norm2", "transformer.h.{L}.post_attention_layernorm.weight"),
        ("qkv_grouped", "transformer.h.{L}.self_attention.query_key_value.weight"),
        ("o", "transformer.h.{L}.self_attention.dense.weight"),
        ("fc1", "transformer.h.{L}.mlp.dense_h_to_4h.weight"),
        ("down", "transformer.h.{L}.mlp.dense_4h_to_h.weight"),
    ],
};

const CHATGLM_TENSORS: Tensors = Tensors {
    parent: None,
    rows: &[
        ("embed", "transformer.embedding.word_embeddings.weight"),
        ("head", "transformer.output_layer.weight"),
        ("norm", "transformer.encoder.final_layernorm.weight"),
        ("norm1", "transformer.encoder.layers.{L}.input_layernorm.weight"),
        ("norm2", "transformer.encoder.layers.{L}.post_attention_layernorm.weight"),
        ("qkv_cat", "transformer.encoder.layers.{L}.self_attention.query_key_value.weight"),
        ("o", "transformer.encoder.layers.{L}.self_attention.dense.weight"),
        ("gate_up", "transformer.encoder.layers.{L}.mlp.dense_h_to_4h.weight"),
        ("down", "transformer.encoder.layers.{L}.mlp.dense_4h_to_h.weight"),
    ],
};
