//! From arguments to a configuration.

use ms_core::DType;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

use super::{BALANCED_GROUPS, SOURCE, hybrid, indexer, noop_layers};
use crate::hf::{Fields, read_fields};
use crate::sizes::{
    Activation, Attention, Biases, Block, Compressed, Feed, GatedDelta, GroupLimit, GroupScore,
    HyperConnections, Layer, Mamba2, Mixer, Mla, Moe, Pooled, Position, Router, Scales, Score, Scores,
    SharedExpert,
};
use crate::{Error, Family, ModelConfig, Norm, QkNorm, Result, Rope, RopeScaling};

/// Reads a configuration from arguments by their `dest` names, given ones and defaults alike.
///
/// The arguments of head's converter (Hugging Face's field names) are understood too. `num_layers` counts empty
/// slots (`noop_layers`); the result does not.
///
/// # Errors
/// A missing or malformed argument, or a feature that is not supported.
pub fn from_args(args: &Map<String, Value>) -> Result<ModelConfig> {
    read(args, &Fields { source: SOURCE, map: args, asked: None })
}

/// The names of the arguments that [`from_args`] looks at on its way, whatever it makes of them.
pub fn asked_args(args: &Map<String, Value>) -> BTreeSet<String> {
    let asked = RefCell::default();
    let _ = read(args, &Fields { source: SOURCE, map: args, asked: Some(&asked) });
    asked.into_inner()
}

fn read(args: &Map<String, Value>, f: &Fields<'_>) -> Result<ModelConfig> {
    if args.contains_key("num_hidden_layers") && !args.contains_key("ffn_hidden_size") {
        return read_fields(f);
    }
    let (hidden, heads) = (f.need("hidden_size")?, f.need("num_attention_heads")?);
    let slots = f.need("num_layers")?;
    let layers = slots.saturating_sub(noop_layers(args)?.len());
    if layers > crate::config::MOST_PARTS {
        return Err(Error::Inconsistent(format!("layers: {layers} are too many")));
    }
    let activation = activation(f)?;
    let groups = match on(f, "group_query_attention")? {
        true => f.size("num_query_groups")?.unwrap_or(1),
        false => heads,
    };
    let head_dim = match f.size("kv_channels")? {
        Some(d) => d,
        None if heads > 0 && hidden % heads == 0 => hidden / heads,
        None => {
            return Err(Error::Inconsistent(format!(
                "hidden size {hidden} does not divide by {heads} heads"
            )));
        }
    };
    let (vocab, padded) = (f.size("vocab_size")?, f.size("padded_vocab_size")?);
    let vocab = match (vocab, padded) {
        (Some(v), Some(p)) => v.min(p),
        (Some(v), None) | (None, Some(v)) => v,
        (None, None) => return Err(Error::Missing { source_name: SOURCE, field: "padded_vocab_size" }),
    };
    let all_biases = on(f, "add_bias_linear")?;
    let max_positions = f.size("max_position_embeddings")?.or(f.size("seq_length")?).unwrap_or(2048);
    // Megatron's default for gated layers: two thirds of 4 H, rounded down to a multiple of 64.
    let default_ffn = || match activation.gated() {
        true => hidden.saturating_mul(8) / 3 / 64 * 64,
        false => hidden.saturating_mul(4),
    };
    let mut c = ModelConfig {
        layers,
        hidden,
        ffn: f.size("ffn_hidden_size")?.unwrap_or_else(default_ffn),
        heads,
        groups,
        head_dim,
        vocab,
        padded_vocab: padded.unwrap_or(vocab),
        max_positions,
        activation,
        norm: norm(f)?,
        norm_eps: f.float("norm_epsilon")?.unwrap_or(1e-5),
        bias: Biases {
            qkv: all_biases || on(f, "add_qkv_bias")?,
            out: all_biases || on(f, "add_dense_bias")?,
            mlp: all_biases,
            head: on(f, "add_output_layer_bias")?,
        },
        qk_norm: if on(f, "qk_layernorm")? { QkNorm::PerHead } else { QkNorm::None },
        position: position(f)?,
        rope: rope(f, max_positions)?,
        sliding_window: f.size_of(&["sliding_window", "interleave_sliding_window"])?,
        scores: Scores {
            scale: f.float("query_pre_attn_scalar")?.filter(|&s| s != head_dim as f64).map(|s| s.powf(-0.5)),
            softcap: f.float("attn_logit_softcapping")?,
            ..Scores::default()
        },
        block: if on(f, "post_norm")? { Block::Sandwich } else { Block::Pre },
        embedding_norm: on(f, "embed_layernorm")?,
        scales: scales(f, hidden, layers)?,
        logit_softcap: f.float("output_logit_softcapping")?,
        mtp: f.size_of(&["mtp_num_layers", "num_nextn_predict_layers"])?.unwrap_or(0),
        tied: !on(f, "untie_embeddings_and_output_weights")?,
        init_std: f.float("init_method_std")?.unwrap_or(0.02),
        dtype: dtype(f)?,
        ..ModelConfig::default()
    };
    if f.size("interleave_sliding_window")?.is_some() {
        let layer = |l: usize| Layer { global: l % 2 == 1, ..Layer::default() };
        c.pattern = (0..layers).map(layer).collect();
    }
    latent(f, &mut c)?;
    mixers(f, &mut c)?;
    experts(f, &mut c)?;
    indexer::read_owners(f, &mut c)?;
    if let (Some(_), Some(moe)) = (c.compressed(), &c.moe) {
        c.ffn = moe.ffn; // there are experts alone
    }
    c.family = Family::of(&c);
    c.validate()
}

