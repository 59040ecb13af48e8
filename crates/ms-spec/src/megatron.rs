//! Megatron's arguments: those of a command line, and those stored in a checkpoint.

use ms_core::DType;
use serde_json::{Map, Value, json};

use crate::hf::{Fields, read_fields};
use crate::{Activation, Biases, Error, Family, ModelConfig, Norm, QkNorm, Result, Rope, RopeScaling};

const SOURCE: &str = "megatron arguments";

/// Slots of `--noop-layers`: indices into the list of layers with the empty ones in it.
///
/// # Errors
/// [`Error::Field`] for text that is no comma-separated list of numbers.
pub fn noop_layers(args: &Map<String, Value>) -> Result<Vec<usize>> {
    let wrong = |v: &Value| Error::Field {
        source_name: SOURCE,
        field: "noop_layers",
        want: "numbers with commas between them",
        got: v.to_string(),
    };
    match args.get("noop_layers") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(v @ Value::String(text)) => {
            text.split(',').map(|n| n.trim().parse().map_err(|_| wrong(v))).collect()
        }
        // Megatron turns the text into a set of integers, which a checkpoint may hold as a list.
        Some(v @ Value::Array(items)) => {
            items.iter().map(|n| n.as_u64().map(|n| n as usize).ok_or_else(|| wrong(v))).collect()
        }
        Some(v) => Err(wrong(v)),
    }
}

/// Reads a configuration from arguments by their `dest` names, given ones and defaults alike.
///
/// The arguments of head's converter (Hugging Face's field names) are understood too. `num_layers` counts empty
/// slots (`noop_layers`); the result does not.
///
/// # Errors
/// A missing or malformed argument, or a feature that is not supported.
pub fn from_args(args: &Map<String, Value>) -> Result<ModelConfig> {
    let f = Fields { source: SOURCE, map: args };
    if args.contains_key("num_hidden_layers") && !args.contains_key("ffn_hidden_size") {
        return read_fields(&f);
    }
    let flag = |field| f.flag(field).map(|v| v.unwrap_or(false));
    if let Some(norm) = f.text("normalization")?
        && norm != "RMSNorm"
    {
        return Err(
            f.unsupported(format!("normalization {norm} is not supported; pass --normalization RMSNorm"))
        );
    }
    if !flag("swiglu")? {
        return Err(f.unsupported("a feed-forward layer without --swiglu is not supported"));
    }
    let rotary = flag("use_rotary_position_embeddings")?;
    match f.text("position_embedding_type")? {
        Some("rope") => {}
        None | Some("learned_absolute") if rotary => {}
        other => {
            let other = other.unwrap_or("learned_absolute");
            return Err(f.unsupported(format!(
                "position embedding {other} is not supported; pass --position-embedding-type rope"
            )));
        }
    }
    let (hidden, heads) = (f.need("hidden_size")?, f.need("num_attention_heads")?);
    let slots = f.need("num_layers")?;
    let noop = noop_layers(args)?.len();
    let layers = slots.saturating_sub(noop);
    let groups = match flag("group_query_attention")? {
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
    let vocab = f.size("vocab_size")?;
    let padded = f.size("padded_vocab_size")?;
    let vocab = match (vocab, padded) {
        (Some(v), Some(p)) => v.min(p),
        (Some(v), None) | (None, Some(v)) => v,
        (None, None) => return Err(Error::Missing { source_name: SOURCE, field: "padded_vocab_size" }),
    };
    let all_biases = flag("add_bias_linear")?;
    let qkv_bias = all_biases || flag("add_qkv_bias")?;
    let qk_norm = if flag("qk_layernorm")? { QkNorm::PerHead } else { QkNorm::None };
    let family = match (qk_norm, qkv_bias, all_biases) {
        (QkNorm::PerHead, ..) => Family::Qwen3,
        (_, true, false) => Family::Qwen2,
        _ => Family::Llama,
    };
    let max_positions = f.size("max_position_embeddings")?.or(f.size("seq_length")?).unwrap_or(2048);
    ModelConfig {
        family,
        layers,
        hidden,
        // Megatron's default for gated layers: two thirds of 4 H, rounded down to a multiple of 64.
        ffn: f.size("ffn_hidden_size")?.unwrap_or(4 * hidden * 2 / 3 / 64 * 64),
        heads,
        groups,
        head_dim,
        vocab,
        padded_vocab: padded.unwrap_or(vocab),
        max_positions,
        activation: Activation::Swiglu,
        norm: Norm::Rms,
        norm_eps: f.float("norm_epsilon")?.unwrap_or(1e-5),
        bias: Biases {
            qkv: qkv_bias,
            out: all_biases || flag("add_dense_bias")?,
            mlp: all_biases,
            head: false,
        },
        qk_norm,
        rope: rope(&f, max_positions)?,
        sliding_window: f.size("sliding_window")?,
        tied: !flag("untie_embeddings_and_output_weights")?,
        init_std: f.float("init_method_std")?.unwrap_or(0.02),
        dtype: dtype(&f)?,
        ..ModelConfig::default()
    }
    .validate()
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
        Some(other) => {
            return Err(
                f.unsupported(format!("rope scaling {other} is not supported; supported: llama3, yarn"))
            );
        }
    };
    Ok(Rope {
        base: f.float("rotary_base")?.or(f.float("rope_theta")?).unwrap_or(10_000.0),
        fraction: f.float("rotary_percent")?.unwrap_or(1.0),
        interleaved: f.flag("rotary_interleaved")?.unwrap_or(false),
        scaling,
    })
}

