//! Writes `config.json`, in the words of the family's class.

use ms_core::DType;
use serde_json::{Map, Value, json};

use super::{Dialect, deepseek_v4, rope, step};
use crate::family::{BiasRule, Row, WindowRule};
use crate::parts::{Attention, Feed, GroupLimit, Mixer, Mla, Moe, Position, Score};
use crate::{Activation, Error, Family, ModelConfig, QkNorm, Result, RopeScaling};

/// Writes a configuration that `transformers` reads.
///
/// # Errors
/// [`Error::Unsupported`] for a model of [`Family::Megatron`], which no Hugging Face class describes.
pub fn write_config(config: &ModelConfig, dialect: Dialect) -> Result<Value> {
    let c = config;
    let Some(row) = c.family.row() else {
        return Err(Error::Unsupported {
            source_name: super::SOURCE,
            what: "no Hugging Face class describes this model\nhint: pass a folder with the family's config.json"
                .to_owned(),
        });
    };
    if c.family == Family::Step3p5 {
        step::check(c)?;
    }
    if c.family == Family::DeepseekV4 {
        deepseek_v4::check(c)?;
    }
    let mut w = Writer { out: Map::new() };
    let class = class(c, row);
    match c.reward {
        false => w.set("architectures", json!([class])),
        true => {
            w.set("architectures", json!([class.replace("ForCausalLM", "ForSequenceClassification")]));
            w.set("id2label", json!({"0": "LABEL_0"}));
            w.set("label2id", json!({"LABEL_0": 0}));
        }
    }
    w.set("model_type", json!(model_type(c, row)));
    w.set("vocab_size", json!(c.vocab));
    sizes(&mut w, c);
    w.set("initializer_range", json!(c.init_std));
    w.set("tie_word_embeddings", json!(c.tied));
    if c.family == Family::Step3p5 {
        w.set("head_dim", json!(c.head_dim));
        step::write(&mut w, c);
    } else if c.family == Family::DeepseekV4 {
        deepseek_v4::write(&mut w, c, dialect);
    } else {
        if c.heads > 0 {
            attention(&mut w, c, row);
            positions(&mut w, c, row, dialect);
        }
        if let Some(moe) = &c.moe {
            experts(&mut w, c, moe);
        }
        special(&mut w, c);
    }
    if c.mtp > 0 {
        w.set("num_nextn_predict_layers", json!(c.mtp));
    }
    if let Some(dtype) = c.dtype {
        let name = match dtype {
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            DType::F64 => "float64",
            _ => "float32",
        };
        w.set(if dialect == Dialect::V4 { "torch_dtype" } else { "dtype" }, json!(name));
    }
    if let Some(bos) = c.bos {
        w.set("bos_token_id", json!(bos));
    }
    match c.eos[..] {
        [] => {}
        [one] => w.set("eos_token_id", json!(one)),
        _ => w.set("eos_token_id", json!(c.eos)),
    }
    w.set("use_cache", json!(true));
    Ok(Value::Object(w.out))
}

pub(super) struct Writer {
    out: Map<String, Value>,
}

impl Writer {
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.out.insert(key.to_owned(), value);
    }
}

/// Whether transformers' class of Hunyuan computes this model: it knows neither shared keys nor a plain top-1.
fn native_hunyuan(c: &ModelConfig) -> bool {
    let weights = c.moe.as_ref().is_some_and(|m| m.router.renormalise && m.shared.is_some());
    weights && c.qk_norm == QkNorm::PerHeadAfterRope && !c.has(Mixer::SharedKv)
}

fn model_type<'a>(c: &ModelConfig, row: &Row) -> &'a str {
    match c.family {
        Family::HunyuanMoe if native_hunyuan(c) => "hunyuan_v1_moe",
        _ => row.types[0],
    }
}

fn class<'a>(c: &ModelConfig, row: &Row) -> &'a str {
    match (c.family, c.unit_head_rows) {
        (Family::Baichuan, false) => "BaiChuanForCausalLM",
        (Family::HunyuanMoe, _) if !native_hunyuan(c) => "HunYuanForCausalLM",
        _ => row.class,
    }
}

