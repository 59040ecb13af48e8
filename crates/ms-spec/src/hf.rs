//! Hugging Face `config.json`, in the dialects of transformers 4 and 5.

use ms_core::DType;
use serde_json::{Map, Value, json};

use crate::{Activation, Biases, Error, Family, ModelConfig, Norm, QkNorm, Result, Rope, RopeScaling};

const SOURCE: &str = "config.json";

/// Which transformers version's spelling is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// `torch_dtype`, `rope_theta`, `rope_scaling`.
    #[default]
    V4,
    /// `dtype`, `rope_parameters`.
    V5,
}

/// What a family's class assumes where the file is silent.
struct Row {
    family: Family,
    model_type: &'static str,
    class: &'static str,
    qkv_bias: bool,
    out_bias_follows: bool,
    qk_norm: QkNorm,
    head_dim: Option<usize>,
    max_positions: usize,
    window: Option<usize>,
    /// The window only holds with `use_sliding_window`.
    window_switch: bool,
}

const FAMILIES: [Row; 4] = [
    Row {
        family: Family::Llama,
        model_type: "llama",
        class: "LlamaForCausalLM",
        qkv_bias: false,
        out_bias_follows: true,
        qk_norm: QkNorm::None,
        head_dim: None,
        max_positions: 2048,
        window: None,
        window_switch: false,
    },
    Row {
        family: Family::Mistral,
        model_type: "mistral",
        class: "MistralForCausalLM",
        qkv_bias: false,
        out_bias_follows: false,
        qk_norm: QkNorm::None,
        head_dim: None,
        max_positions: 131_072,
        window: Some(4096),
        window_switch: false,
    },
    Row {
        family: Family::Qwen2,
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        qkv_bias: true,
        out_bias_follows: false,
        qk_norm: QkNorm::None,
        head_dim: None,
        max_positions: 32_768,
        window: Some(4096),
        window_switch: true,
    },
    Row {
        family: Family::Qwen3,
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        qkv_bias: false,
        out_bias_follows: true,
        qk_norm: QkNorm::PerHead,
        head_dim: Some(128),
        max_positions: 32_768,
        window: Some(4096),
        window_switch: true,
    },
];

fn row(family: Family) -> &'static Row {
    FAMILIES.iter().find(|r| r.family == family).expect("every family has a row")
}

/// Typed access to the fields of a JSON object.
pub(crate) struct Fields<'a> {
    pub(crate) source: &'static str,
    pub(crate) map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    fn wrong(&self, field: &'static str, want: &'static str, got: &Value) -> Error {
        let mut got = got.to_string();
        got.truncate(got.char_indices().nth(80).map_or(got.len(), |(i, _)| i));
        Error::Field { source_name: self.source, field, want, got }
    }

    pub(crate) fn size(&self, field: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let int = value.as_u64().or_else(|| {
            value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x)).map(|x| x as u64)
        });
        int.map(|i| Some(i as usize)).ok_or_else(|| self.wrong(field, "a number of at least 0", value))
    }

    pub(crate) fn need(&self, field: &'static str) -> Result<usize> {
        self.size(field)?.ok_or(Error::Missing { source_name: self.source, field })
    }

    pub(crate) fn float(&self, field: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(field, "a number", value))
    }

    pub(crate) fn flag(&self, field: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, "true or false", value))
    }

    pub(crate) fn text(&self, field: &'static str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "text", value))
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { source_name: self.source, what: what.into() }
    }
}

/// Reads a configuration of one of the supported families.
///
/// # Errors
/// A missing or malformed field, a family or feature that is not supported, or sizes that do not fit.
pub fn read_config(json: &Value) -> Result<ModelConfig> {
    let map = json.as_object().ok_or_else(|| Error::Unsupported {
        source_name: SOURCE,
        what: "expected a JSON object".to_owned(),
    })?;
    read_fields(&Fields { source: SOURCE, map })
}

