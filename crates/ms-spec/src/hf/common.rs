//! Fields shared by many classes.

use ms_core::DType;
use serde_json::{Value, json};

use crate::field::Dialect;
use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::{Activation, Layer, Position};
use crate::validate::MOST_PARTS;
use crate::{Error, ModelConfig, Norm, Result};

/// What a class calls the sizes that every model has.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) layers: &'static str,
    pub(super) hidden: &'static str,
    pub(super) heads: &'static str,
    pub(super) ffn: &'static str,
    pub(super) eps: &'static str,
    pub(super) positions: &'static str,
}

/// The usual names.
pub(super) const NAMES: Names = Names {
    layers: "num_hidden_layers",
    hidden: "hidden_size",
    heads: "num_attention_heads",
    ffn: "intermediate_size",
    eps: "rms_norm_eps",
    positions: "max_position_embeddings",
};

const LAYERS: &[&str] = &["num_hidden_layers", "num_layers", "n_layer"];
const HIDDEN: &[&str] = &["hidden_size", "n_embed", "n_embd"];
const HEADS: &[&str] = &["num_attention_heads", "n_head"];
pub(super) const FFN: &[&str] = &["intermediate_size", "ffn_hidden_size", "n_inner"];
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
const HEAD_DIM: &[&str] = &["head_dim", "kv_channels", "attention_head_dim"];

/// Vocabulary, depth, width, epsilon, length. A file may use any class's names; `names` are those that are written.
pub(super) const fn sizes(names: Names) -> [Field; 6] {
    [
        Field::size_as(
            "vocab_size",
            |c| Some(c.vocab),
            |c, n| {
                (c.vocab, c.padded_vocab) = (n, n);
            },
        )
        .or(&["vocab_size", "padded_vocab_size"])
        .needed(),
        Field::size(names.layers, |c| Some(&mut c.layers)).or(LAYERS).needed(),
        Field::size(names.hidden, |c| Some(&mut c.hidden)).or(HIDDEN).needed(),
        Field::float(names.eps, |c| Some(&mut c.norm_eps)).or(EPS),
        Field::size(names.positions, |c| Some(&mut c.max_positions)).or(POSITIONS),
        BOUNDS,
    ]
}

/// Limits for lists in the fields that follow.
const BOUNDS: Field = Field::reading(|f, c| {
    if c.layers == 0 || c.layers > MOST_PARTS {
        let got = c.layers;
        return Err(Error::inconsistent(format!("layers: expected 1 to {MOST_PARTS}, got {got}")));
    }
    match c.max_positions {
        0 => Err(f.unsupported("field `max_position_embeddings`: expected at least 1, got 0")),
        _ => Ok(()),
    }
});

/// Query heads, and the width of dense layers.
pub(super) const fn heads(names: Names) -> [Field; 2] {
    [
        Field::size(names.heads, |c| Some(&mut c.heads)).or(HEADS).needed(),
        Field::size(names.ffn, |c| Some(&mut c.ffn)).or(FFN).needed(),
    ]
}

/// The sizes of a decoder without recurrent layers, under the usual names.
pub(super) const SIZES: &[Field] = {
    let ([a, b, c, d, e, f], [g, h]) = (sizes(NAMES), heads(NAMES));
    &[a, b, c, d, e, f, g, h]
};

/// The same, and key/value heads and the size of a head.
pub(super) const DECODER: &[Field] = {
    let ([a, b, c, d, e, f], [g, h]) = (sizes(NAMES), heads(NAMES));
    &[a, b, c, d, e, f, g, h, NULLS, GROUPS, head_dim("head_dim"), NO_DROPOUT]
};

pub(super) const GROUPS: Field =
    Field::size("num_key_value_heads", |c| Some(&mut c.groups)).else_by(as_many_groups);

pub(super) const NO_DROPOUT: Field = Field::told("attention_dropout", |_| json!(0.0));

/// Elements of a head; where nothing is said, what the class assumes, or else the heads share the hidden size.
pub(super) const fn head_dim(name: &'static str) -> Field {
    Field::size(name, |c| Some(&mut c.head_dim)).or(HEAD_DIM).else_by(equal_heads)
}

