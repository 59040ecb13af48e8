//! The classes, by what their models are made of.

mod deepseek_v4;
mod dense;
mod experts;
mod first_generation;
mod latent;
mod mamba2;
mod mamba3;
mod scaled;
mod step3p5;

use super::class::Class;

/// Every class. Of those that can say a model that has none, the first is taken; of those of one family, too.
pub(crate) const CLASSES: &[&Class] = &[
    &dense::LLAMA,
    &dense::QWEN2,
    &dense::QWEN3,
    &dense::MISTRAL,
    &dense::GLM,
    &dense::GLM4,
    &scaled::GEMMA,
    &scaled::GEMMA2,
    &scaled::MINICPM,
    &scaled::GRANITE,
    &dense::OLMO2,
    &dense::PHI3,
    &dense::SEED_OSS,
    &dense::AQUILA,
    &dense::INTERNLM,
    &dense::INTERNLM2,
    &dense::INTERNLM3,
    &first_generation::BAICHUAN2,
    &first_generation::BAICHUAN,
    &first_generation::QWEN1,
    &first_generation::CHATGLM,
    &first_generation::BLOOM,
    &first_generation::GPT2,
    &experts::MIXTRAL,
    &experts::QWEN3_MOE,
    &experts::QWEN2_MOE,
    &experts::GLM4_MOE,
    &experts::PHI_MOE,
    &experts::GPT_OSS,
    &experts::MINIMAX_M2,
    &experts::LING,
    &experts::HY_V3,
    &experts::HUNYUAN_V1,
    &experts::HUNYUAN_LARGE,
    &experts::QWEN3_NEXT,
    &latent::MINICPM3,
    &latent::PLM,
    &latent::DEEPSEEK_V2,
    &latent::DEEPSEEK_V3,
    &latent::KIMI_K2,
    &latent::DEEPSEEK_V32,
    &latent::GLM_MOE_DSA,
    &latent::LONGCAT,
    &deepseek_v4::DEEPSEEK_V4,
    &step3p5::STEP3P5,
    &mamba2::MAMBA2,
    &mamba3::MAMBA3,
];
