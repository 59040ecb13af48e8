//! Megatron arguments that every model has: sizes, norms, biases, positions, factors.

use ms_core::DType;
use serde_json::{Map, Value, json};

use crate::ModelConfig;
use crate::field::Field;
use crate::fields::Fields;
use crate::sizes::{Activation, Block, Layer, Position};
use crate::validate::{MOST_PARTS, heads_of_hidden};
use crate::{ArgNames, Error, Norm, QkNorm, Result};

/// What messages call these arguments.
pub(super) const SOURCE: &str = "megatron arguments";

/// In this order: later ones may depend on earlier ones.
pub(super) const SIZES: &[Field] = &[
    Field::size("hidden_size", |c| Some(&mut c.hidden)).needed(),
    Field::size("num_attention_heads", |c| Some(&mut c.heads)).needed(),
    LAYERS,
    ACTIVATION,
    GROUPS,
    HEAD_DIM,
    VOCABULARY,
    Field::told("make_vocab_size_divisible_by", |_| json!(1)),
    Field::told("tokenizer_type", |_| json!("PretrainedFromHF")),
    Field::flag_as(
        "add_bias_linear",
        |c| Some(c.bias.qkv && c.bias.out && c.bias.mlp),
        |c, on| (c.bias.qkv, c.bias.out, c.bias.mlp) = (on, on, on),
    ),
    Field::flag_as("add_qkv_bias", |c| Some(c.bias.qkv), |c, on| c.bias.qkv |= on),
    Field::flag_as("add_dense_bias", |c| Some(c.bias.out), |c, on| c.bias.out |= on),
    Field::flag("add_output_layer_bias", |c| Some(&mut c.bias.head)),
    Field::size("max_position_embeddings", |c| Some(&mut c.max_positions))
        .or(&["max_position_embeddings", "seq_length"]),
    Field::alias("seq_length", |c| Some(c.max_positions)),
    FFN,
    NORM,
    Field::float("norm_epsilon", |c| Some(&mut c.norm_eps)),
    Field::flag_as(
        "qk_layernorm",
        // Of latent attention it names the norms of the latents.
        |c| Some(c.attention.kind().normed(c)),
        |c, on| c.qk_norm = if on { QkNorm::PerHead } else { QkNorm::None },
    ),
    Field::told("apply_query_key_layer_scaling", |_| json!(false)),
    POSITION,
    WINDOW,
    QUERY_SCALAR,
    Field::maybe_float("attn_logit_softcapping", |c| Some(&mut c.scores.softcap))
        .written_if(|c| c.scores.softcap.is_some()),
    Field::maybe_float("output_logit_softcapping", |c| Some(&mut c.logit_softcap))
        .written_if(|c| c.logit_softcap.is_some()),
    Field::flag_as(
        "post_norm",
        |c| Some(c.block == Block::Sandwich),
        |c, on| c.block = if on { Block::Sandwich } else { Block::Pre },
    ),
    Field::flag("embed_layernorm", |c| Some(&mut c.embedding_norm)),
    SCALES,
    Field::size("mtp_num_layers", |c| Some(&mut c.mtp)).or(MODULES).written_if(|c| c.mtp > 0),
    Field::alias("num_nextn_predict_layers", |c| Some(c.mtp).filter(|&n| n > 0)),
    Field::reading(|_, c| match c.mtp {
        0..=MOST_PARTS => Ok(()),
        n => Err(Error::of(&[MODULES], format!("prediction layers: {n} are too many"))),
    }),
    Field::flag_as("untie_embeddings_and_output_weights", |c| Some(!c.tied), |c, on| c.tied = !on),
    Field::float("init_method_std", |c| Some(&mut c.init_std)),
    DTYPE,
];

/// Names of the number of prediction modules.
const MODULES: &[&str] = &["mtp_num_layers", "num_nextn_predict_layers"];

/// Slots, from which [`leave_out_empty`] removes the empty ones when everything has been read: per-layer arguments count by
/// slots.
const LAYERS: Field = Field::rule(
    |f, c| {
        c.layers = f.need("num_layers")?;
        if c.layers > MOST_PARTS {
            Err(Error::of(&[&["num_layers"]], format!("layers: {} are too many", c.layers)))
        } else {
            Ok(())
        }
    },
    |c, w| w.set("num_layers", json!(c.layers)),
);

const ACTIVATION: Field = Field::rule(
    |f, c| {
        c.activation = activation(f)?;
        Ok(())
    },
    |c, w| {
        let swiglu = matches!(c.activation, Activation::Swiglu | Activation::SwigluBounded { .. });
        let plain = c.activation == Activation::GeluTanh;
        w.set("swiglu", json!(swiglu));
        w.set("gelu_tanh", json!(c.activation == Activation::GegluTanh));
        w.set("geglu", json!(c.activation == Activation::GegluErf));
        w.set("squared_relu", json!(c.activation == Activation::ReluSquared));
        w.set("bias_gelu_fusion", json!(plain));
        // The fused kernel alone has the formula, and only with biases.
        w.set("openai_gelu", json!(plain && !c.bias.mlp));
        if let Activation::SwigluBounded { limit } = c.activation {
            w.set("swiglu_limit", json!(limit));
        }
    },
);

