//! Reads what only one family, or a few, have.

use serde_json::Value;

use super::{Fields, step};
use crate::parts::{
    Activation, Attention, Block, Feed, GatedDelta, Indexer, Layer, Mamba2, Mixer, Mla, Position, QkNorm,
    Scales,
};
use crate::{Error, Family, ModelConfig, Norm, Result, RopeScaling};

/// What is read before the experts.
pub(super) fn read(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    match c.family {
        Family::Llama | Family::Qwen3 | Family::Mistral | Family::Qwen2 | Family::Aquila => {}
        Family::InternLm => {
            let bias = f.flag("bias")?.unwrap_or(true);
            (c.bias.qkv, c.bias.out) = (bias, bias);
        }
        Family::InternLm2 => {
            let bias = f.flag("bias")?.unwrap_or(false);
            (c.bias.qkv, c.bias.out) = (bias, bias);
        }
        Family::InternLm3 => {
            // The published class has fields of its own; transformers' takes Llama's, `attention_bias` for all four.
            let (qkv, rest) = (f.flag("qkv_bias")?, f.flag("bias")?);
            if qkv.or(rest).is_some() {
                (c.bias.qkv, c.bias.out) = (qkv.unwrap_or(false), rest.unwrap_or(false));
            }
            c.bias.mlp = rest.or(f.flag("mlp_bias")?).unwrap_or(false);
        }
        Family::SeedOss => c.bias.out = f.flag("attention_out_bias")?.unwrap_or(false),
        Family::Baichuan => baichuan(f, c)?,
        Family::Qwen1 => {
            c.ffn /= 2; // the file counts gate and up together
            c.bias.qkv = true;
        }
        Family::ChatGlm => chatglm(f, c)?,
        Family::Glm4 => c.block = Block::Sandwich,
        Family::Glm4Moe | Family::Ling => {
            let default = c.family == Family::Ling;
            let on = f.flag("use_qk_norm")?.unwrap_or(default);
            c.qk_norm = if on { QkNorm::PerHead } else { QkNorm::None };
            if c.family == Family::Ling {
                c.bias.qkv = f.flag("use_qkv_bias")?.unwrap_or(false);
                c.bias.out = f.flag("use_bias")?.unwrap_or(false);
            }
        }
        Family::Gemma => c.scales.embedding = (c.hidden as f64).sqrt(),
        Family::Gemma2 => gemma2(f, c)?,
        Family::MiniMaxM2 => minimax(f, c)?,
        Family::PhiMoe => c.bias.head = f.flag("lm_head_bias")?.unwrap_or(false),
        Family::MiniCpm => minicpm(f, c)?,
        Family::Granite => granite(f, c)?,
        Family::Olmo2 => c.block = Block::Post,
        Family::MiniCpm3 => {
            minicpm(f, c)?;
            latent(f, c)?;
        }
        Family::GlmMoeDsa | Family::DeepseekV32 => {
            latent(f, c)?;
            indexer(f, c)?;
        }
        Family::Plm | Family::DeepseekV2 | Family::DeepseekV3 | Family::KimiK2 => latent(f, c)?,
        Family::LongCat => longcat(f, c)?,
        Family::HunyuanMoe => hunyuan(f, c)?,
        Family::Bloom => {
            c.position = Position::Alibi;
            c.embedding_norm = true;
            if f.flag("apply_residual_connection_post_layernorm")?.unwrap_or(false) {
                return Err(f.unsupported("the residual after the norm is not supported"));
            }
        }
        Family::Gpt2 => {
            c.position = Position::Learned;
            if f.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false)
                || !f.flag("scale_attn_weights")?.unwrap_or(true)
            {
                return Err(f.unsupported(
                    "scores that are not scaled by the root of the head size are not supported",
                ));
            }
        }
        Family::GptOss => {
            c.scores.sinks = true;
            c.bias.mlp = true;
            let alpha = f.float("swiglu_alpha")?.unwrap_or(1.702);
            let limit = f.float("swiglu_limit")?.unwrap_or(7.0);
            c.activation = Activation::SwigluClamped { alpha, limit };
        }
        Family::Qwen3Next => qwen3_next(f, c)?,
        Family::Mamba2 => mamba2(f, c)?,
        Family::Mamba3 => super::mamba3::read(f, c)?,
        Family::Qwen2Moe => c.bias.qkv = f.flag("qkv_bias")?.unwrap_or(true),
        Family::Qwen3Moe
        | Family::Mixtral
        | Family::Phi3
        | Family::Glm
        | Family::HyV3
        | Family::Step3p5
        | Family::Megatron
        | Family::DeepseekV4 => {}
    }
    Ok(())
}