pub(super) fn on(f: &Fields<'_>, field: &'static str) -> Result<bool> {
    f.flag(field).map(|v| v.unwrap_or(false))
}

fn activation(f: &Fields<'_>) -> Result<Activation> {
    if let Some(limit) = f.float("swiglu_limit")?.filter(|&l| l > 0.0) {
        return match on(f, "swiglu")? {
            true => Ok(Activation::SwigluBounded { limit }),
            false => Err(f.unsupported("--swiglu-limit without --swiglu is not supported")),
        };
    }
    Ok(match (on(f, "swiglu")?, on(f, "geglu")?, on(f, "squared_relu")?) {
        (true, ..) => Activation::Swiglu,
        (_, true, _) => Activation::GegluTanh,
        (.., true) => Activation::ReluSquared,
        // The fused kernel of bias and GELU uses the approximation by tanh; so do two flags.
        _ => {
            let fused = f.flag("bias_gelu_fusion")?.unwrap_or(true) && on(f, "add_bias_linear")?;
            match fused || on(f, "gelu_tanh")? || on(f, "openai_gelu")? {
                true => Activation::GeluTanh,
                false => Activation::GeluErf,
            }
        }
    })
}

fn norm(f: &Fields<'_>) -> Result<Norm> {
    let offset = on(f, "add_rmsnorm_offset")?;
    match (f.text("normalization")?.unwrap_or("LayerNorm"), on(f, "apply_layernorm_1p")?) {
        ("RMSNorm", one) => Ok(if offset || one { Norm::RmsUnitOffset } else { Norm::Rms }),
        ("LayerNorm", false) => Ok(Norm::LayerNorm),
        (other, _) => {
            Err(f
                .unsupported(format!("normalization {other} is not supported; pass --normalization RMSNorm")))
        }
    }
}

fn position(f: &Fields<'_>) -> Result<Position> {
    let rotary = on(f, "use_rotary_position_embeddings")?;
    Ok(match f.text("position_embedding_type")? {
        Some("rope" | "deepseek4") => Position::Rope,
        None | Some("learned_absolute") if rotary => Position::Rope,
        Some("alibi") => Position::Alibi,
        Some("none") => Position::None,
        None | Some("learned_absolute") if f.flag("add_position_embedding")? == Some(false) => {
            return Err(f.unsupported(
                "--no-position-embedding beside learned positions is refused, as upstream does; pass --position-embedding-type",
            ));
        }
        None | Some("learned_absolute") => Position::Learned,
        Some(other) => {
            return Err(f.unsupported(format!(
                "position embedding {other} is not supported; pass --position-embedding-type rope"
            )));
        }
    })
}

fn scales(f: &Fields<'_>, hidden: usize, layers: usize) -> Result<Scales> {
    let embedding = match on(f, "input_embeds_norm")? {
        true => Some((hidden as f64).sqrt()),
        false => f.float("scale_emb")?.or(f.float("embedding_multiplier_scale")?),
    };
    let base = f.float("dim_model_base")?.map(|base| base / hidden as f64);
    Ok(Scales {
        embedding: embedding.unwrap_or(1.0),
        residual: f.float("scale_depth")?.map_or(1.0, |depth| depth / (layers as f64).sqrt()),
        logits: base.or(f.float("output_multiplier_scale")?).unwrap_or(1.0),
    })
}

