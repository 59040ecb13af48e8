//! The families, and what a family's Hugging Face class assumes where its configuration is silent.

use serde::{Deserialize, Serialize};

use crate::parts::{Activation, Norm, QkNorm};

macro_rules! families {
    ($($name:ident $doc:literal),+ $(,)?) => {
        /// Family of a model: decides Hugging Face's spelling of its configuration and tensors, not its mathematics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Family {
            $(#[doc = $doc] $name,)+
        }

        impl Family {
            /// Every family.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

families! {
    Llama "Llama 1 to 3 and what shares its classes.",
    Mistral "Mistral: a Llama, possibly with a sliding window.",
    Qwen2 "Qwen1.5, Qwen2, Qwen2.5: biases in q, k and v.",
    Qwen3 "Qwen3: q and k are normalised per head.",
    Aquila "Aquila: a Llama with its own class.",
    InternLm "InternLM: biases in all attention projections.",
    InternLm2 "InternLM2 and 2.5: packed `wqkv`.",
    InternLm3 "InternLM3: a Llama with optional biases.",
    SeedOss "Seed-OSS: biases in q, k and v.",
    Baichuan "Baichuan 1 and 2: packed `W_pack`; 13B with ALiBi.",
    Qwen1 "Qwen, the first generation.",
    Qwen2Moe "Qwen1.5-MoE and Qwen2-MoE: a gated shared expert.",
    Qwen3Moe "Qwen3-MoE.",
    Qwen3Next "Qwen3-Next: gated delta net layers, gated attention.",
    Mixtral "Mixtral.",
    MiniMaxM2 "MiniMax-M2: norms over whole projections.",
    ChatGlm "ChatGLM3 and GLM-4 in their own class.",
    Glm "GLM-4-9B in transformers' class.",
    Glm4 "GLM-4-0414 and GLM-Z1: sandwich norms.",
    Glm4Moe "GLM-4.5.",
    GlmMoeDsa "GLM-5: latent and sparse attention.",
    Ling "Ling 2.0 and Ring (BailingMoeV2).",
    HunyuanMoe "Hunyuan-Large.",
    HyV3 "Hunyuan 3.",
    Phi3 "Phi-3.5-mini: packed projections, longrope.",
    PhiMoe "Phi-3.5-MoE: LayerNorm, biases, sparsemixer.",
    Gemma "Gemma.",
    Gemma2 "Gemma 2: sandwich norms, softcaps, alternating windows.",
    MiniCpm "MiniCPM, dense and MoE: scaled embedding, residual and logits.",
    MiniCpm3 "MiniCPM3: latent attention.",
    Granite "Granite: scaled embedding, residual, scores and logits.",
    Olmo2 "OLMo 2: norms behind the sublayers, and over whole projections.",
    Plm "PLM: latent attention, squared ReLU.",
    DeepseekV2 "DeepSeek-V2, V2-Lite, V2.5.",
    DeepseekV3 "DeepSeek-V3 and R1.",
    KimiK2 "Kimi-K2: DeepSeek-V3 with other sizes.",
    DeepseekV32 "DeepSeek-V3.2: sparse attention.",
    DeepseekV4 "DeepSeek-V4: hyper-connections, attention to pooled entries, experts by a table of tokens.",
    Bloom "Bloom.",
    Gpt2 "GPT-2 and GPT-3.",
    GptOss "gpt-oss: sinks, biases everywhere.",
    LongCat "LongCat-Flash: shortcut blocks, zero experts.",
    Step3p5 "Step-3.5: other heads and rotation in windowed layers, a gate per head, limited activations.",
    Mamba2 "Mamba2.",
    Mamba3 "Mamba3: one kind of layer, without norms before the mixers.",
    Megatron "Only described by Megatron's arguments: no Hugging Face class is known.",
}

/// How `attention_bias` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BiasRule {
    /// No biases in attention.
    Never,
    /// q, k and v always.
    Qkv,
    /// All projections always.
    All,
    /// The field decides on all projections; the value stands for a missing field.
    Field(bool),
    /// The field decides on q, k and v.
    QkvField(bool),
}

/// Where the sliding window comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowRule {
    /// There is none.
    Never,
    /// `sliding_window`, in every layer; the number stands for a missing field.
    Always(Option<usize>),
    /// `sliding_window`, if `use_sliding_window`, from layer `max_window_layers` on.
    Switched(usize),
    /// `sliding_window`, in layers of even number unless `layer_types` says otherwise.
    Alternating(usize),
    /// `sliding_window`, in the layers that `layer_types` names.
    Listed,
}

/// What a family's class assumes where the file is silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) family: Family,
    /// Names in `model_type`; the first is written.
    pub(crate) types: &'static [&'static str],
    pub(crate) class: &'static str,
    pub(crate) bias: BiasRule,
    pub(crate) qk_norm: QkNorm,
    pub(crate) norm: Norm,
    pub(crate) activation: Activation,
    pub(crate) head_dim: Option<usize>,
    pub(crate) max_positions: usize,
    pub(crate) window: WindowRule,
    pub(crate) eps: f64,
    pub(crate) rope_base: f64,
    /// Share of a head that is rotated, unless `partial_rotary_factor` says otherwise.
    pub(crate) fraction: f64,
    pub(crate) interleaved: bool,
    pub(crate) tied: bool,
}