pub(crate) fn read_fields(f: &Fields) -> Result<ModelConfig> {
    let model_type =
        f.text("model_type")?.ok_or(Error::Missing { source_name: f.source, field: "model_type" })?;
    let Some(row) = FAMILIES.iter().find(|r| r.model_type == model_type) else {
        let known: Vec<&str> = FAMILIES.iter().map(|r| r.model_type).collect();
        let known = known.join(", ");
        return Err(f.unsupported(format!("model type `{model_type}` is not supported; supported: {known}")));
    };
    if let Some(act) = f.text("hidden_act")?
        && act != "silu"
    {
        return Err(f.unsupported(format!("activation `{act}` is not supported; supported: silu")));
    }
    let (hidden, heads) = (f.need("hidden_size")?, f.need("num_attention_heads")?);
    let given_bias = f.flag("attention_bias")?;
    let attention_bias = given_bias.unwrap_or(false);
    let max_positions = f.size("max_position_embeddings")?.unwrap_or(row.max_positions);
    let vocab = f.need("vocab_size")?;
    let head_dim = match f.size("head_dim")?.or(row.head_dim) {
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
    ModelConfig {
        family: row.family,
        layers: f.need("num_hidden_layers")?,
        hidden,
        ffn: f.need("intermediate_size")?,
        heads,
        groups: f.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab,
        padded_vocab: vocab,
        max_positions,
        activation: Activation::Swiglu,
        norm: Norm::Rms,
        norm_eps: f.float("rms_norm_eps")?.unwrap_or(1e-6),
        bias: Biases {
            qkv: row.qkv_bias || attention_bias,
            out: row.out_bias_follows && attention_bias,
            mlp: f.flag("mlp_bias")?.unwrap_or(false),
        },
        qk_norm: row.qk_norm,
        rope: read_rope(f, max_positions)?,
        sliding_window: read_window(f, row)?,
        tied: f.flag("tie_word_embeddings")?.unwrap_or(false),
        init_std: f.float("initializer_range")?.unwrap_or(0.02),
        dtype: f.text("dtype")?.or(f.text("torch_dtype")?).and_then(dtype_of),
        bos: f.get("bos_token_id").and_then(Value::as_u64),
        eos,
    }
    .validate()
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

fn read_window(f: &Fields, row: &Row) -> Result<Option<usize>> {
    if row.window.is_none() {
        return Ok(None);
    }
    if row.window_switch && !f.flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(None);
    }
    let window = if f.map.contains_key("sliding_window") { f.size("sliding_window")? } else { row.window };
    if row.window_switch && window.is_some() {
        // The layers below max_window_layers attend to everything: a per-layer choice.
        return Err(
            f.unsupported("a sliding window in some layers only (use_sliding_window) is not supported")
        );
    }
    Ok(window)
}

fn read_rope(f: &Fields, max_positions: usize) -> Result<Rope> {
    let object = |field: &'static str| -> Result<Option<Fields<'_>>> {
        let Some(value) = f.get(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| f.wrong(field, "an object", value))?;
        Ok(Some(Fields { source: f.source, map }))
    };
    let parameters = object("rope_parameters")?;
    let scaling = match &parameters {
        Some(_) => None,
        None => object("rope_scaling")?,
    };
    let empty = Map::new();
    let s = parameters.as_ref().or(scaling.as_ref()).map_or(&empty, |o| o.map);
    let s = Fields { source: f.source, map: s };
    let base = s.float("rope_theta")?.or(f.float("rope_theta")?).unwrap_or(10_000.0);
    let fraction = s.float("partial_rotary_factor")?.or(f.float("partial_rotary_factor")?).unwrap_or(1.0);
    let kind = s.text("rope_type")?.or(s.text("type")?).unwrap_or("default");
    let factor = || s.float("factor")?.ok_or(Error::Missing { source_name: f.source, field: "factor" });
    let original = || -> Result<usize> {
        Ok(s.size("original_max_position_embeddings")?
            .or(f.size("original_max_position_embeddings")?)
            .unwrap_or(max_positions))
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low: s.float("low_freq_factor")?.unwrap_or(1.0),
            high: s.float("high_freq_factor")?.unwrap_or(4.0),
            original: original()?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: factor()?,
            beta_fast: s.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: s.float("beta_slow")?.unwrap_or(1.0),
            original: original()?,
            mscale: s.float("mscale")?.zip(s.float("mscale_all_dim")?),
            attention_factor: s.float("attention_factor")?,
            truncate: s.flag("truncate")?.unwrap_or(true),
        },
        other => {
            return Err(f.unsupported(format!(
                "rope scaling `{other}` is not supported; supported: linear, llama3, yarn"
            )));
        }
    };
    Ok(Rope { base, fraction, interleaved: false, scaling })
}

