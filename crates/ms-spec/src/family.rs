//! The families. What their Hugging Face classes say stands in `hf::classes`, and which a model is of in `hf`.

use serde::{Deserialize, Serialize};

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
    Olmo2 "`OLMo` 2: norms behind the sublayers, and over whole projections.",
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