fn sizes(w: &mut Writer, c: &ModelConfig) {
    let (layers, hidden, heads, ffn, eps, positions) = match c.family {
        Family::Bloom => ("n_layer", "hidden_size", "n_head", "n_inner", "layer_norm_epsilon", "seq_length"),
        Family::Gpt2 => ("n_layer", "n_embd", "n_head", "n_inner", "layer_norm_epsilon", "n_positions"),
        Family::ChatGlm => (
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "ffn_hidden_size",
            "layernorm_epsilon",
            "seq_length",
        ),
        Family::LongCat => (
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "ffn_hidden_size",
            "rms_norm_eps",
            "max_position_embeddings",
        ),
        Family::Qwen1 => (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "layer_norm_epsilon",
            "seq_length",
        ),
        family => (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            match family {
                Family::Mamba2 | Family::Mamba3 => "layer_norm_epsilon",
                _ => "rms_norm_eps",
            },
            if family == Family::Baichuan && c.position == Position::Alibi {
                "model_max_length"
            } else {
                "max_position_embeddings"
            },
        ),
    };
    w.set(layers, json!(c.layers));
    w.set(hidden, json!(c.hidden));
    w.set(eps, json!(c.norm_eps));
    w.set(positions, json!(c.max_positions));
    if c.heads > 0 {
        w.set(heads, json!(c.heads));
        w.set(ffn, json!(if c.family == Family::Qwen1 { 2 * c.ffn } else { c.ffn }));
    }
    let (act, name) = match (c.family, c.activation) {
        (Family::Bloom | Family::ChatGlm, _) => return,
        (Family::Gpt2, Activation::GeluErf) => ("activation_function", "gelu"),
        (Family::Gpt2, _) => ("activation_function", "gelu_new"),
        (Family::Gemma | Family::Gemma2, _) => ("hidden_activation", "gelu_pytorch_tanh"),
        (_, Activation::ReluSquared) => ("hidden_act", "relu2"),
        _ => ("hidden_act", "silu"),
    };
    w.set(act, json!(name));
}

fn attention(w: &mut Writer, c: &ModelConfig, row: &Row) {
    match (&c.attention, c.family) {
        (Attention::Latent(m), _) => latent(w, c, m),
        (_, Family::ChatGlm) => {
            w.set("kv_channels", json!(c.head_dim));
            w.set("multi_query_attention", json!(c.groups != c.heads));
            w.set("multi_query_group_num", json!(c.groups));
        }
        (_, Family::Qwen1) => w.set("kv_channels", json!(c.head_dim)),
        (_, Family::Bloom | Family::Gpt2) => {}
        _ => {
            w.set("num_key_value_heads", json!(c.groups));
            w.set("head_dim", json!(c.head_dim));
        }
    }
    if !matches!(c.family, Family::Bloom | Family::ChatGlm) {
        w.set("attention_dropout", json!(0.0));
    }
    if matches!(row.bias, BiasRule::Field(_) | BiasRule::QkvField(_)) {
        w.set("attention_bias", json!(c.bias.qkv));
    }
    let window = match row.window {
        WindowRule::Never => return,
        WindowRule::Switched(_) => {
            w.set("use_sliding_window", json!(c.sliding_window.is_some()));
            c.sliding_window
        }
        _ => c.sliding_window,
    };
    // A class whose layers alternate wants a window even if no layer has one.
    let alternating = matches!(row.window, WindowRule::Alternating(_));
    if window.is_some() || !alternating {
        w.set("sliding_window", json!(window));
    }
    if alternating && window.is_none() {
        w.set("layer_types", (0..c.layers).map(|_| "full_attention").collect());
    }
    if !matches!(row.window, WindowRule::Always(_)) && window.is_some() {
        let kind = |l| if c.layer(l).global { "full_attention" } else { "sliding_attention" };
        w.set("layer_types", (0..c.layers).map(kind).collect());
    }
}

fn latent(w: &mut Writer, c: &ModelConfig, m: &Mla) {
    w.set("num_key_value_heads", json!(c.groups));
    w.set("q_lora_rank", json!(m.q_rank));
    w.set("kv_lora_rank", json!(m.kv_rank));
    w.set("qk_nope_head_dim", json!(m.nope));
    w.set("qk_rope_head_dim", json!(m.rope));
    w.set("v_head_dim", json!(m.value));
    if let Some(i) = &c.indexer {
        w.set("index_n_heads", json!(i.heads));
        w.set("index_head_dim", json!(i.head_dim));
        w.set("index_topk", json!(i.top_k));
        w.set("indexer_rope_interleave", json!(i.interleaved));
        let kind = |l| if c.layer(l).borrows_index { "shared" } else { "full" };
        if (0..c.layers).any(|l| c.layer(l).borrows_index) {
            w.set("indexer_types", (0..c.layers).map(kind).collect());
        }
    }
}