fn latent(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    if on(f, "kv_compress")? {
        return compressed(f, c);
    }
    if !on(f, "multi_head_latent_attention")? && !on(f, "multi_latent_attention")? {
        return Ok(());
    }
    let need = |fields: [&'static str; 2]| f.need_of(&fields);
    let (q_rank, kv_rank) = (f.size("q_lora_rank")?, f.need("kv_lora_rank")?);
    let scaled = |flag, rank: Option<usize>| -> Result<f64> {
        let rank = rank.filter(|&r| r > 0 && on(f, flag).unwrap_or(false));
        Ok(rank.map_or(1.0, |r| (c.hidden as f64 / r as f64).sqrt()))
    };
    let mla = Mla {
        q_rank,
        kv_rank,
        nope: need(["qk_nope_head_dim", "qk_head_dim"])?,
        rope: need(["qk_rope_head_dim", "qk_pos_emb_head_dim"])?,
        value: f.need("v_head_dim")?,
        q_scale: scaled("enable_mla_scale_q_lora", q_rank)?,
        kv_scale: scaled("enable_mla_scale_kv_lora", Some(kv_rank))?,
    };
    c.attention = Attention::Latent(mla);
    c.groups = c.heads;
    c.head_dim = mla.nope.saturating_add(mla.rope);
    c.qk_norm = QkNorm::None; // --qk-layernorm names the norms of the latents
    c.rope.fraction = 1.0;
    // Upstream rotates neighbouring pairs in latent attention, except in MiniCPM3, which alone has scale_depth.
    c.rope.interleaved = f.float("scale_depth")?.is_none();
    indexer::read(f, c, false)
}

/// Attention to pooled entries: upstream's flags for DeepSeek-V4.
///
/// # Source
/// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/deepseek4/csa.py`: which ratio is what kind of layer, and
/// which flags of the rotation count.
fn compressed(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let size = |field, default| Ok::<_, Error>(f.size(field)?.unwrap_or(default));
    c.head_dim = f.need_of(&["qk_head_dim", "kv_lora_rank"])?;
    let rotated = f.need_of(&["qk_pos_emb_head_dim", "qk_rope_head_dim"])?;
    let fraction = rotated as f64 / c.head_dim.max(1) as f64;
    let fraction =
        if ((c.head_dim as f64 * fraction) as usize) < rotated { fraction.next_up() } else { fraction };
    let base = f.float("rope_theta")?.unwrap_or(10_000.0);
    c.rope = Rope { base, fraction, interleaved: true, scaling: RopeScaling::None };
    let scaling = match size("original_seq_len", 65_536)? {
        0 => RopeScaling::None,
        original => RopeScaling::Yarn {
            factor: f.float("rope_factor")?.unwrap_or(4.0),
            beta_fast: f.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: f.float("beta_slow")?.unwrap_or(1.0),
            original,
            mscale: None,
            attention_factor: Some(1.0),
            truncate: true,
        },
    };
    let far = f.float("compress_rope_theta")?.unwrap_or(40_000.0);
    c.attention = Attention::Compressed(Compressed {
        q_rank: f.need("q_lora_rank")?,
        out_groups: size("o_groups", 8)?,
        out_rank: size("o_lora_rank", 1024)?,
        rope: Rope { base: far, scaling, ..c.rope.clone() },
    });
    (c.groups, c.qk_norm) = (1, QkNorm::None);
    c.scores = Scores { sinks: true, ..c.scores };
    c.sliding_window = Some(size("sliding_window_size", 128)?);
    if on(f, "enable_mhc")? {
        c.hyper = Some(HyperConnections {
            streams: size("hc_mult", 4)?,
            rounds: size("hc_sinkhorn_iters", 20)?,
            eps: f.float("hc_eps")?.unwrap_or(1e-6),
        });
    }
    let (ratios, hashed) = (f.sizes("compress_ratios")?.unwrap_or_default(), size("n_hash_layers", 0)?);
    let layer = |l: usize| {
        let pooled = match ratios.get(l).copied().unwrap_or(0) {
            0 | 1 => None,
            ratio => Some(Pooled { ratio, picked: ratio == 4 }),
        };
        Layer { pooled, hashed: l < hashed, ..Layer::default() }
    };
    c.pattern = (0..c.layers).map(layer).collect();
    indexer::read(f, c, true)
}

fn mixers(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let layers = c.layers;
    if let Some(share) = f.size("cla_share_factor")?.filter(|&n| n > 1) {
        let layer = |l: usize| Layer {
            mixer: if l.is_multiple_of(share) { Mixer::Attention } else { Mixer::SharedKv },
            ..Layer::default()
        };
        c.pattern = (0..layers).map(layer).collect();
        if c.qk_norm == QkNorm::PerHead {
            c.qk_norm = QkNorm::PerHeadAfterRope;
        }
    }
    if let Some(interval) = f.size("full_attention_interval")?.filter(|&n| n > 0) {
        c.gated_delta = Some(GatedDelta {
            key_heads: f.need("linear_num_key_heads")?,
            value_heads: f.need("linear_num_value_heads")?,
            key_dim: f.need("linear_key_head_dim")?,
            value_dim: f.need("linear_value_head_dim")?,
            conv: f.size("linear_conv_kernel_dim")?.unwrap_or(4),
        });
        c.scores.output_gate = true;
        let layer = |l: usize| Layer {
            mixer: if (l + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::GatedDelta },
            ..Layer::default()
        };
        c.pattern = (0..layers).map(layer).collect();
    }
    let spec = f.get("spec").map(Value::to_string).unwrap_or_default();
    if f.text("hybrid_override_pattern")?.is_none() && !spec.contains("mamba") {
        return Ok(());
    }
    let head_dim = f.size("mamba_head_dim")?.unwrap_or(64);
    let inner =
        f.size("mamba_d_ssm")?.unwrap_or(c.hidden.saturating_mul(f.size("mamba_expand")?.unwrap_or(2)));
    c.mamba2 = Some(Mamba2 {
        heads: inner / head_dim.max(1),
        head_dim,
        groups: f.size("mamba_num_groups")?.unwrap_or(8),
        state: f.size("mamba_state_dim")?.unwrap_or(128),
        conv: f.size("mamba_d_conv")?.unwrap_or(4),
        chunk: f.size("mamba_chunk_size")?.unwrap_or(256),
        bias: false,
        conv_bias: true,
        dt_limit: (0.0, None),
        dt_init: (0.001, 0.1),
        residual_f32: true,
        norm_eps: Mamba2::megatron_norm_eps(),
    });
    let letters = hybrid::letters(f, layers)?;
    let layer = |letter| match letter {
        'M' => Ok(Layer { mixer: Mixer::Mamba2, feed: Feed::None, ..Layer::default() }),
        '*' => Ok(Layer { feed: Feed::None, ..Layer::default() }),
        '-' => Ok(Layer { mixer: Mixer::None, ..Layer::default() }),
        other => Err(f.unsupported(format!("hybrid pattern: expected M, * or -, got {other}"))),
    };
    c.pattern = letters.chars().map(layer).collect::<Result<_>>()?;
    if !c.has(Mixer::Attention) {
        c.position = Position::None;
        (c.heads, c.groups, c.head_dim) = (0, 0, 0);
    }
    Ok(())
}

fn experts(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let Some(experts) = f.size("num_experts")?.filter(|&n| n > 0) else { return Ok(()) };
    let kind = f.text("moe_router_load_balancing_type")?.unwrap_or("aux_loss");
    let by_score = match f.text("moe_router_score_function")?.unwrap_or("softmax") {
        "sigmoid" => Some(Score::Sigmoid),
        "sqrtsoftplus" => Some(Score::SqrtSoftplus),
        _ => None,
    };
    let noaux = kind == "noaux_tc";
    let score = match (kind, by_score) {
        ("sparsemixer_topk", _) => {
            Score::SparseMixer { jitter: f.float("moe_input_jitter_eps")?.unwrap_or(0.01) }
        }
        // As many experts as are chosen decide what they weigh, whatever else is said of scores.
        ("sinkhorn", _) if f.size("moe_router_topk")? == Some(1) => Score::Sigmoid,
        ("sinkhorn", _) => Score::Softmax,
        (_, Some(score)) => score,
        ("noaux_tc", None) => Score::Sigmoid,
        ("softmax_topk" | "group_limited_greedy" | "pai_megatron_aux_loss", None) => Score::Softmax,
        _ if on(f, "moe_router_pre_softmax")? => Score::Softmax,
        _ => Score::SoftmaxOfChosen,
    };
    let bias = noaux || on(f, "moe_router_enable_expert_bias")?;
    let groups = f.size_of(&["moe_router_num_groups", "n_group"])?;
    let keep = f.size_of(&["moe_router_group_topk", "topk_group"])?;
    let alike = on(f, BALANCED_GROUPS)?;
    let (by, limited) = match kind {
        _ if alike => (GroupScore::Alike, true),
        "group_limited_greedy" => (GroupScore::Best, true),
        _ => (GroupScore::BestTwo, score != Score::Softmax),
    };
    let keep = if alike { groups } else { keep };
    let groups = groups.zip(keep).filter(|g| g.0 > 1 && limited);
    let scale = f.float_of(&["moe_router_topk_scaling_factor", "routed_scaling_factor"])?.unwrap_or(1.0);
    let router = Router {
        score,
        bias,
        linear_bias: false,
        groups: groups.map(|(groups, keep)| GroupLimit { groups, keep, by }),
        // Upstream always divides these.
        renormalise: (on(f, "norm_topk_prob")? && kind != "sinkhorn") || score == Score::SqrtSoftplus,
        scale,
        f32: noaux || f.text("moe_router_dtype")? == Some("fp32"),
    };
    let ffn = f.size_of(&["moe_ffn_hidden_size", "moe_intermediate_size"])?.unwrap_or(c.ffn);
    let counted = f.size("n_shared_experts")?.map(|n| n.saturating_mul(ffn));
    let shared = f.size("moe_shared_expert_intermediate_size")?.or(counted).filter(|&n| n > 0);
    let gate = on(f, "shared_expert_gate")?;
    c.moe = Some(Moe {
        experts,
        top_k: f.size("moe_router_topk")?.unwrap_or(2),
        ffn,
        router,
        shared: shared.map(|ffn| SharedExpert { ffn, gate }),
        zero_experts: f.size("num_zero_experts")?.unwrap_or(0),
    });
    // Upstream's script of DeepSeek-V4 says -1: none.
    let first = f.float("first_k_dense_replace")?.map_or(0, |n| n.max(0.0) as usize);
    let (freq, listed) = layer_freq(f, c.layers)?;
    if c.pattern.is_empty() {
        c.pattern = vec![Layer::default(); c.layers];
    }
    for (l, layer) in c.pattern.iter_mut().enumerate() {
        let here = listed.as_ref().map_or(l % freq == 0, |list| list.get(l).copied().unwrap_or(true));
        layer.feed = if l >= first && here { Feed::Moe } else { Feed::Dense };
    }
    Ok(())
}

/// Every how many layers there are experts, or which layers have some. Head's flag is text: a number, or lists that are
/// repeated and joined, as in `[0]*3+[1]*58`.
fn layer_freq(f: &Fields<'_>, layers: usize) -> Result<(usize, Option<Vec<bool>>)> {
    const FIELD: &str = "moe_layer_freq";
    let text = match f.get(FIELD) {
        Some(Value::Array(list)) => {
            return Ok((1, Some(list.iter().map(|v| v.as_u64() != Some(0)).collect())));
        }
        Some(Value::String(text)) => text,
        // As Python's remainder has it, a negative number is as good as a positive one.
        Some(Value::Number(n)) if n.is_i64() => {
            return Ok((n.as_i64().map_or(1, i64::unsigned_abs).max(1) as usize, None));
        }
        _ => return Ok((f.size(FIELD)?.unwrap_or(1).max(1), None)),
    };
    if let Ok(freq) = text.trim().parse::<i64>() {
        return Ok((freq.unsigned_abs().max(1) as usize, None));
    }
    let wrong = || f.wrong(FIELD, "a number, or lists such as [0]*3+[1]*58", &Value::from(text.as_str()));
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '(' | ')')).collect();
    let mut all = Vec::new();
    for term in plain.split('+') {
        let (list, times) = term.split_once('*').unwrap_or((term, "1"));
        let (list, times) = if list.starts_with('[') { (list, times) } else { (times, list) };
        let inner = list.strip_prefix('[').and_then(|l| l.strip_suffix(']')).ok_or_else(wrong)?;
        let part: Vec<bool> = inner
            .split(',')
            .map(|n| n.parse::<usize>().map(|n| n > 0).map_err(|_| wrong()))
            .collect::<Result<_>>()?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        if part.len().saturating_mul(times).saturating_add(all.len()) > layers {
            return Err(wrong());
        }
        all.extend(part.repeat(times));
    }
    Ok((1, Some(all)))
}