/// Flags that choose the activation, those that win first.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `core/transformer/mlp.py`: gated GELU by either of two flags, overriding others: with tanh, or with
/// the error function (`F.gelu`); with both, the former. Megatron-LM `core_r0.8.0`, `training/arguments.py`: squared ReLU
/// cannot be combined with SwiGLU.
const CHOICES: [(&str, Activation); 5] = [
    ("gelu_tanh", Activation::GegluTanh),
    ("geglu", Activation::GegluErf),
    ("squared_relu", Activation::ReluSquared),
    ("openai_gelu", Activation::GeluTanh),
    ("swiglu", Activation::Swiglu),
];

fn activation(f: &Fields<'_>) -> Result<Activation> {
    let mut chosen: Vec<(&str, Activation)> = Vec::new();
    for (flag, kind) in CHOICES {
        if f.on(flag)? {
            chosen.push((flag, kind));
        }
    }
    let spelling = |name: &str| format!("--{}", name.replace('_', "-"));
    let first = chosen.first().copied();
    // SwiGLU together with another gate still determines the layer's width, and of two GELU flags the first wins.
    let other = |&&(flag, kind): &&(&str, Activation)| {
        first.is_some_and(|(_, own)| own != kind && !(own.gated() && matches!(flag, "swiglu" | "geglu")))
    };
    if let (Some((flag, _)), Some((beside, _))) = (first, chosen.iter().find(other)) {
        let (flag, beside) = (spelling(flag), spelling(beside));
        return Err(f.unsupported(format!("{flag} beside {beside}: expected one activation")));
    }
    if let (Some("up_down"), Some((flag, _))) =
        (f.text("fc_type")?, chosen.iter().find(|(_, kind)| kind.gated()))
    {
        return Err(f.unsupported(format!("--fc-type up_down beside {}: it has no gate", spelling(flag))));
    }
    if let Some(limit) = f.float("swiglu_limit")?.filter(|&l| l > 0.0) {
        return match first {
            Some((_, Activation::Swiglu)) => Ok(Activation::SwigluBounded { limit }),
            Some((flag, _)) => {
                Err(f.unsupported(format!("--swiglu-limit beside {} is not supported", spelling(flag))))
            }
            None => Err(f.unsupported("--swiglu-limit without --swiglu is not supported")),
        };
    }
    // Without a choice it is GELU; the fused kernel of bias and GELU uses the approximation by tanh.
    let fused = f.flag("bias_gelu_fusion")?.unwrap_or(true) && f.on("add_bias_linear")?;
    let plain = if fused { Activation::GeluTanh } else { Activation::GeluErf };
    Ok(first.map_or(plain, |(_, kind)| kind))
}

/// Megatron's default with SwiGLU, and only with that: two thirds of 4 H, rounded down to a multiple of 64.
const FFN: Field = Field::rule(
    |f, c| {
        c.ffn = match (f.size("ffn_hidden_size")?, f.on("swiglu")?) {
            (Some(width), _) => width,
            (None, true) => c.hidden.saturating_mul(8) / 3 / 64 * 64,
            (None, false) => c.hidden.saturating_mul(4),
        };
        Ok(())
    },
    |c, w| w.set("ffn_hidden_size", json!(c.ffn)),
);

const GROUPS: Field = Field::rule(
    |f, c| {
        c.groups =
            if f.on("group_query_attention")? { f.size("num_query_groups")?.unwrap_or(1) } else { c.heads };
        Ok(())
    },
    |c, w| {
        w.set("group_query_attention", json!(c.groups != c.heads));
        w.set("num_query_groups", json!(c.groups));
    },
);

const HEAD_DIM: Field = Field::rule(
    |f, c| {
        let (hidden, heads) = (c.hidden, c.heads);
        c.head_dim = match f.size("kv_channels")? {
            Some(dim) => dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(heads_of_hidden(hidden, heads));
            }
        };
        Ok(())
    },
    |c, w| w.set("kv_channels", json!(c.head_dim)),
);

const VOCABULARY: Field = Field::rule(
    |f, c| {
        let (vocab, padded) = (f.size("vocab_size")?, f.size("padded_vocab_size")?);
        c.vocab = match (vocab, padded) {
            (Some(v), Some(p)) => v.min(p),
            (Some(v), None) | (None, Some(v)) => v,
            (None, None) => return Err(f.missing("padded_vocab_size")),
        };
        c.padded_vocab = padded.unwrap_or(c.vocab);
        Ok(())
    },
    |c, w| {
        w.set("vocab_size", json!(c.vocab));
        w.set("padded_vocab_size", json!(c.padded_vocab));
    },
);