/// What looks at the experts, or at layers that the experts' rule made.
pub(super) fn after_experts(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    c.mtp = match c.family {
        // Their prediction layers are not those of the others, and are left out.
        Family::LongCat | Family::Step3p5 => 0,
        _ => f.size("num_nextn_predict_layers")?.unwrap_or(0),
    };
    if c.mtp > 64 {
        return Err(Error::Inconsistent(format!("prediction layers: expected at most 64, got {}", c.mtp)));
    }
    if c.family == Family::Step3p5 {
        step::limits(f, c)?;
    }
    if c.family == Family::GlmMoeDsa {
        let owners = index_owners(f, c.layers)?;
        if owners.iter().any(|own| !own) {
            if c.pattern.is_empty() {
                c.pattern = vec![Layer::default(); c.layers];
            }
            for (layer, own) in c.pattern.iter_mut().zip(owners) {
                layer.borrows_index = !own;
            }
        }
    }
    Ok(())
}

fn baichuan(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    // Only the 13B models have no max_position_embeddings, and only they have ALiBi.
    if f.get("max_position_embeddings").is_none() && f.get("model_max_length").is_some() {
        c.position = Position::Alibi;
    }
    // The class of the second generation is spelled with a small c.
    let classes = f.texts("architectures")?.unwrap_or_default();
    c.unit_head_rows = classes.contains(&"BaichuanForCausalLM") || c.vocab == 125_696;
    Ok(())
}

fn chatglm(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    c.groups = match f.flag("multi_query_attention")?.unwrap_or(false) {
        true => f.size("multi_query_group_num")?.unwrap_or(1),
        false => c.heads,
    };
    let all = f.flag("add_bias_linear")?.unwrap_or(false);
    c.bias.qkv = all || f.flag("add_qkv_bias")?.unwrap_or(false);
    (c.bias.out, c.bias.mlp) = (all, all);
    c.rope.base = 10_000.0 * f.float("rope_ratio")?.unwrap_or(1.0);
    if !f.flag("rmsnorm")?.unwrap_or(true) {
        c.norm = Norm::LayerNorm;
    }
    if !f.flag("post_layer_norm")?.unwrap_or(true) {
        return Err(f.unsupported("a model without a final norm is not supported"));
    }
    if f.flag("apply_residual_connection_post_layernorm")?.unwrap_or(false) {
        return Err(f.unsupported("the residual after the norm is not supported"));
    }
    Ok(())
}

fn gemma2(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    c.scales.embedding = (c.hidden as f64).sqrt();
    c.block = Block::Sandwich;
    let cap = |field| match f.map.contains_key(field) {
        true => f.float(field),
        false => Ok(Some(if field == "attn_logit_softcapping" { 50.0 } else { 30.0 })),
    };
    c.scores.softcap = cap("attn_logit_softcapping")?;
    c.logit_softcap = cap("final_logit_softcapping")?;
    let scalar = f.float("query_pre_attn_scalar")?.unwrap_or(256.0);
    c.scores.scale = (scalar != c.head_dim as f64).then(|| scalar.powf(-0.5));
    Ok(())
}

