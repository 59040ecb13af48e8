//! Reads `config.json`: what all families share, from the family's row.

use ms_core::DType;
use serde_json::Value;

use super::{Fields, deepseek_v4, moe, rope, special, step};
use crate::config::MOST_PARTS;
use crate::family::{BiasRule, ROWS, Row, WindowRule};
use crate::parts::{Activation, Biases, Layer};
use crate::{Error, Family, ModelConfig, Norm, Result, Rope};

const LAYERS: &[&str] = &["num_hidden_layers", "num_layers", "n_layer"];
const HIDDEN: &[&str] = &["hidden_size", "n_embed", "n_embd"];
const HEADS: &[&str] = &["num_attention_heads", "n_head"];
const FFN: &[&str] = &["intermediate_size", "ffn_hidden_size", "n_inner"];
const POSITIONS: &[&str] = &[
    "max_position_embeddings",
    "model_max_length",
    "n_positions",
    "seq_length",
    "n_ctx",
    "max_sequence_length",
];
const EPS: &[&str] = &[
    "rms_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_eps",
    "layer_norm_eps",
    "norm_epsilon",
];

pub(crate) fn read_fields(f: &Fields<'_>) -> Result<ModelConfig> {
    let model_type = f.text("model_type")?.ok_or_else(|| f.missing("model_type"))?;
    let Some(row) = ROWS.iter().find(|r| r.types.contains(&model_type)) else {
        let known: Vec<&str> = ROWS.iter().map(|r| r.types[0]).collect();
        let known = known.join(", ");
        return Err(f.unsupported(format!("model type `{model_type}` is not supported; supported: {known}")));
    };
    let mut c = common(f, row)?;
    special::read(f, &mut c)?;
    moe::read(f, &mut c)?;
    special::after_experts(f, &mut c)?;
    c.validate()
}

fn common(f: &Fields<'_>, row: &Row) -> Result<ModelConfig> {
    // Files of LongCat say both; their second counts the halves of a layer.
    let depth = match row.family {
        Family::LongCat => f.size("num_layers")?.or(f.size("num_hidden_layers")?.map(|halves| halves / 2)),
        _ => None,
    };
    let hidden = f.need_of(HIDDEN)?;
    let layers = depth.map_or_else(|| f.need_of(LAYERS), Ok)?;
    if layers > MOST_PARTS {
        return Err(Error::Inconsistent(format!("layers: expected 1 to {MOST_PARTS}, got {layers}")));
    }
    let recurrent = matches!(row.family, Family::Mamba2 | Family::Mamba3);
    let heads = if recurrent { 0 } else { f.need_of(HEADS)? };
    let max_positions = f.size_of(POSITIONS)?.unwrap_or(row.max_positions);
    if max_positions == 0 {
        return Err(f.unsupported("field `max_position_embeddings`: expected at least 1, got 0"));
    }
    let vocab = f.need_of(&["vocab_size", "padded_vocab_size"])?;
    let head_dim = match f.size_of(&["head_dim", "kv_channels", "attention_head_dim"])?.or(row.head_dim) {
        _ if recurrent => 0,
        Some(d) => d,
        None if heads > 0 && hidden % heads == 0 => hidden / heads,
        None => {
            return Err(Error::Inconsistent(format!(
                "hidden size {hidden} does not divide by {heads} heads"
            )));
        }
    };
    let eos = match f.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
        Some(id) => id.as_u64().into_iter().collect(),
        None => Vec::new(),
    };
    let ffn = match f.size_of(FFN)? {
        Some(n) => n,
        None if matches!(row.family, Family::Bloom | Family::Gpt2) => hidden.saturating_mul(4),
        None if recurrent => 0,
        // There are experts alone.
        None if row.family == Family::DeepseekV4 => f.need("moe_intermediate_size")?,
        None => return Err(f.missing(FFN[0])),
    };
    let given = f.flag("attention_bias")?;
    let (qkv, out) = match row.bias {
        BiasRule::Never => (false, false),
        BiasRule::Qkv => (true, false),
        BiasRule::All => (true, true),
        BiasRule::Field(default) => {
            let on = given.unwrap_or(default);
            (on, on)
        }
        BiasRule::QkvField(default) => (given.unwrap_or(default), false),
    };
    let mut c = ModelConfig {
        family: row.family,
        layers,
        hidden,
        ffn,
        heads,
        groups: match row.family {
            // Classes without the field.
            Family::Bloom | Family::Gpt2 => heads,
            _ => f.size("num_key_value_heads")?.unwrap_or(heads),
        },
        head_dim,
        vocab,
        padded_vocab: vocab,
        max_positions,
        activation: activation(f, row)?,
        norm: row.norm,
        norm_eps: f.float_of(EPS)?.unwrap_or(row.eps),
        bias: Biases {
            qkv,
            out,
            mlp: match row.norm {
                Norm::LayerNorm if row.bias == BiasRule::All => true,
                _ => f.flag("mlp_bias")?.unwrap_or(false),
            },
            head: false,
        },
        qk_norm: row.qk_norm,
        rope: match row.window {
            WindowRule::Listed => Rope::plain(row.rope_base), // by kind of layer, once these are known
            _ => rope::read(f, row, max_positions)?,
        },
        tied: f.flag("tie_word_embeddings")?.unwrap_or(row.tied),
        init_std: f.float("initializer_range")?.unwrap_or(0.02),
        dtype: f.text("dtype")?.or(f.text("torch_dtype")?).and_then(dtype_of),
        bos: f.get("bos_token_id").and_then(Value::as_u64),
        eos,
        ..ModelConfig::default()
    };
    read_window(f, row, &mut c)?;
    if row.family == Family::Step3p5 {
        step::attention(f, row, &mut c)?;
    }
    if row.family == Family::DeepseekV4 {
        deepseek_v4::read(f, row, &mut c)?;
    }
    Ok(c)
}