const LLAMA: Row = Row {
    family: Family::Llama,
    types: &["llama"],
    class: "LlamaForCausalLM",
    bias: BiasRule::Field(false),
    qk_norm: QkNorm::None,
    norm: Norm::Rms,
    activation: Activation::Swiglu,
    head_dim: None,
    max_positions: 2048,
    window: WindowRule::Never,
    eps: 1e-6,
    rope_base: 10_000.0,
    fraction: 1.0,
    interleaved: false,
    tied: false,
};

const fn like(base: Row, family: Family, types: &'static [&'static str], class: &'static str) -> Row {
    Row { family, types, class, ..base }
}

const QWEN2: Row = Row {
    bias: BiasRule::Qkv,
    max_positions: 32_768,
    window: WindowRule::Switched(4096),
    ..like(LLAMA, Family::Qwen2, &["qwen2"], "Qwen2ForCausalLM")
};

const QWEN3: Row = Row {
    bias: BiasRule::Field(false),
    qk_norm: QkNorm::PerHead,
    head_dim: Some(128),
    ..like(QWEN2, Family::Qwen3, &["qwen3"], "Qwen3ForCausalLM")
};

const DEEPSEEK: Row = Row { interleaved: true, ..LLAMA };

const GLM: Row = Row {
    bias: BiasRule::QkvField(true),
    max_positions: 131_072,
    fraction: 0.5,
    interleaved: true,
    eps: 1.562_5e-7,
    head_dim: Some(128),
    ..like(LLAMA, Family::Glm, &["glm"], "GlmForCausalLM")
};

const GEMMA: Row = Row {
    norm: Norm::RmsUnitOffset,
    activation: Activation::GegluTanh,
    head_dim: Some(256),
    max_positions: 8192,
    tied: true,
    ..like(LLAMA, Family::Gemma, &["gemma"], "GemmaForCausalLM")
};

const BLOOM: Row = Row {
    bias: BiasRule::All,
    norm: Norm::LayerNorm,
    activation: Activation::GeluTanh,
    eps: 1e-5,
    tied: true,
    ..like(LLAMA, Family::Bloom, &["bloom"], "BloomForCausalLM")
};