fn minimax(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    if let Some(rotary) = f.size("rotary_dim")? {
        c.rope.fraction = rotary as f64 / c.head_dim.max(1) as f64;
    }
    match f.text("qk_norm_type")?.unwrap_or("per_layer") {
        "per_layer" if f.flag("use_qk_norm")?.unwrap_or(true) => {}
        "per_head" => c.qk_norm = QkNorm::PerHead,
        _ => c.qk_norm = QkNorm::None,
    }
    Ok(())
}

fn minicpm(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let base = f.float("dim_model_base")?.unwrap_or(256.0);
    let depth = f.float("scale_depth")?.unwrap_or(1.4);
    c.scales = Scales {
        embedding: f.float("scale_emb")?.unwrap_or(12.0),
        residual: depth / (c.layers as f64).sqrt(),
        logits: base / c.hidden as f64,
    };
    Ok(())
}

fn granite(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let factor = |field| Ok::<_, Error>(f.float(field)?.unwrap_or(1.0));
    c.scales = Scales {
        embedding: factor("embedding_multiplier")?,
        residual: factor("residual_multiplier")?,
        logits: factor("logits_scaling")?.recip(),
    };
    let scale = factor("attention_multiplier")?;
    c.scores.scale = (scale != (c.head_dim as f64).powf(-0.5)).then_some(scale);
    Ok(())
}

fn latent(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let (nope, rope) = (f.need("qk_nope_head_dim")?, f.need("qk_rope_head_dim")?);
    let mla = Mla {
        q_rank: f.size("q_lora_rank")?,
        kv_rank: f.need("kv_lora_rank")?,
        nope,
        rope,
        value: f.need("v_head_dim")?,
        q_scale: 1.0,
        kv_scale: 1.0,
    };
    c.attention = Attention::Latent(mla);
    c.groups = c.heads;
    c.head_dim = nope.saturating_add(rope);
    c.rope.fraction = 1.0;
    Ok(())
}

fn indexer(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let heads = f.size("index_n_heads")?.unwrap_or(if c.family == Family::GlmMoeDsa { 32 } else { 64 });
    c.indexer = Some(Indexer {
        heads,
        head_dim: f.size("index_head_dim")?.unwrap_or(128),
        top_k: f.size("index_topk")?.unwrap_or(2048),
        interleaved: f.flag("indexer_rope_interleave")?.unwrap_or(c.family == Family::GlmMoeDsa),
    });
    Ok(())
}

/// Layers that have an indexer of their own.
fn index_owners(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = f.texts("indexer_types")? {
        return Ok(types.iter().map(|t| *t == "full").collect());
    }
    if let Some(Value::String(pattern)) = f.get("index_topk_pattern") {
        return Ok(pattern.chars().map(|c| c == 'F').collect());
    }
    let Some(freq) = f.size("index_topk_freq")?.filter(|&n| n > 0) else { return Ok(vec![true; layers]) };
    let skip = f.size("index_skip_topk_offset")?.unwrap_or(2);
    Ok((0..layers).map(|l| (l + 1).saturating_sub(skip) % freq == 0).collect())
}

fn longcat(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    latent(f, c)?;
    c.block = Block::Shortcut;
    let scaled = |field, rank: Option<usize>, hidden: usize| -> Result<f64> {
        let on = f.flag(field)?.unwrap_or(true);
        Ok(rank.filter(|_| on).map_or(1.0, |r| (hidden as f64 / r.max(1) as f64).sqrt()))
    };
    let hidden = c.hidden;
    if let Attention::Latent(mla) = &mut c.attention {
        mla.q_scale = scaled("mla_scale_q_lora", mla.q_rank, hidden)?;
        mla.kv_scale = scaled("mla_scale_kv_lora", Some(mla.kv_rank), hidden)?;
    }
    Ok(())
}