const NORM: Field = Field::rule(
    |f, c| {
        let offset = f.on("add_rmsnorm_offset")?;
        // Upstream's norms of Megatron core's layers do not look at `apply_layernorm_1p`.
        c.norm = match f.text("normalization")?.unwrap_or("LayerNorm") {
            "RMSNorm" if offset => Norm::RmsUnitOffset,
            "RMSNorm" => Norm::Rms,
            "LayerNorm" => Norm::LayerNorm,
            other => {
                let what = format!("normalization {other} is not supported; pass --normalization RMSNorm");
                return Err(f.unsupported(what));
            }
        };
        Ok(())
    },
    |c, w| {
        w.set("normalization", json!(if c.norm == Norm::LayerNorm { "LayerNorm" } else { "RMSNorm" }));
        w.set("apply_layernorm_1p", json!(false));
        w.set("add_rmsnorm_offset", json!(c.norm == Norm::RmsUnitOffset));
    },
);

const POSITION: Field = Field::rule(
    |f, c| {
        c.position = position(f)?;
        Ok(())
    },
    |c, w| {
        let name = match c.position {
            Position::Rope => c.attention.kind().rotary_word(),
            Position::Alibi => "alibi",
            Position::Learned => "learned_absolute",
            Position::None => "none",
        };
        w.set("position_embedding_type", json!(name));
        // Upstream refuses false of anything but rotary positions.
        w.set("add_position_embedding", json!(c.position != Position::Rope));
        w.set("use_rotary_position_embeddings", json!(c.position == Position::Rope));
    },
);