pub(crate) const ROWS: &[Row] = &[
    LLAMA,
    Row {
        bias: BiasRule::QkvField(false),
        max_positions: 131_072,
        window: WindowRule::Always(Some(4096)),
        ..like(LLAMA, Family::Mistral, &["mistral"], "MistralForCausalLM")
    },
    QWEN2,
    QWEN3,
    Row { bias: BiasRule::Never, ..like(LLAMA, Family::Aquila, &["aquila"], "AquilaForCausalLM") },
    like(LLAMA, Family::InternLm, &["internlm"], "InternLMForCausalLM"),
    like(LLAMA, Family::InternLm2, &["internlm2"], "InternLM2ForCausalLM"),
    Row { max_positions: 32_768, ..like(LLAMA, Family::InternLm3, &["internlm3"], "InternLM3ForCausalLM") },
    Row {
        bias: BiasRule::QkvField(true),
        head_dim: Some(128),
        max_positions: 524_288,
        ..like(LLAMA, Family::SeedOss, &["seed_oss"], "SeedOssForCausalLM")
    },
    Row {
        bias: BiasRule::Never,
        max_positions: 4096,
        ..like(LLAMA, Family::Baichuan, &["baichuan"], "BaichuanForCausalLM")
    },
    Row { max_positions: 8192, ..like(QWEN2, Family::Qwen1, &["qwen"], "QWenLMHeadModel") },
    like(QWEN2, Family::Qwen2Moe, &["qwen2_moe"], "Qwen2MoeForCausalLM"),
    Row { head_dim: None, ..like(QWEN3, Family::Qwen3Moe, &["qwen3_moe"], "Qwen3MoeForCausalLM") },
    Row {
        norm: Norm::RmsUnitOffset,
        fraction: 0.25,
        head_dim: Some(256),
        window: WindowRule::Never,
        ..like(QWEN3, Family::Qwen3Next, &["qwen3_next"], "Qwen3NextForCausalLM")
    },
    Row {
        bias: BiasRule::Never,
        max_positions: 131_072,
        window: WindowRule::Always(None),
        eps: 1e-5,
        rope_base: 1e6,
        ..like(LLAMA, Family::Mixtral, &["mixtral"], "MixtralForCausalLM")
    },
    Row {
        bias: BiasRule::Never,
        qk_norm: QkNorm::WholeProjection,
        head_dim: Some(128),
        max_positions: 196_608,
        rope_base: 5e6,
        ..like(LLAMA, Family::MiniMaxM2, &["minimax_m2"], "MiniMaxM2ForCausalLM")
    },
    Row { eps: 1e-5, ..like(GLM, Family::ChatGlm, &["chatglm"], "ChatGLMModel") },
    GLM,
    Row { eps: 1e-5, ..like(GLM, Family::Glm4, &["glm4"], "Glm4ForCausalLM") },
    Row {
        bias: BiasRule::QkvField(false),
        interleaved: false,
        head_dim: None,
        eps: 1e-5,
        ..like(GLM, Family::Glm4Moe, &["glm4_moe"], "Glm4MoeForCausalLM")
    },
    Row { eps: 1e-5, ..like(DEEPSEEK, Family::GlmMoeDsa, &["glm_moe_dsa"], "GlmMoeDsaForCausalLM") },
    Row {
        bias: BiasRule::Never,
        fraction: 0.5,
        max_positions: 16_384,
        ..like(LLAMA, Family::Ling, &["bailing_moe", "bailing_moe_v2"], "BailingMoeV2ForCausalLM")
    },
    Row {
        eps: 1e-5,
        ..like(LLAMA, Family::HunyuanMoe, &["hunyuan", "hunyuan_v1_moe"], "HunYuanMoEV1ForCausalLM")
    },
    Row { qk_norm: QkNorm::PerHead, eps: 1e-5, ..like(LLAMA, Family::HyV3, &["hy_v3"], "HYV3ForCausalLM") },
    Row {
        bias: BiasRule::Never,
        max_positions: 4096,
        window: WindowRule::Always(None),
        eps: 1e-5,
        ..like(LLAMA, Family::Phi3, &["phi3"], "Phi3ForCausalLM")
    },
    Row {
        norm: Norm::LayerNorm,
        max_positions: 131_072,
        window: WindowRule::Always(None),
        eps: 1e-5,
        rope_base: 1e6,
        ..like(LLAMA, Family::PhiMoe, &["phimoe"], "PhimoeForCausalLM")
    },
    GEMMA,
    Row {
        window: WindowRule::Alternating(4096),
        ..like(GEMMA, Family::Gemma2, &["gemma2"], "Gemma2ForCausalLM")
    },
    Row { tied: true, ..like(LLAMA, Family::MiniCpm, &["minicpm"], "MiniCPMForCausalLM") },
    Row {
        tied: true,
        max_positions: 32_768,
        ..like(LLAMA, Family::MiniCpm3, &["minicpm3"], "MiniCPM3ForCausalLM")
    },
    like(LLAMA, Family::Granite, &["granite"], "GraniteForCausalLM"),
    Row {
        qk_norm: QkNorm::WholeProjection,
        eps: 1e-5,
        ..like(LLAMA, Family::Olmo2, &["olmo2"], "Olmo2ForCausalLM")
    },
    Row {
        tied: true,
        activation: Activation::ReluSquared,
        ..like(DEEPSEEK, Family::Plm, &["plm"], "PLMForCausalLM")
    },
    like(DEEPSEEK, Family::DeepseekV2, &["deepseek_v2"], "DeepseekV2ForCausalLM"),
    Row {
        max_positions: 4096,
        ..like(DEEPSEEK, Family::DeepseekV3, &["deepseek_v3"], "DeepseekV3ForCausalLM")
    },
    Row { max_positions: 131_072, ..like(DEEPSEEK, Family::KimiK2, &["kimi_k2"], "DeepseekV3ForCausalLM") },
    like(DEEPSEEK, Family::DeepseekV32, &["deepseek_v32"], "DeepseekV32ForCausalLM"),
    Row {
        bias: BiasRule::Never,
        head_dim: Some(512),
        max_positions: 1_048_576,
        window: WindowRule::Always(Some(128)),
        fraction: 0.125,
        activation: Activation::SwigluBounded { limit: 10.0 },
        ..like(DEEPSEEK, Family::DeepseekV4, &["deepseek_v4"], "DeepseekV4ForCausalLM")
    },
    BLOOM,
    Row { max_positions: 1024, ..like(BLOOM, Family::Gpt2, &["gpt2"], "GPT2LMHeadModel") },
    Row {
        bias: BiasRule::Field(true),
        head_dim: Some(64),
        max_positions: 131_072,
        window: WindowRule::Alternating(128),
        eps: 1e-5,
        rope_base: 150_000.0,
        activation: Activation::SwigluClamped { alpha: 1.702, limit: 7.0 },
        ..like(LLAMA, Family::GptOss, &["gpt_oss"], "GptOssForCausalLM")
    },
    Row {
        eps: 1e-5,
        max_positions: 131_072,
        rope_base: 1e7,
        ..like(DEEPSEEK, Family::LongCat, &["longcat_flash"], "LongcatFlashForCausalLM")
    },
    Row {
        bias: BiasRule::Never,
        qk_norm: QkNorm::PerHead,
        norm: Norm::RmsUnitOffset,
        head_dim: Some(128),
        max_positions: 128_000,
        window: WindowRule::Listed,
        eps: 1e-5,
        ..like(LLAMA, Family::Step3p5, &["step3p5"], "Step3p5ForCausalLM")
    },
    Row { eps: 1e-5, ..like(LLAMA, Family::Mamba2, &["mamba2"], "Mamba2ForCausalLM") },
    Row { eps: 1e-5, ..like(LLAMA, Family::Mamba3, &["mamba3"], "Mamba3ForCausalLM") },
];

impl Family {
    pub(crate) fn row(self) -> Option<&'static Row> {
        ROWS.iter().find(|r| r.family == self)
    }

    /// `model_type` of the family's `config.json`; `None` for one without a Hugging Face class.
    pub fn model_type(self) -> Option<&'static str> {
        self.row().map(|r| r.types[0])
    }
}