fn positions(w: &mut Writer, c: &ModelConfig, row: &Row, dialect: Dialect) {
    if c.position != Position::Rope {
        return;
    }
    if c.family == Family::ChatGlm {
        return w.set("rope_ratio", json!(c.rope.base / 10_000.0));
    }
    if c.family == Family::Qwen1 {
        return w.set("rotary_emb_base", json!(c.rope.base));
    }
    let mut scaling = rope::scaling_object(&c.rope);
    // One magnitude for all lengths; only Phi-3.5-MoE has words for two.
    if let (Some(s), false, RopeScaling::LongRope { magnitude: Some((short, long)), .. }) =
        (&mut scaling, c.family == Family::PhiMoe, &c.rope.scaling)
        && short == long
    {
        s.retain(|key, _| !matches!(key.as_str(), "short_mscale" | "long_mscale"));
        s.insert("attention_factor".to_owned(), json!(short));
    }
    // Classes that keep the original length beside the scaling look for it there.
    if let (Family::Phi3 | Family::PhiMoe, Some(s)) = (c.family, &scaling)
        && let Some(original) = s.get("original_max_position_embeddings")
    {
        w.set("original_max_position_embeddings", original.clone());
    }
    match dialect {
        Dialect::V4 => {
            w.set("rope_theta", json!(c.rope.base));
            // The class of gpt-oss stretches where nothing is said.
            let none = if c.family == Family::GptOss { json!({"rope_type": "default"}) } else { Value::Null };
            w.set("rope_scaling", scaling.map_or(none, Value::Object));
        }
        Dialect::V5 => {
            let mut rope =
                scaling.unwrap_or_else(|| Map::from_iter([("rope_type".to_owned(), json!("default"))]));
            rope.insert("rope_theta".to_owned(), json!(c.rope.base));
            w.set("rope_parameters", Value::Object(rope));
        }
    }
    if c.family == Family::MiniMaxM2 {
        w.set("rotary_dim", json!(c.rope.rotated(c.head_dim)));
    } else if c.rope.fraction != 1.0 || row.fraction != 1.0 {
        w.set("partial_rotary_factor", json!(c.rope.fraction));
    }
    if c.rope.interleaved != row.interleaved {
        w.set("rope_interleave", json!(c.rope.interleaved));
    }
}