fn activation(f: &Fields<'_>, row: &Row) -> Result<Activation> {
    let given = match f.text("hidden_activation")? {
        Some(name) => Some(name),
        None => f.text("hidden_act")?.or(f.text("activation_function")?),
    };
    let want: &[&str] = match row.activation {
        Activation::Swiglu | Activation::SwigluClamped { .. } | Activation::SwigluBounded { .. } => {
            &["silu", "swish"]
        }
        // Early Gemma files say `gelu` and mean the approximation by tanh.
        Activation::GegluTanh => &["gelu_pytorch_tanh", "gelu"],
        Activation::GeluTanh => &["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"],
        Activation::GeluErf => &["gelu"],
        Activation::ReluSquared => &["relu2"],
    };
    match given {
        Some("gelu") if row.family == Family::Gpt2 => Ok(Activation::GeluErf),
        Some(name) if !want.contains(&name) => {
            let want = want.join(", ");
            Err(f.unsupported(format!("activation `{name}` is not supported; supported: {want}")))
        }
        _ => Ok(row.activation),
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    Some(match name.trim_start_matches("torch.") {
        "float64" => DType::F64,
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        _ => return None,
    })
}

fn read_window(f: &Fields<'_>, row: &Row, c: &mut ModelConfig) -> Result<()> {
    let given = |default: Option<usize>| match f.map.contains_key("sliding_window") {
        true => f.size("sliding_window"),
        false => Ok(default),
    };
    let (window, global): (Option<usize>, Vec<bool>) = match row.window {
        WindowRule::Never => return Ok(()),
        WindowRule::Always(default) => (given(default)?, Vec::new()),
        WindowRule::Switched(default) => {
            if !f.flag("use_sliding_window")?.unwrap_or(false) {
                return Ok(());
            }
            // The layers below max_window_layers attend to everything.
            let first = f.size("max_window_layers")?.unwrap_or(28);
            (given(Some(default))?, (0..c.layers).map(|l| l < first).collect())
        }
        WindowRule::Alternating(default) => {
            (given(Some(default))?, (0..c.layers).map(|l| l % 2 == 1).collect())
        }
        WindowRule::Listed => (given(None)?, vec![true; c.layers]),
    };
    let global = match f.texts("layer_types")? {
        // Entries behind the last layer are for prediction.
        Some(types) => types.iter().take(c.layers).map(|t| *t == "full_attention").collect(),
        None => global,
    };
    if window.is_none() || (!global.is_empty() && global.iter().all(|g| *g)) {
        return Ok(());
    }
    c.sliding_window = window;
    c.pattern = global.into_iter().map(|global| Layer { global, ..Layer::default() }).collect();
    Ok(())
}