/// The arguments that a Megatron reader takes from a checkpoint to know the architecture.
///
/// Sizes of the cut (`tensor_model_parallel_size` and so on) are the layout's to add.
pub fn to_args(config: &ModelConfig) -> Map<String, Value> {
    let c = config;
    // Megatron's flag is an integer; a float base is kept as it is.
    let base = if c.rope.base.fract() == 0.0 { json!(c.rope.base as u64) } else { json!(c.rope.base) };
    let all_biases = c.bias.qkv && c.bias.out && c.bias.mlp;
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
        ("position_embedding_type", json!("rope")),
        ("add_position_embedding", json!(false)),
        ("use_rotary_position_embeddings", json!(true)),
        ("rotary_base", json!(base)),
        ("rotary_percent", json!(c.rope.fraction)),
        ("rotary_interleaved", json!(c.rope.interleaved)),
        ("rotary_seq_len_interpolation_factor", Value::Null),
        ("rope_scaling_type", Value::Null),
        ("add_bias_linear", json!(all_biases)),
        ("add_qkv_bias", json!(c.bias.qkv)),
        ("add_dense_bias", json!(c.bias.out)),
        ("swiglu", json!(c.activation == Activation::Swiglu)),
        ("untie_embeddings_and_output_weights", json!(!c.tied)),
        ("apply_layernorm_1p", json!(false)),
        ("normalization", json!("RMSNorm")),
        ("norm_epsilon", json!(c.norm_eps)),
        ("qk_layernorm", json!(c.qk_norm == QkNorm::PerHead)),
        ("init_method_std", json!(c.init_std)),
        ("vocab_size", json!(c.vocab)),
        ("padded_vocab_size", json!(c.padded_vocab)),
        ("make_vocab_size_divisible_by", json!(1)),
        ("apply_query_key_layer_scaling", json!(false)),
        ("tokenizer_type", json!("PretrainedFromHF")),
        ("sliding_window", json!(c.sliding_window)),
        ("post_norm", json!(false)),
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
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf;

    #[test]
    fn a_configuration_survives_the_way_through_arguments() {
        for (family, extra) in [
            (
                "llama",
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
            ),
            ("qwen2", json!({"tie_word_embeddings": true, "num_key_value_heads": 2})),
            ("qwen3", json!({"head_dim": 32, "rope_theta": 1e6, "torch_dtype": "bfloat16"})),
        ] {
            let mut json = json!({
                "model_type": family, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-6
            });
            for (key, value) in extra.as_object().unwrap() {
                json[key] = value.clone();
            }
            let config = hf::read_config(&json).unwrap();
            assert_eq!(from_args(&to_args(&config)).unwrap(), config, "{family}");
        }
    }

    #[test]
    fn empty_slots_are_not_layers() {
        let json = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
            "num_attention_heads": 4, "vocab_size": 100
        });
        let mut args = to_args(&hf::read_config(&json).unwrap());
        args.insert("noop_layers".into(), json!("1,5"));
        assert_eq!(from_args(&args).unwrap().layers, 4);
        args.insert("noop_layers".into(), json!("1;5"));
        assert!(from_args(&args).is_err());
    }

    #[test]
    fn what_is_not_supported_says_which_flag_would_do() {
        let mut args = Map::new();
        args.insert("swiglu".into(), json!(true));
        args.insert("normalization".into(), json!("LayerNorm"));
        assert_eq!(
            from_args(&args).unwrap_err().to_string(),
            "megatron arguments: normalization LayerNorm is not supported; pass --normalization RMSNorm"
        );
    }
}