fn hunyuan(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let native = f.text("model_type")? == Some("hunyuan_v1_moe");
    if f.flag("use_qk_norm")?.unwrap_or(native) {
        c.qk_norm = QkNorm::PerHeadAfterRope;
    }
    // Cross-layer attention: of `cla_share_factor` layers only the first has keys and values.
    if f.flag("use_cla")?.unwrap_or(false) {
        let share = f.size("cla_share_factor")?.unwrap_or(2).max(1);
        let layer = |l: usize| Layer {
            mixer: if l.is_multiple_of(share) { Mixer::Attention } else { Mixer::SharedKv },
            ..Layer::default()
        };
        c.pattern = (0..c.layers).map(layer).collect();
    }
    if let RopeScaling::Dynamic { .. } = c.rope.scaling
        && let Some(s) = f.object("rope_scaling")?
        && let Some(alpha) = s.float("alpha")?
    {
        c.rope.scaling = RopeScaling::Ntk { alpha };
    }
    Ok(())
}

fn qwen3_next(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    c.scores.output_gate = true;
    let size = |field, default| Ok::<_, Error>(f.size(field)?.unwrap_or(default));
    c.gated_delta = Some(GatedDelta {
        key_heads: size("linear_num_key_heads", 16)?,
        value_heads: size("linear_num_value_heads", 32)?,
        key_dim: size("linear_key_head_dim", 128)?,
        value_dim: size("linear_value_head_dim", 128)?,
        conv: size("linear_conv_kernel_dim", 4)?,
    });
    let mixer = |full: bool| if full { Mixer::Attention } else { Mixer::GatedDelta };
    let interval = size("full_attention_interval", 4)?.max(1);
    let mixers: Vec<Mixer> = match f.texts("layer_types")? {
        Some(types) => types.iter().map(|t| mixer(*t == "full_attention")).collect(),
        None => (0..c.layers).map(|l| mixer((l + 1) % interval == 0)).collect(),
    };
    c.pattern = mixers.into_iter().map(|mixer| Layer { mixer, ..Layer::default() }).collect();
    Ok(())
}

fn mamba2(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let expand = f.size("expand")?.unwrap_or(2);
    let head_dim = f.size("head_dim")?.unwrap_or(64);
    let inner = expand.saturating_mul(c.hidden);
    let heads = f.size("num_heads")?.unwrap_or(inner / head_dim.max(1));
    if heads.checked_mul(head_dim) != Some(inner) {
        return Err(Error::Inconsistent(format!(
            "{heads} heads of {head_dim} are not {expand} times {}",
            c.hidden
        )));
    }
    let dt = |field, default| Ok::<_, Error>(f.float(field)?.unwrap_or(default));
    let limit = match f.get("time_step_limit") {
        None => (0.0, None),
        Some(pair) => match pair.as_array().map(Vec::as_slice) {
            Some([low, high]) if low.is_number() && high.is_number() => {
                (low.as_f64().unwrap_or(0.0), high.as_f64())
            }
            // Python writes an infinite limit as a bare word, which readers of JSON turn into text or null.
            Some([low, high]) if low.is_number() && (high.is_null() || high == "Infinity") => {
                (low.as_f64().unwrap_or(0.0), None)
            }
            _ => return Err(f.wrong("time_step_limit", "two numbers", pair)),
        },
    };
    c.mamba2 = Some(Mamba2 {
        heads,
        head_dim,
        groups: f.size("n_groups")?.unwrap_or(8),
        state: f.size("state_size")?.unwrap_or(128),
        conv: f.size("conv_kernel")?.unwrap_or(4),
        chunk: f.size("chunk_size")?.unwrap_or(256),
        bias: f.flag("use_bias")?.unwrap_or(false),
        conv_bias: f.flag("use_conv_bias")?.unwrap_or(true),
        dt_limit: limit,
        dt_init: (dt("time_step_min", 0.001)?, dt("time_step_max", 0.1)?),
        residual_f32: f.flag("residual_in_fp32")?.unwrap_or(true),
        norm_eps: c.norm_eps,
    });
    c.position = Position::None;
    (c.heads, c.groups, c.head_dim) = (0, 0, 0);
    let layer = Layer { mixer: Mixer::Mamba2, feed: Feed::None, ..Layer::default() };
    c.pattern = vec![layer; c.layers];
    Ok(())
}