fn dtype(f: &Fields) -> Result<Option<DType>> {
    if let Some(name) = f.text("params_dtype")? {
        return Ok(match name.trim_start_matches("torch.") {
            "float32" | "fp32" => Some(DType::F32),
            "float16" | "fp16" => Some(DType::F16),
            "bfloat16" | "bf16" => Some(DType::Bf16),
            _ => None,
        });
    }
    Ok(match (f.flag("bf16")?, f.flag("fp16")?) {
        (Some(true), _) => Some(DType::Bf16),
        (_, Some(true)) => Some(DType::F16),
        _ => None,
    })
}

fn rope(f: &Fields, max_positions: usize) -> Result<Rope> {
    let scaling = match f.text("rope_scaling_type")? {
        None => match f.float("rotary_seq_len_interpolation_factor")? {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        },
        Some("llama3") => RopeScaling::Llama3 {
            factor: f.float("rope_scaling_factor")?.unwrap_or(8.0),
            low: f.float("low_freq_factor")?.unwrap_or(1.0),
            high: f.float("high_freq_factor")?.unwrap_or(4.0),
            original: f.size("original_max_position_embeddings")?.unwrap_or(8192),
        },
        Some("yarn") => {
            let original = f.size("rope_scaling_original_max_position_embeddings")?.unwrap_or(max_positions);
            let mscale = f.float("rope_scaling_mscale")?.zip(f.float("rope_scaling_mscale_all_dim")?);
            RopeScaling::Yarn {
                factor: f.float("rope_scaling_factor")?.unwrap_or(1.0),
                beta_fast: f.float("rope_scaling_beta_fast")?.or(f.float("beta_fast")?).unwrap_or(32.0),
                beta_slow: f.float("rope_scaling_beta_slow")?.or(f.float("beta_slow")?).unwrap_or(1.0),
                original,
                mscale: mscale.filter(|(_, all)| *all != 0.0),
                attention_factor: None,
                truncate: true,
            }
        }
        Some("dynamic") => RopeScaling::Dynamic {
            factor: f.float("rope_scaling_factor")?.unwrap_or(1.0),
            original: f.size("original_max_position_embeddings")?.unwrap_or(max_positions),
        },
        Some("longrope") => {
            let original = f.size("rope_scaling_original_max_position_embeddings")?.unwrap_or(max_positions);
            let magnitude = f.float("short_mscale")?.zip(f.float("long_mscale")?);
            let factor = max_positions as f64 / original.max(1) as f64;
            let (short, long) = (divisors(f, "short_factor")?, divisors(f, "long_factor")?);
            RopeScaling::LongRope { short, long, original, factor, magnitude }
        }
        // PLM's own word for its rotation: plain, but for the pairing.
        Some("plm") => RopeScaling::None,
        Some(other) => {
            return Err(f.unsupported(format!(
                "rope scaling {other} is not supported; supported: llama3, yarn, longrope, dynamic"
            )));
        }
    };
    let scaling = match f.float("rope_scaling_alpha")? {
        Some(alpha) => RopeScaling::Ntk { alpha },
        None => scaling,
    };
    let partial = f.float("partial_rotary_factor")?.filter(|&x| x > 0.0);
    Ok(Rope {
        base: f.float("rotary_base")?.or(f.float("rope_theta")?).unwrap_or(10_000.0),
        fraction: partial.or(f.float("rotary_percent")?).unwrap_or(1.0),
        interleaved: on(f, "rotary_interleaved")? || on(f, "use_glm_rope")?,
        scaling,
    })
}

/// A list of numbers, or text with commas between them.
fn divisors(f: &Fields<'_>, field: &'static str) -> Result<Vec<f64>> {
    match f.get(field) {
        Some(v @ Value::String(text)) => text
            .trim_matches(['[', ']'])
            .split(',')
            .map(|n| n.trim().parse().map_err(|_| f.wrong(field, "numbers with commas between them", v)))
            .collect(),
        _ => f.floats(field)?.ok_or_else(|| f.missing(field)),
    }
}