fn experts(w: &mut Writer, c: &ModelConfig, moe: &Moe) {
    let r = &moe.router;
    let shared = moe.shared.map_or(0, |s| s.ffn / moe.ffn.max(1));
    let (count, top_k) = match c.family {
        Family::Mixtral | Family::PhiMoe | Family::GptOss | Family::MiniMaxM2 => {
            ("num_local_experts", "num_experts_per_tok")
        }
        Family::HunyuanMoe => ("num_experts", "moe_topk"),
        Family::LongCat => ("n_routed_experts", "moe_topk"),
        Family::DeepseekV2
        | Family::DeepseekV3
        | Family::KimiK2
        | Family::DeepseekV32
        | Family::GlmMoeDsa
        | Family::Glm4Moe => ("n_routed_experts", "num_experts_per_tok"),
        _ => ("num_experts", "num_experts_per_tok"),
    };
    w.set(count, json!(moe.experts));
    w.set(top_k, json!(moe.top_k));
    match c.family {
        Family::Mixtral | Family::PhiMoe | Family::GptOss | Family::MiniMaxM2 | Family::MiniCpm => {}
        Family::LongCat => {
            w.set("expert_ffn_hidden_size", json!(moe.ffn));
            w.set("zero_expert_num", json!(moe.zero_experts));
            w.set("zero_expert_type", json!("identity"));
        }
        Family::Qwen2Moe | Family::Qwen3Next => {
            w.set("moe_intermediate_size", json!(moe.ffn));
            w.set("shared_expert_intermediate_size", json!(moe.shared.map_or(0, |s| s.ffn)));
        }
        Family::HunyuanMoe => {
            w.set("moe_intermediate_size", json!(moe.ffn));
            w.set("num_shared_expert", json!(moe.shared.map_or(0, |s| s.ffn / c.ffn.max(1))));
            w.set("use_mixed_mlp_moe", json!(moe.shared.is_some()));
        }
        Family::HyV3 | Family::Ling => {
            w.set("moe_intermediate_size", json!(moe.ffn));
            w.set("num_shared_experts", json!(shared));
        }
        Family::Qwen3Moe => w.set("moe_intermediate_size", json!(moe.ffn)),
        _ => {
            w.set("moe_intermediate_size", json!(moe.ffn));
            w.set("n_shared_experts", json!(shared));
        }
    }
    // Classes with groups assume several where nothing is said.
    let grouped = matches!(
        c.family,
        Family::DeepseekV3 | Family::KimiK2 | Family::DeepseekV32 | Family::GlmMoeDsa | Family::Glm4Moe
    );
    let limit = r.groups.map(|GroupLimit { groups, keep, .. }| (groups, keep)).or(grouped.then_some((1, 1)));
    if let Some((groups, keep)) = limit {
        w.set("n_group", json!(groups));
        w.set("topk_group", json!(keep));
    }
    match c.family {
        Family::Mixtral | Family::GptOss | Family::MiniMaxM2 | Family::MiniCpm | Family::HunyuanMoe => {}
        Family::PhiMoe => {
            if let Score::SparseMixer { jitter } = r.score {
                w.set("router_jitter_noise", json!(jitter));
            }
            w.set("lm_head_bias", json!(c.bias.head));
        }
        Family::HyV3 => {
            w.set("router_scaling_factor", json!(r.scale));
            w.set("route_norm", json!(r.renormalise));
        }
        _ => {
            w.set("norm_topk_prob", json!(r.renormalise));
            w.set("routed_scaling_factor", json!(r.scale));
        }
    }
    match c.family {
        Family::DeepseekV2 => {
            w.set("topk_method", json!(if r.groups.is_some() { "group_limited_greedy" } else { "greedy" }));
            w.set("scoring_func", json!("softmax"));
        }
        Family::DeepseekV3 | Family::KimiK2 | Family::GlmMoeDsa | Family::DeepseekV32 => {
            w.set("topk_method", json!("noaux_tc"));
            w.set("scoring_func", json!("sigmoid"));
        }
        Family::Ling => {
            w.set("score_function", json!(if r.score == Score::Sigmoid { "sigmoid" } else { "softmax" }));
            w.set("moe_router_enable_expert_bias", json!(r.bias));
            w.set("router_dtype", json!(if r.f32 { "fp32" } else { "bf16" }));
        }
        Family::LongCat => return w.set("router_bias", json!(r.linear_bias)),
        _ => {}
    }
    let dense: Vec<usize> = (0..c.layers).filter(|&l| c.layer(l).feed != Feed::Moe).collect();
    let leading = dense.iter().enumerate().take_while(|(i, l)| i == *l).count();
    match c.family {
        Family::HyV3 => {
            let kind = |l| if c.layer(l).feed == Feed::Moe { "sparse" } else { "dense" };
            w.set("mlp_layer_types", (0..c.layers).map(kind).collect());
        }
        Family::Qwen2Moe | Family::Qwen3Moe | Family::Qwen3Next => {
            w.set("decoder_sparse_step", json!(1));
            w.set("mlp_only_layers", json!(dense));
        }
        _ if leading == dense.len() && (grouped || !dense.is_empty()) => {
            w.set("first_k_dense_replace", json!(leading));
        }
        _ if !dense.is_empty() => {
            let kind = |l| if c.layer(l).feed == Feed::Moe { "sparse" } else { "dense" };
            w.set("mlp_layer_types", (0..c.layers).map(kind).collect());
        }
        _ => {}
    }
}