/// Writes a configuration that `transformers` reads.
pub fn write_config(config: &ModelConfig, dialect: Dialect) -> Value {
    let c = config;
    let row = row(c.family);
    let mut out = Map::new();
    let mut set = |key: &str, value: Value| {
        out.insert(key.to_owned(), value);
    };
    set("architectures", json!([row.class]));
    set("model_type", json!(row.model_type));
    set("hidden_size", json!(c.hidden));
    set("intermediate_size", json!(c.ffn));
    set("num_hidden_layers", json!(c.layers));
    set("num_attention_heads", json!(c.heads));
    set("num_key_value_heads", json!(c.groups));
    set("head_dim", json!(c.head_dim));
    set("vocab_size", json!(c.vocab));
    set("max_position_embeddings", json!(c.max_positions));
    set("hidden_act", json!("silu"));
    set("rms_norm_eps", json!(c.norm_eps));
    set("attention_dropout", json!(0.0));
    if row.out_bias_follows || row.family == Family::Mistral {
        set("attention_bias", json!(c.bias.qkv));
    }
    if row.family == Family::Llama {
        set("mlp_bias", json!(c.bias.mlp));
    }
    if row.window_switch {
        set("use_sliding_window", json!(false));
        set("sliding_window", Value::Null);
    } else if row.window.is_some() {
        set("sliding_window", json!(c.sliding_window));
    }
    set("tie_word_embeddings", json!(c.tied));
    set("initializer_range", json!(c.init_std));
    let rope = rope_object(&c.rope);
    match dialect {
        Dialect::V4 => {
            set("rope_theta", json!(c.rope.base));
            set("rope_scaling", rope.map_or(Value::Null, Value::Object));
        }
        Dialect::V5 => {
            let mut rope =
                rope.unwrap_or_else(|| Map::from_iter([("rope_type".to_owned(), json!("default"))]));
            rope.insert("rope_theta".to_owned(), json!(c.rope.base));
            set("rope_parameters", Value::Object(rope));
        }
    }
    if c.rope.fraction != 1.0 {
        set("partial_rotary_factor", json!(c.rope.fraction));
    }
    if let Some(dtype) = c.dtype {
        let name = match dtype {
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            DType::F64 => "float64",
            _ => "float32",
        };
        set(if dialect == Dialect::V4 { "torch_dtype" } else { "dtype" }, json!(name));
    }
    if let Some(bos) = c.bos {
        set("bos_token_id", json!(bos));
    }
    match c.eos[..] {
        [] => {}
        [one] => set("eos_token_id", json!(one)),
        _ => set("eos_token_id", json!(c.eos)),
    }
    set("use_cache", json!(true));
    Value::Object(out)
}

fn rope_object(rope: &Rope) -> Option<Map<String, Value>> {
    let value = match &rope.scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original
        }),
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, mscale, attention_factor, truncate } => {
            let mut v = json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "original_max_position_embeddings": original
            });
            if let Some((m, all)) = mscale {
                v["mscale"] = json!(m);
                v["mscale_all_dim"] = json!(all);
            }
            if let Some(a) = attention_factor {
                v["attention_factor"] = json!(a);
            }
            if !truncate {
                v["truncate"] = json!(false);
            }
            v
        }
    };
    match value {
        Value::Object(map) => Some(map),
        _ => unreachable!("the arms above make objects"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal(model_type: &str) -> Value {
        json!({
            "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100
        })
    }

    #[test]
    fn families_fill_in_what_the_file_leaves_out() {
        let llama = read_config(&minimal("llama")).unwrap();
        assert_eq!((llama.groups, llama.head_dim, llama.bias), (4, 16, Biases::default()));
        let qwen2 = read_config(&minimal("qwen2")).unwrap();
        assert_eq!(qwen2.bias, Biases { qkv: true, out: false, mlp: false });
        let qwen3 = read_config(&minimal("qwen3")).unwrap();
        assert_eq!((qwen3.head_dim, qwen3.qk_norm), (128, QkNorm::PerHead));
        assert_eq!(read_config(&minimal("mistral")).unwrap().sliding_window, Some(4096));
    }

    #[test]
    fn both_dialects_of_rope_and_dtype_are_read() {
        let mut old = minimal("llama");
        old["rope_theta"] = json!(5e5);
        old["torch_dtype"] = json!("bfloat16");
        old["rope_scaling"] = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let mut new = minimal("llama");
        new["dtype"] = json!("bfloat16");
        new["rope_parameters"] = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let (old, new) = (read_config(&old).unwrap(), read_config(&new).unwrap());
        assert_eq!(old, new);
        assert_eq!(old.dtype, Some(DType::Bf16));
        assert_eq!(old.rope.base, 5e5);
    }

    #[test]
    fn what_is_written_reads_back_in_both_dialects() {
        for family in ["llama", "mistral", "qwen2", "qwen3"] {
            let mut json = minimal(family);
            json["rope_scaling"] =
                json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
            json["eos_token_id"] = json!([2, 3]);
            json["torch_dtype"] = json!("float16");
            let config = read_config(&json).unwrap();
            for dialect in [Dialect::V4, Dialect::V5] {
                assert_eq!(
                    read_config(&write_config(&config, dialect)).unwrap(),
                    config,
                    "{family} {dialect:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |json: Value| read_config(&json).unwrap_err().to_string();
        assert_eq!(
            message(minimal("mamba2")),
            "config.json: model type `mamba2` is not supported; supported: llama, mistral, qwen2, qwen3"
        );
        let mut json = minimal("llama");
        json["num_key_value_heads"] = json!(3);
        assert_eq!(message(json), "model: 4 query heads do not divide by 3 key/value heads");
        let mut json = minimal("llama");
        json["hidden_size"] = json!("wide");
        assert_eq!(
            message(json),
            "config.json: field `hidden_size`: expected a number of at least 0, got \"wide\""
        );
        let mut json = minimal("llama");
        json.as_object_mut().unwrap().remove("vocab_size");
        assert_eq!(message(json), "config.json: field `vocab_size` is missing");
    }
}