/// Null is not silence: heads share the hidden size, and each has a key, whatever the class assumes (transformers 5.24,
/// `InternLM3Config`, `SeedOssConfig`).
const NULLS: Field = Field::reading(|f, c| {
    let is_null = |name: &str| f.map.get(name).is_some_and(Value::is_null);
    if is_null("head_dim") {
        c.head_dim = 0;
    }
    if is_null("num_key_value_heads") {
        c.groups = 0;
    }
    Ok(())
});

/// As many key/value heads as query heads, where the class assumes no number.
fn as_many_groups(c: &mut ModelConfig) {
    if c.groups == 0 {
        c.groups = c.heads;
    }
}

/// Where the class assumes no size, heads share the hidden size. One that does not divide leaves them without, which is
/// then refused.
fn equal_heads(c: &mut ModelConfig) {
    if c.head_dim == 0 && c.heads > 0 && c.hidden.is_multiple_of(c.heads) {
        c.head_dim = c.hidden / c.heads;
    }
}

/// Classes without a field for either.
pub(super) const WHOLE_HEADS: &[Field] = &[Field::then(as_many_groups), Field::then(equal_heads)];

/// Biases of all attention projections.
pub(super) const BIAS: Field = Field::flag_as(
    "attention_bias",
    |c| Some(c.bias.qkv),
    |c, on| {
        (c.bias.qkv, c.bias.out) = (on, on);
    },
);

/// Biases of queries, keys and values.
pub(super) const QKV_BIAS: Field = Field::flag("attention_bias", |c| Some(&mut c.bias.qkv));

pub(super) const MLP_BIAS: Field = Field::flag("mlp_bias", |c| Some(&mut c.bias.mlp));

/// The activation's name, where the class has one to choose.
pub(super) const fn activation(name: &'static str) -> Field {
    Field::word(name, activation_word, take_activation, activation_words).or(ACTIVATIONS)
}

pub(super) const ACTIVATIONS: &[&str] = &["hidden_activation", "hidden_act", "activation_function"];

pub(super) const ACTIVATION: Field = activation("hidden_act");

fn activation_words(c: &ModelConfig) -> &'static [&'static str] {
    match c.activation {
        Activation::Swiglu | Activation::SwigluClamped { .. } | Activation::SwigluBounded { .. } => {
            &["silu", "swish"]
        }
        // Early Gemma files say `gelu` and mean the approximation by tanh.
        Activation::GegluTanh => &["gelu_pytorch_tanh", "gelu"],
        Activation::GeluTanh => &["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"],
        Activation::GeluErf | Activation::GegluErf => &["gelu"],
        Activation::ReluSquared => &["relu2"],
    }
}

fn activation_word(c: &ModelConfig) -> Option<&'static str> {
    activation_words(c).first().copied()
}

fn take_activation(c: &mut ModelConfig, word: &str) -> bool {
    activation_words(c).contains(&word)
}

/// `q . k` is multiplied by the root of one over this number.
pub(super) const QUERY_SCALAR: Field = Field::whole_as(
    "query_pre_attn_scalar",
    |c| Some(c.scores.scale.map_or(c.head_dim as f64, |s| (s.powi(-2) * 1e6).round() / 1e6)),
    |c, scalar| c.scores.scale = (scalar != c.head_dim as f64).then(|| scalar.powf(-0.5)),
);

/// The embedding is multiplied by the root of the hidden size.
pub(super) const ROOT_EMBEDDING: Field = Field::then(|c| c.scales.root = true);

/// A sliding window in every layer.
///
/// # Source
/// transformers 5.24: `layer_types` changes nothing in the classes of `mistral`, which warns of it, `mixtral`, `phi3`, `phimoe`.
pub(super) const WINDOW: Field = Field::rule(
    |f, c| {
        read_window(f, c)?;
        let listed = f.texts("layer_types")?.unwrap_or_default();
        if c.sliding_window.is_some() && listed.iter().any(|kind| *kind != "sliding_attention") {
            return Err(f.wrong("layer_types", "sliding_attention in all layers", &Value::from(listed)));
        }
        Ok(())
    },
    |c, w| w.set("sliding_window", json!(c.sliding_window)),
);

/// A sliding window in every layer, unless `layer_types` says otherwise.
pub(super) const WINDOW_BY_LAYER: Field = Field::rule(
    |f, c| windows(f, c, |_| false),
    |c, w| {
        w.set("sliding_window", json!(c.sliding_window));
        tell_kinds(c, w);
    },
);

/// A window only if a flag says so, and in the layers from `max_window_layers` on.
pub(super) const WINDOW_SWITCHED: Field =
    Field::rule(|f, c| switched(f, c, |layer, most| layer < most), tell_switched);

