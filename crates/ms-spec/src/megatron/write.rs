//! From a configuration to arguments.

use ms_core::DType;
use serde_json::{Map, Value, json};

use super::{BALANCED_GROUPS, indexer};
use crate::sizes::{Activation, Attention, Block, Compressed, Feed, GroupScore, Mixer, Moe, Position, Score};
use crate::{ModelConfig, Norm, QkNorm, RopeScaling};

/// The arguments that a Megatron reader takes from a checkpoint to know the architecture.
///
/// Sizes of the cut (`tensor_model_parallel_size` and so on) are the layout's to add.
pub fn to_args(config: &ModelConfig) -> Map<String, Value> {
    let c = config;
    // Megatron's flag is an integer; a float base is kept as it is.
    let base = if c.rope.base.fract() == 0.0 { json!(c.rope.base as u64) } else { json!(c.rope.base) };
    let all_biases = c.bias.qkv && c.bias.out && c.bias.mlp;
    let position = match c.position {
        Position::Rope => "rope",
        Position::Alibi => "alibi",
        Position::Learned => "learned_absolute",
        Position::None => "none",
    };
    let alternating = !c.pattern.is_empty() && c.sliding_window.is_some();
    let mut args: Map<String, Value> = [
        ("num_layers", json!(c.layers)),
        ("hidden_size", json!(c.hidden)),
        ("ffn_hidden_size", json!(c.ffn)),
        ("seq_length", json!(c.max_positions)),
        ("num_attention_heads", json!(c.heads)),
        ("group_query_attention", json!(c.groups != c.heads)),
        ("num_query_groups", json!(c.groups)),
        ("kv_channels", json!(c.head_dim)),
        ("max_position_embeddings", json!(c.max_positions)),
        ("position_embedding_type", json!(position)),
        ("add_position_embedding", json!(c.position == Position::Learned)),
        ("use_rotary_position_embeddings", json!(c.position == Position::Rope)),
        ("rotary_base", json!(base)),
        ("rotary_percent", json!(c.rope.fraction)),
        ("rotary_interleaved", json!(c.rope.interleaved)),
        ("rotary_seq_len_interpolation_factor", Value::Null),
        ("rope_scaling_type", Value::Null),
        ("add_bias_linear", json!(all_biases)),
        ("add_qkv_bias", json!(c.bias.qkv)),
        ("add_dense_bias", json!(c.bias.out)),
        ("add_output_layer_bias", json!(c.bias.head)),
        ("swiglu", json!(matches!(c.activation, Activation::Swiglu | Activation::SwigluBounded { .. }))),
        ("geglu", json!(c.activation == Activation::GegluTanh)),
        ("squared_relu", json!(c.activation == Activation::ReluSquared)),
        ("gelu_tanh", json!(c.activation == Activation::GeluTanh)),
        ("bias_gelu_fusion", json!(c.activation == Activation::GeluTanh)),
        ("untie_embeddings_and_output_weights", json!(!c.tied)),
        ("apply_layernorm_1p", json!(false)),
        ("add_rmsnorm_offset", json!(c.norm == Norm::RmsUnitOffset)),
        ("normalization", json!(if c.norm == Norm::LayerNorm { "LayerNorm" } else { "RMSNorm" })),
        ("norm_epsilon", json!(c.norm_eps)),
        ("qk_layernorm", json!(c.qk_norm != QkNorm::None || c.mla().is_some())),
        ("init_method_std", json!(c.init_std)),
        ("vocab_size", json!(c.vocab)),
        ("padded_vocab_size", json!(c.padded_vocab)),
        ("make_vocab_size_divisible_by", json!(1)),
        ("apply_query_key_layer_scaling", json!(false)),
        ("tokenizer_type", json!("PretrainedFromHF")),
        ("sliding_window", json!(c.sliding_window.filter(|_| !alternating))),
        ("post_norm", json!(c.block == Block::Sandwich)),
        ("embed_layernorm", json!(c.embedding_norm)),
        ("num_experts", Value::Null),
        ("n_shared_experts", Value::Null),
        ("moe_intermediate_size", Value::Null),
        ("first_k_dense_replace", Value::Null),
        ("moe_layer_freq", Value::Null),
        ("multi_head_latent_attention", json!(false)),
        ("qk_rope_head_dim", Value::Null),
        ("qk_nope_head_dim", Value::Null),
        ("q_lora_rank", Value::Null),
        ("kv_lora_rank", Value::Null),
        ("v_head_dim", Value::Null),
        ("shared_expert_gate", json!(false)),
        ("bf16", json!(c.dtype == Some(DType::Bf16))),
        ("fp16", json!(c.dtype == Some(DType::F16))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    special(&mut args, c, alternating);
    latent(&mut args, c);
    if let Some(a) = c.compressed() {
        compressed(&mut args, c, a);
    }
    mixers(&mut args, c);
    if let Some(moe) = &c.moe {
        experts(&mut args, c, moe);
    }
    rope(&mut args, c);
    args
}

pub(super) fn set(args: &mut Map<String, Value>, name: &str, value: Value) {
    args.insert(name.to_owned(), value);
}

fn special(args: &mut Map<String, Value>, c: &ModelConfig, alternating: bool) {
    if alternating {
        set(args, "interleave_sliding_window", json!(c.sliding_window));
    }
    if let Some(softcap) = c.scores.softcap {
        set(args, "attn_logit_softcapping", json!(softcap));
    }
    if let Some(softcap) = c.logit_softcap {
        set(args, "output_logit_softcapping", json!(softcap));
    }
    if let Some(scale) = c.scores.scale {
        // The whole number that a family's file has, unless it is not quite that.
        let (exact, round) = (scale.powi(-2), (scale.powi(-2) * 1e6).round() / 1e6);
        let scalar = if (round.powf(-0.5) - scale).abs() <= 1e-15 * scale { round } else { exact };
        set(args, "query_pre_attn_scalar", json!(scalar));
    }
    if c.scales.embedding == (c.hidden as f64).sqrt() {
        set(args, "input_embeds_norm", json!(true));
    } else if c.scales.embedding != 1.0 {
        let name = if c.scales.residual == 1.0 { "embedding_multiplier_scale" } else { "scale_emb" };
        set(args, name, json!(c.scales.embedding));
    }
    if c.scales.residual != 1.0 {
        set(args, "scale_depth", json!(c.scales.residual * (c.layers as f64).sqrt()));
        set(args, "dim_model_base", json!(c.scales.logits * c.hidden as f64));
    } else if c.scales.logits != 1.0 {
        set(args, "output_multiplier_scale", json!(c.scales.logits));
    }
    if c.mtp > 0 {
        set(args, "mtp_num_layers", json!(c.mtp));
        set(args, "num_nextn_predict_layers", json!(c.mtp));
    }
}

fn latent(args: &mut Map<String, Value>, c: &ModelConfig) {
    let Attention::Latent(m) = &c.attention else { return };
    set(args, "multi_head_latent_attention", json!(true));
    set(args, "multi_latent_attention", json!(true));
    set(args, "q_lora_rank", json!(m.q_rank));
    set(args, "kv_lora_rank", json!(m.kv_rank));
    set(args, "qk_nope_head_dim", json!(m.nope));
    set(args, "qk_head_dim", json!(m.nope));
    set(args, "qk_rope_head_dim", json!(m.rope));
    set(args, "qk_pos_emb_head_dim", json!(m.rope));
    set(args, "v_head_dim", json!(m.value));
    if m.q_scale != 1.0 {
        set(args, "enable_mla_scale_q_lora", json!(true));
    }
    if m.kv_scale != 1.0 {
        set(args, "enable_mla_scale_kv_lora", json!(true));
    }
    indexer::write(args, c);
}

/// Upstream calls it latent attention, whose sizes have other meanings here.
fn compressed(args: &mut Map<String, Value>, c: &ModelConfig, a: &Compressed) {
    set(args, "multi_latent_attention", json!(true));
    set(args, "kv_compress", json!(true));
    set(args, "position_embedding_type", json!("deepseek4"));
    set(args, "qk_layernorm", json!(true));
    set(args, "qk_head_dim", json!(c.head_dim));
    set(args, "kv_lora_rank", json!(c.head_dim));
    set(args, "qk_pos_emb_head_dim", json!(c.rope.rotated(c.head_dim)));
    set(args, "q_lora_rank", json!(a.q_rank));
    set(args, "o_lora_rank", json!(a.out_rank));
    set(args, "o_groups", json!(a.out_groups));
    set(args, "sliding_window", Value::Null);
    set(args, "sliding_window_size", json!(c.sliding_window));
    let layers = || (0..c.layers).map(|l| c.layer(l));
    let ratios = layers().map(|l| l.pooled.map_or(0, |p| p.ratio));
    set(args, "compress_ratios", ratios.chain((0..c.mtp).map(|_| 0)).collect());
    set(args, "n_hash_layers", json!(layers().take_while(|l| l.hashed).count()));
    set(args, "rope_theta", json!(c.rope.base));
    set(args, "compress_rope_theta", json!(a.rope.base));
    if let RopeScaling::Yarn { factor, beta_fast, beta_slow, original, .. } = a.rope.scaling {
        set(args, "rope_factor", json!(factor));
        set(args, "beta_fast", json!(beta_fast));
        set(args, "beta_slow", json!(beta_slow));
        set(args, "original_seq_len", json!(original));
    } else {
        set(args, "original_seq_len", json!(0));
    }
    if let Activation::SwigluBounded { limit } = c.activation {
        set(args, "swiglu_limit", json!(limit));
    }
    if let Some(h) = &c.hyper {
        set(args, "enable_mhc", json!(true));
        set(args, "hc_mult", json!(h.streams));
        set(args, "hc_sinkhorn_iters", json!(h.rounds));
        set(args, "hc_eps", json!(h.eps));
    }
    indexer::write(args, c);
}

fn mixers(args: &mut Map<String, Value>, c: &ModelConfig) {
    let second = |mixer| (1..c.layers).find(|&l| c.layer(l).mixer == mixer);
    if c.has(Mixer::SharedKv) {
        set(args, "cla_share_factor", json!(second(Mixer::Attention).unwrap_or(c.layers)));
    }
    if let Some(g) = &c.gated_delta {
        let first = (0..c.layers).find(|&l| c.layer(l).mixer == Mixer::Attention).unwrap_or(c.layers);
        set(args, "full_attention_interval", json!(first + 1));
        set(args, "linear_num_key_heads", json!(g.key_heads));
        set(args, "linear_num_value_heads", json!(g.value_heads));
        set(args, "linear_key_head_dim", json!(g.key_dim));
        set(args, "linear_value_head_dim", json!(g.value_dim));
        set(args, "linear_conv_kernel_dim", json!(g.conv));
        set(args, "partial_rotary_factor", json!(c.rope.fraction));
    }
    if let Some(m) = &c.mamba2 {
        let letter = |l| match c.layer(l).mixer {
            Mixer::Mamba2 => 'M',
            Mixer::None => '-',
            _ => '*',
        };
        set(args, "hybrid_override_pattern", json!((0..c.layers).map(letter).collect::<String>()));
        set(args, "is_hybrid_model", json!(true));
        set(args, "mamba_state_dim", json!(m.state));
        set(args, "mamba_head_dim", json!(m.head_dim));
        set(args, "mamba_num_groups", json!(m.groups));
        set(args, "mamba_d_conv", json!(m.conv));
        set(args, "mamba_chunk_size", json!(m.chunk));
        set(args, "mamba_d_ssm", json!(m.inner()));
    }
}

fn experts(args: &mut Map<String, Value>, c: &ModelConfig, moe: &Moe) {
    let r = &moe.router;
    let kind = match (r.score, r.groups.map(|g| g.by)) {
        (Score::SparseMixer { jitter }, _) => {
            set(args, "moe_input_jitter_eps", json!(jitter));
            "sparsemixer_topk"
        }
        (_, Some(GroupScore::Best)) => "group_limited_greedy",
        (Score::Softmax, _) => "softmax_topk",
        _ => "none",
    };
    let score = match r.score {
        Score::Sigmoid => "sigmoid",
        Score::SqrtSoftplus => "sqrtsoftplus",
        _ => "softmax",
    };
    set(args, "num_experts", json!(moe.experts));
    set(args, "moe_router_topk", json!(moe.top_k));
    set(args, "moe_intermediate_size", json!(moe.ffn));
    set(args, "moe_ffn_hidden_size", json!(moe.ffn));
    set(args, "moe_router_load_balancing_type", json!(kind));
    set(args, "moe_router_score_function", json!(score));
    set(args, "moe_router_pre_softmax", json!(r.score == Score::Softmax));
    set(args, "moe_router_enable_expert_bias", json!(r.bias));
    set(args, "norm_topk_prob", json!(r.renormalise));
    set(args, "routed_scaling_factor", json!(r.scale));
    set(args, "moe_router_topk_scaling_factor", json!(r.scale));
    if r.f32 {
        set(args, "moe_router_dtype", json!("fp32"));
    }
    if let Some(g) = r.groups {
        for name in ["n_group", "moe_router_num_groups"] {
            set(args, name, json!(g.groups));
        }
        for name in ["topk_group", "moe_router_group_topk"] {
            set(args, name, json!(g.keep));
        }
        if g.by == GroupScore::Alike {
            set(args, BALANCED_GROUPS, json!(true));
        }
    }
    if let Some(shared) = &moe.shared {
        if shared.ffn.is_multiple_of(moe.ffn) {
            set(args, "n_shared_experts", json!(shared.ffn / moe.ffn));
        }
        set(args, "moe_shared_expert_intermediate_size", json!(shared.ffn));
        set(args, "shared_expert_gate", json!(shared.gate));
    }
    if moe.zero_experts > 0 {
        set(args, "num_zero_experts", json!(moe.zero_experts));
    }
    let sparse: Vec<bool> = (0..c.layers).map(|l| c.layer(l).feed == Feed::Moe).collect();
    let first = sparse.iter().take_while(|s| !**s).count();
    set(args, "first_k_dense_replace", json!(first));
    let after = sparse[first..].iter().all(|s| *s);
    let list: Vec<u8> = sparse.iter().map(|&s| u8::from(s)).collect();
    set(args, "moe_layer_freq", if after { json!(1) } else { json!(list) });
}

fn rope(args: &mut Map<String, Value>, c: &ModelConfig) {
    let mut set = |name: &str, value: Value| {
        args.insert(name.to_owned(), value);
    };
    match &c.rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Ntk { alpha } => set("rope_scaling_alpha", json!(alpha)),
        RopeScaling::Dynamic { factor, original } => {
            set("rope_scaling_type", json!("dynamic"));
            set("rope_scaling_factor", json!(factor));
            set("original_max_position_embeddings", json!(original));
        }
        RopeScaling::LongRope { short, long, original, factor, magnitude } => {
            set("rope_scaling_type", json!("longrope"));
            set("rope_scaling_factor", json!(factor));
            set("rope_scaling_original_max_position_embeddings", json!(original));
            set("short_factor", json!(short));
            set("long_factor", json!(long));
            if let Some((short, long)) = magnitude {
                set("short_mscale", json!(short));
                set("long_mscale", json!(long));
            }
        }
        RopeScaling::Linear { factor } => set("rotary_seq_len_interpolation_factor", json!(factor)),
        RopeScaling::Llama3 { factor, low, high, original } => {
            set("rope_scaling_type", json!("llama3"));
            set("rope_scaling_factor", json!(factor));
            set("low_freq_factor", json!(low));
            set("high_freq_factor", json!(high));
            set("original_max_position_embeddings", json!(original));
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, mscale, .. } => {
            set("rope_scaling_type", json!("yarn"));
            set("rope_scaling_factor", json!(factor));
            set("rope_scaling_beta_fast", json!(beta_fast));
            set("rope_scaling_beta_slow", json!(beta_slow));
            set("rope_scaling_original_max_position_embeddings", json!(original));
            if let Some((m, all)) = mscale {
                set("rope_scaling_mscale", json!(m));
                set("rope_scaling_mscale_all_dim", json!(all));
            }
        }
    }
}