fn special(w: &mut Writer, c: &ModelConfig) {
    match c.family {
        Family::Llama => w.set("mlp_bias", json!(c.bias.mlp)),
        Family::InternLm | Family::InternLm2 => w.set("bias", json!(c.bias.qkv)),
        Family::InternLm3 => {
            w.set("bias", json!(c.bias.out));
            w.set("qkv_bias", json!(c.bias.qkv));
        }
        Family::SeedOss => {
            w.set("attention_out_bias", json!(c.bias.out));
            w.set("mlp_bias", json!(c.bias.mlp));
        }
        Family::Qwen2Moe => w.set("qkv_bias", json!(c.bias.qkv)),
        Family::ChatGlm => {
            w.set("padded_vocab_size", json!(c.vocab));
            w.set("add_qkv_bias", json!(c.bias.qkv));
            w.set("add_bias_linear", json!(c.bias.out));
            w.set("rmsnorm", json!(c.norm == crate::Norm::Rms));
            w.set("post_layer_norm", json!(true));
            w.set("original_rope", json!(true));
        }
        Family::Glm4Moe => w.set("use_qk_norm", json!(c.qk_norm == QkNorm::PerHead)),
        Family::Ling => {
            w.set("use_qk_norm", json!(c.qk_norm == QkNorm::PerHead));
            w.set("use_qkv_bias", json!(c.bias.qkv));
            w.set("use_bias", json!(c.bias.out));
            w.set("use_rmsnorm", json!(true));
        }
        Family::Gemma2 => {
            let scale = c.scores.scale.map_or(c.head_dim as f64, |s| (s.powi(-2) * 1e6).round() / 1e6);
            w.set("query_pre_attn_scalar", number(scale));
            w.set("attn_logit_softcapping", json!(c.scores.softcap));
            w.set("final_logit_softcapping", json!(c.logit_softcap));
        }
        Family::MiniCpm | Family::MiniCpm3 => {
            w.set("scale_emb", number(c.scales.embedding));
            w.set("scale_depth", json!(c.scales.residual * (c.layers as f64).sqrt()));
            w.set("dim_model_base", number(c.scales.logits * c.hidden as f64));
        }
        Family::Granite => {
            w.set("embedding_multiplier", number(c.scales.embedding));
            w.set("residual_multiplier", json!(c.scales.residual));
            w.set("logits_scaling", number(c.scales.logits.recip()));
            w.set("attention_multiplier", json!(c.score_scale()));
            w.set("mlp_bias", json!(c.bias.mlp));
        }
        Family::LongCat => {
            if let Some(m) = c.mla() {
                w.set("head_dim", json!(m.rope)); // what transformers' class calls it
                w.set("mla_scale_q_lora", json!(m.q_scale != 1.0));
                w.set("mla_scale_kv_lora", json!(m.kv_scale != 1.0));
            }
        }
        Family::HunyuanMoe => {
            w.set("use_qk_norm", json!(c.qk_norm == QkNorm::PerHeadAfterRope));
            w.set("use_cla", json!(c.has(Mixer::SharedKv)));
            let share = (1..c.layers).find(|&l| c.layer(l).mixer == Mixer::Attention).unwrap_or(c.layers);
            w.set("cla_share_factor", json!(share));
        }
        Family::GptOss => {
            if let Activation::SwigluClamped { alpha, limit } = c.activation {
                w.set("swiglu_alpha", json!(alpha));
                w.set("swiglu_limit", json!(limit));
            }
        }
        Family::Qwen3Next => {
            if let Some(g) = &c.gated_delta {
                w.set("linear_num_key_heads", json!(g.key_heads));
                w.set("linear_num_value_heads", json!(g.value_heads));
                w.set("linear_key_head_dim", json!(g.key_dim));
                w.set("linear_value_head_dim", json!(g.value_dim));
                w.set("linear_conv_kernel_dim", json!(g.conv));
            }
            let kind = |l| match c.layer(l).mixer {
                Mixer::GatedDelta => "linear_attention",
                _ => "full_attention",
            };
            w.set("layer_types", (0..c.layers).map(kind).collect());
        }
        Family::Mamba2 => mamba2(w, c),
        Family::Mamba3 => super::mamba3::write(w, c),
        _ => {}
    }
}

/// A number that classes may want as an integer: written as one if it is, but for the rounding of products.
fn number(value: f64) -> Value {
    let whole = value.round();
    match (value - whole).abs() <= 1e-9 * whole.abs() && whole.abs() < 1e15 {
        true => json!(whole as i64),
        false => json!(value),
    }
}

fn mamba2(w: &mut Writer, c: &ModelConfig) {
    let Some(m) = &c.mamba2 else { return };
    w.set("num_heads", json!(m.heads));
    w.set("head_dim", json!(m.head_dim));
    w.set("expand", json!(m.inner() / c.hidden.max(1)));
    w.set("n_groups", json!(m.groups));
    w.set("state_size", json!(m.state));
    w.set("conv_kernel", json!(m.conv));
    w.set("chunk_size", json!(m.chunk));
    w.set("use_bias", json!(m.bias));
    w.set("use_conv_bias", json!(m.conv_bias));
    w.set("residual_in_fp32", json!(m.residual_f32));
    w.set("time_step_min", json!(m.dt_init.0));
    w.set("time_step_max", json!(m.dt_init.1));
    w.set("rms_norm", json!(true));
    // Left out, the limits are 0 and infinity; JSON has no word for the second.
    if let (low, Some(high)) = m.dt_limit {
        w.set("time_step_limit", json!([low, high]));
    }
}