/// The same, in layers of even number below `max_window_layers` (transformers 5.24, `Qwen2MoeConfig`).
pub(super) const WINDOW_EVEN_BELOW: Field =
    Field::rule(|f, c| switched(f, c, |layer, most| layer % 2 == 1 || layer >= most), tell_switched);

/// A window only if a flag says so, and then in all layers, regardless of other fields (transformers 5.24,
/// `Qwen3MoeModel.forward`).
pub(super) const WINDOW_SWITCHED_ALL: Field = Field::rule(
    |f, c| {
        if !f.flag("use_sliding_window")?.unwrap_or(false) {
            c.sliding_window = None;
            return Ok(());
        }
        read_window(f, c)
    },
    |c, w| {
        w.set("use_sliding_window", json!(c.sliding_window.is_some()));
        w.set("sliding_window", json!(c.sliding_window));
    },
);

/// Which layers have a window that is switched on; `global` takes a layer and `max_window_layers`.
fn switched(f: &Fields<'_>, c: &mut ModelConfig, global: fn(usize, usize) -> bool) -> Result<()> {
    if !f.flag("use_sliding_window")?.unwrap_or(false) {
        c.sliding_window = None;
        return Ok(());
    }
    let most = f.size("max_window_layers")?.unwrap_or(28);
    windows(f, c, |layer| global(layer, most))
}

fn tell_switched(c: &ModelConfig, w: &mut Writer) {
    w.set("use_sliding_window", json!(c.sliding_window.is_some()));
    w.set("sliding_window", json!(c.sliding_window));
    tell_kinds(c, w);
}

/// A window in layers of even number, unless `layer_types` says otherwise.
pub(super) const WINDOW_ALTERNATING: Field = Field::rule(
    |f, c| windows(f, c, |l| l % 2 == 1),
    |c, w| match c.sliding_window {
        Some(window) => {
            w.set("sliding_window", json!(window));
            tell_kinds(c, w);
        }
        // The class wants a window even if no layer has one.
        None => w.set("layer_types", vec!["full_attention"; c.layers].into()),
    },
);

/// A window in the layers that `layer_types` names.
pub(super) const WINDOW_LISTED: Field = Field::rule(
    |f, c| windows(f, c, |_| true),
    |c, w| {
        w.set("sliding_window", json!(c.sliding_window));
        w.set("layer_types", (0..c.layers).map(|l| window_kind(c, l)).collect());
    },
);

/// The window; null means none, and a missing field leaves the class's default.
fn read_window(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    if f.map.contains_key("sliding_window") {
        c.sliding_window = f.size("sliding_window")?;
    }
    match c.sliding_window {
        Some(0) => Err(f.unsupported("field `sliding_window`: expected null or at least 1, got 0")),
        _ => Ok(()),
    }
}

/// Which layers have the window: those that `layer_types` names, or else those that are not `global`.
fn windows(f: &Fields<'_>, c: &mut ModelConfig, global: impl Fn(usize) -> bool) -> Result<()> {
    read_window(f, c)?;
    let global: Vec<bool> = match f.texts("layer_types")? {
        Some(types) if types.len() < c.layers => {
            let listed = &Value::from(types);
            return Err(f.wrong("layer_types", "a word for every layer", listed));
        }
        Some(types) if types.iter().any(|t| !["full_attention", "sliding_attention"].contains(t)) => {
            let listed = &Value::from(types);
            return Err(f.wrong("layer_types", "full_attention or sliding_attention for each layer", listed));
        }
        // Entries after the last layer are for prediction.
        Some(types) => types.iter().take(c.layers).map(|t| *t == "full_attention").collect(),
        None => (0..c.layers).map(global).collect(),
    };
    if c.sliding_window.is_none() || global.iter().all(|g| *g) {
        c.sliding_window = None;
        return Ok(());
    }
    c.pattern = global.into_iter().map(|global| Layer { global, ..Layer::default() }).collect();
    Ok(())
}

/// The kind of attention of a layer, as in `layer_types`.
pub(super) fn window_kind(c: &ModelConfig, layer: usize) -> &'static str {
    if c.window(layer).is_some() { "sliding_attention" } else { "full_attention" }
}

