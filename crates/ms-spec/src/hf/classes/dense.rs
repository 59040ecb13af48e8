//! Dense decoders as Llama has them, and what differs from it.

use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, BIAS, DECODER, MLP_BIAS, QKV_BIAS, WINDOW, WINDOW_SWITCHED};
use crate::hf::rope::{PARTIAL_ROPE, PHI_ROPE, ROPE};
use crate::sizes::{Biases, Block};
use crate::{Family, ModelConfig, QkNorm, Rope};

pub(super) const LLAMA: Class = class!(
    Family::Llama,
    ["llama"],
    "LlamaForCausalLM",
    |_| {},
    &[DECODER, ROPE, &[ACTIVATION, BIAS, MLP_BIAS]],
);

pub(super) const AQUILA: Class =
    class!(Family::Aquila, ["aquila"], "AquilaForCausalLM", |_| {}, &[DECODER, ROPE, &[ACTIVATION]]);

pub(super) fn qwen2(c: &mut ModelConfig) {
    c.bias = Biases { qkv: true, ..Biases::default() };
    c.max_positions = 32_768;
    c.sliding_window = Some(4096);
}

pub(super) const QWEN2: Class = class!(
    Family::Qwen2,
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

pub(super) const QWEN3: Class = class!(
    Family::Qwen3,
    ["qwen3"],
    "Qwen3ForCausalLM",
    qwen3,
    &[DECODER, ROPE, &[ACTIVATION, BIAS, WINDOW_SWITCHED]],
);

pub(super) const MISTRAL: Class = class!(
    Family::Mistral,
    ["mistral"],
    "MistralForCausalLM",
    |c| {
        c.max_positions = 131_072;
        c.sliding_window = Some(4096);
    },
    &[DECODER, ROPE, &[ACTIVATION, QKV_BIAS, WINDOW]],
);

const ONE_BIAS: Field = Field::flag_as(
    "bias",
    |c| Some(c.bias.qkv),
    |c, on| {
        (c.bias.qkv, c.bias.out) = (on, on);
    },
);

pub(super) const INTERNLM: Class = class!(
    Family::InternLm,
    ["internlm"],
    "InternLMForCausalLM",
    |c| {
        c.bias = Biases { qkv: true, out: true, ..Biases::default() };
    },
    &[DECODER, ROPE, &[ACTIVATION, ONE_BIAS]],
);

pub(super) const INTERNLM2: Class = class!(
    Family::InternLm2,
    ["internlm2"],
    "InternLM2ForCausalLM",
    |_| {},
    &[DECODER, ROPE, &[ACTIVATION, ONE_BIAS]],
);

/// The published class has fields of its own, `qkv_bias` and `bias`; transformers' takes Llama's, which are read first.
pub(super) const INTERNLM3: Class = class!(
    Family::InternLm3,
    ["internlm3"],
    "InternLM3ForCausalLM",
    |c| {
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

pub(super) const SEED_OSS: Class = class!(
    Family::SeedOss,
    ["seed_oss"],
    "SeedOssForCausalLM",
    |c| {
        c.bias = Biases { qkv: true, ..Biases::default() };
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
    c.max_positions = 131_072;
    c.rope = Rope { fraction: 0.5, interleaved: true, ..Rope::plain(10_000.0) };
    c.norm_eps = 1.562_5e-7;
    c.head_dim = 128;
}

pub(super) const GLM: Class =
    class!(Family::Glm, ["glm"], "GlmForCausalLM", glm, &[DECODER, PARTIAL_ROPE, &[ACTIVATION, QKV_BIAS]]);

pub(super) const GLM4: Class = class!(
    Family::Glm4,
    ["glm4"],
    "Glm4ForCausalLM",
    |c| {
        glm(c);
        c.block = Block::Sandwich;
    },
    GLM.fields,
);

pub(super) const PHI3: Class = class!(
    Family::Phi3,
    ["phi3"],
    "Phi3ForCausalLM",
    |c| {
        c.max_positions = 4096;
        c.norm_eps = 1e-5;
    },
    &[DECODER, PHI_ROPE, &[ACTIVATION, WINDOW]],
);

pub(super) const OLMO2: Class = class!(
    Family::Olmo2,
    ["olmo2"],
    "Olmo2ForCausalLM",
    |c| {
        c.qk_norm = QkNorm::WholeProjection;
        c.norm_eps = 1e-5;
        c.block = Block::Post;
    },
    &[DECODER, ROPE, &[ACTIVATION, BIAS]],
);