fn position(f: &Fields<'_>) -> Result<Position> {
    let rotary = f.on("use_rotary_position_embeddings")?;
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

/// In all layers, or in every other one.
const WINDOW: Field = Field::rule(
    |f, c| {
        c.sliding_window = f.size_of(&["sliding_window", "interleave_sliding_window"])?;
        if f.size("interleave_sliding_window")?.is_some() {
            let layer = |l: usize| Layer { global: l % 2 == 1, ..Layer::default() };
            c.pattern = (0..c.layers).map(layer).collect();
        }
        Ok(())
    },
    |c, w| match c.sliding_window {
        // A size of its own, with others of attention to pooled entries.
        Some(_) if c.attention.kind().has_window() => w.set("sliding_window", Value::Null),
        Some(window) if !c.pattern.is_empty() => {
            w.set("sliding_window", Value::Null);
            w.set("interleave_sliding_window", json!(window));
        }
        window => w.set("sliding_window", json!(window)),
    },
);

const QUERY_SCALAR: Field = Field::float_as(
    "query_pre_attn_scalar",
    |c| {
        // The whole number that a family's file has, unless it is not quite that.
        let scale = c.scores.scale?;
        let (exact, round) = (scale.powi(-2), (scale.powi(-2) * 1e6).round() / 1e6);
        Some(if (round.powf(-0.5) - scale).abs() <= 1e-15 * scale { round } else { exact })
    },
    |c, scalar| c.scores.scale = (scalar != c.head_dim as f64).then(|| scalar.powf(-0.5)),
);

/// Factors that are given together multiply. The two on the embedding are one where nothing acts between them: not with learned
/// positions, nor where prediction modules see the first alone.
///
/// # Source
/// MindSpeed-LLM 2.0.0, `mindspeed_llm/core/tensor_parallel/layers.py`, `vocab_parallel_embedding_forward`;
/// `core/models/gpt/gpt_model.py`, `gpt_model_forward`; `core/transformer/transformer_block.py`.
const SCALES: Field = Field::rule(
    |f, c| {
        let factor = |name| Ok::<_, Error>(f.float(name)?.unwrap_or(1.0));
        let given = |name| Ok::<_, Error>(f.float(name)?.filter(|&x| x != 0.0).unwrap_or(1.0)); // 0 is none to upstream
        let (words, sum) = (given("embedding_multiplier_scale")?, factor("scale_emb")?);
        let base = f.float("dim_model_base")?.map_or(1.0, |base| base / c.hidden as f64);
        (c.scales.embedding, c.scales.summed) = match c.position {
            Position::Learned => (words, sum),
            _ if MODULES.iter().try_fold(0, |n, name| Ok::<_, Error>(n + f.size(name)?.unwrap_or(0)))?
                > 0 =>
            {
                (words, sum)
            }
            _ => (words * sum, 1.0),
        };
        c.scales.root = f.on("input_embeds_norm")?;
        c.scales.residual = f.float("scale_depth")?.map_or(1.0, |depth| depth / (c.layers as f64).sqrt());
        c.scales.logits = base * given("output_multiplier_scale")?;
        Ok(())
    },
    |c, w| {
        let s = &c.scales;
        if s.root {
            w.set("input_embeds_norm", json!(true));
        }
        if s.summed != 1.0 {
            w.set("scale_emb", json!(s.summed));
        }
        if s.embedding != 1.0 && (c.position == Position::Learned || c.mtp > 0) {
            w.set("embedding_multiplier_scale", json!(s.embedding));
        } else if s.embedding != 1.0 {
            let name = if s.residual == 1.0 { "embedding_multiplier_scale" } else { "scale_emb" };
            w.set(name, json!(s.embedding));
        }
        if s.residual != 1.0 {
            w.set("scale_depth", json!(s.residual * (c.layers as f64).sqrt()));
            w.set("dim_model_base", json!(s.logits * c.hidden as f64));
        } else if s.logits != 1.0 {
            w.set("output_multiplier_scale", json!(s.logits));
        }
    },
);

const DTYPE: Field = Field::rule(
    |f, c| {
        c.dtype = match f.text("params_dtype")? {
            Some(name) => match name.trim_start_matches("torch.") {
                "float32" | "fp32" => Some(DType::F32),
                "float16" | "fp16" => Some(DType::F16),
                "bfloat16" | "bf16" => Some(DType::Bf16),
                _ => None,
            },
            None if f.on("bf16")? => Some(DType::Bf16),
            None => f.on("fp16")?.then_some(DType::F16),
        };
        Ok(())
    },
    |c, w| {
        w.set("bf16", json!(c.dtype == Some(DType::Bf16)));
        w.set("fp16", json!(c.dtype == Some(DType::F16)));
    },
);

/// Slots of `--noop-layers`: indices into the list of layers with the empty ones in it.
///
/// # Errors
/// [`Error::Field`] for text that is not a comma-separated list of numbers.
pub fn noop_layers(args: &Map<String, Value>) -> Result<Vec<usize>> {
    noop_slots(&Fields { source: SOURCE, map: args, asked: None })
}

/// Takes the slots out that have no layer. Upstream counts by slots wherever a layer's number says what it is, or the number of
/// layers how large something is.
///
/// # Errors
/// For a slot beyond the last one, and if none has a layer.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `mindspeed_llm/core/transformer/transformer_block.py`,
/// `_transformer_block_build_layers`.
pub(super) fn leave_out_empty(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    const SLOTS: ArgNames = &[&["noop_layers"], &["num_layers"]];
    let (empty, layers) = (noop_slots(f)?, c.layers);
    if let Some(slot) = empty.iter().find(|&&slot| slot >= layers) {
        return Err(Error::of(
            SLOTS,
            format!("empty slots: expected numbers below that of layers, {layers}, found {slot}"),
        ));
    }
    if !empty.is_empty() && empty.len() == layers {
        return Err(Error::of(SLOTS, format!("all {layers} layers are empty slots")));
    }
    let mut slot = 0..;
    c.pattern.retain(|_| slot.next().is_none_or(|slot| !empty.contains(&slot)));
    c.layers -= empty.len();
    c.empty_slots = empty.len();
    Ok(())
}

/// The model with a layer in every slot (those without a name are empty), for arguments that count by slots.
pub fn with_empty_slots(c: &ModelConfig, slots: &[Option<usize>]) -> ModelConfig {
    let mut last = 0;
    let mut filled = |slot: &Option<usize>| {
        // Whatever stands in an empty one is left out again: most often that of the layer before makes a short list.
        last = slot.unwrap_or(last);
        c.layer(last)
    };
    let pattern = if c.pattern.is_empty() { Vec::new() } else { slots.iter().map(&mut filled).collect() };
    ModelConfig { layers: slots.len(), pattern, empty_slots: 0, ..c.clone() }
}

fn noop_slots(f: &Fields<'_>) -> Result<Vec<usize>> {
    let wrong = |v: &Value| f.wrong("noop_layers", "numbers with commas between them", v);
    let mut slots: Vec<usize> = match f.map.get("noop_layers") {
        None | Some(Value::Null) => Vec::new(),
        Some(v @ Value::String(text)) => {
            text.split(',').map(|n| n.trim().parse().map_err(|_| wrong(v))).collect::<Result<_>>()?
        }
        // Megatron converts the string to a set of integers, which is a list here.
        Some(v @ Value::Array(items)) => items
            .iter()
            .map(|n| n.as_u64().map(|n| n as usize).ok_or_else(|| wrong(v)))
            .collect::<Result<_>>()?,
        Some(v) => return Err(wrong(v)),
    };
    slots.sort_unstable();
    slots.dedup();
    Ok(slots)
}