fn tell_kinds(c: &ModelConfig, w: &mut Writer) {
    if c.sliding_window.is_some() {
        w.set("layer_types", (0..c.layers).map(|l| window_kind(c, l)).collect());
    }
}

/// Layers without positions, heads and feed-forward layers: only recurrent ones.
pub(super) fn recurrent(c: &mut ModelConfig, layer: Layer) {
    c.position = Position::None;
    (c.heads, c.groups, c.head_dim, c.ffn) = (0, 0, 0, 0);
    c.pattern = vec![layer; c.layers];
}

/// What every class has in addition to its architecture.
pub(super) const ALL: &[Field] = &[
    Field::float("initializer_range", |c| Some(&mut c.init_std)),
    Field::flag("tie_word_embeddings", |c| Some(&mut c.tied)),
    Field::size("num_nextn_predict_layers", |c| Some(&mut c.mtp)).written_if(|c| c.mtp > 0),
    Field::reading(|_, c| match c.mtp {
        0..=64 => Ok(()),
        n => Err(Error::inconsistent(format!("prediction layers: expected at most 64, got {n}"))),
    }),
    Field::only("is_causal", true, BOTH_WAYS).read_only(),
    Field::only("use_bidirectional_attention", false, BOTH_WAYS).read_only(),
    Field::rule(read_dtype, write_dtype),
    Field::rule(read_ids, write_ids),
    Field::told("use_cache", |_| json!(true)),
];

/// What two fields turn on in transformers 5.24 (`create_causal_mask`, and the classes of `gemma` and `gemma2`).
const BOTH_WAYS: &str = "attention to later tokens";

fn read_dtype(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let name = f.text("dtype")?.or(f.text("torch_dtype")?);
    c.dtype = name.and_then(|name| match name.trim_start_matches("torch.") {
        "float64" => Some(DType::F64),
        "float32" => Some(DType::F32),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::Bf16),
        _ => None,
    });
    Ok(())
}

fn write_dtype(c: &ModelConfig, w: &mut Writer) {
    let Some(dtype) = c.dtype else { return };
    let name = match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        DType::F64 => "float64",
        _ => "float32",
    };
    w.set(if w.dialect == Dialect::V4 { "torch_dtype" } else { "dtype" }, json!(name));
}

fn read_ids(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    c.bos = f.get("bos_token_id").and_then(Value::as_u64);
    c.eos = match f.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
        Some(id) => id.as_u64().into_iter().collect(),
        None => Vec::new(),
    };
    Ok(())
}

fn write_ids(c: &ModelConfig, w: &mut Writer) {
    if let Some(bos) = c.bos {
        w.set("bos_token_id", json!(bos));
    }
    match c.eos[..] {
        [] => {}
        [one] => w.set("eos_token_id", json!(one)),
        _ => w.set("eos_token_id", json!(c.eos)),
    }
}

/// Epsilons and offsets aside, norms are of the class; this flag chooses between two.
pub(super) const RMS_OR_LAYER_NORM: Field = Field::flag_as(
    "rmsnorm",
    |c| Some(c.norm == Norm::Rms),
    |c, rms| c.norm = if rms { Norm::Rms } else { Norm::LayerNorm },
);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::hf::read_config;

    /// transformers 4.57 and 5.24: the defaults of the configuration classes.
    #[test]
    fn classes_have_key_value_heads_where_the_file_is_silent() {
        for (class, want) in [
            ("llama", 64),
            ("phi3", 64),
            ("olmo2", 64),
            ("qwen2", 32),
            ("qwen3", 32),
            ("mistral", 8),
            ("ministral", 8),
            ("mixtral", 8),
            ("seed_oss", 8),
            ("gemma", 16),
            ("gemma2", 4),
            ("glm", 2),
            ("glm4", 2),
            ("internlm3", 2),
            ("qwen2_moe", 16),
            ("qwen3_moe", 4),
            ("qwen3_next", 2),
            ("phimoe", 8),
            ("gpt_oss", 8),
            ("glm4_moe", 8),
            ("minimax_m2", 8),
            ("hy_v3", 8),
            ("bailing_moe", 4),
        ] {
            let mut file = json!({
                "model_type": class, "hidden_size": 512, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
                "num_attention_heads": 64, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2
            });
            assert_eq!(read_config(&file).unwrap().groups, want, "{class}");
            file["num_key_value_heads"] = Value::Null;
            assert_eq!(read_config(&file).unwrap().groups, 64, "{class}");
        }
    }
}
