//! Hugging Face folders: `config.json` and safetensors, one file or several with an index.

use std::collections::BTreeMap;
use std::path::Path;

use ms_core::{DType, Region};
use ms_spec::{ModelConfig, ParamSpec, hf, params};
use serde_json::Value;

use super::names;
use crate::checkpoint::{Checkpoint, Global, Kind, Piece, Stored};
use crate::plan;
use crate::{Error, Mapped, Result, safetensors};

/// Name of the file that says which tensor is in which file.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of the file when there is only one.
pub const SINGLE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

pub(crate) fn is_folder(path: &Path) -> bool {
    path.join(CONFIG).is_file() && (path.join(INDEX).is_file() || !weight_files(path).is_empty())
}

/// Safetensors files of a folder, in the order of names.
pub(crate) fn weight_files(path: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let mut files: Vec<String> = names.filter(|n| n.ends_with(".safetensors")).collect();
    files.sort();
    if files.iter().any(|f| f.starts_with("model")) {
        files.retain(|f| f.starts_with("model"));
    }
    files
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    hf::parse_json(&text).map_err(Error::spec(path))
}

/// The files that hold tensors: those of the index, or all of them.
fn files_of(path: &Path) -> Result<Vec<String>> {
    let index = path.join(INDEX);
    if !index.is_file() {
        return Ok(weight_files(path));
    }
    let json = read_json(&index)?;
    let map = json["weight_map"].as_object().ok_or_else(|| Error::malformed(&index, "no weight_map"))?;
    let mut files = Vec::new();
    for (tensor, file) in map {
        // A name with a path in it could point anywhere.
        let plain = file.as_str().filter(|f| !f.contains(['/', '\\']) && *f != "..");
        let file = plain
            .ok_or_else(|| Error::malformed(&index, format!("tensor {tensor}: {file} is no file name")))?;
        files.push(file.to_owned());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn refuse_special(path: &Path, config: &ModelConfig) -> Result<()> {
    match config.beyond_plain() {
        Some(part) => Err(Error::folder(path, format!("a model with {part} is not supported yet"))),
        None => Ok(()),
    }
}

pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    let config_path = path.join(CONFIG);
    let config_json = read_json(&config_path)?;
    let mut config = hf::read_config(&config_json).map_err(Error::spec(&config_path))?;
    refuse_special(path, &config)?;
    let mut files = Vec::new();
    let mut stored: Vec<Stored> = Vec::new();
    let mut by_name = BTreeMap::new();
    for name in files_of(path)? {
        let file = Mapped::open(&path.join(name))?;
        let header = safetensors::read_header(&file)?;
        for t in header.tensors {
            let dtype = t.dtype.ok_or_else(|| {
                Error::malformed(
                    file.path(),
                    format!("tensor {}: dtype {} is not supported", t.name, t.dtype_name),
                )
            })?;
            if by_name.insert(t.name.clone(), stored.len()).is_some() {
                return Err(Error::malformed(
                    file.path(),
                    format!("tensor {} is in another file too", t.name),
                ));
            }
            stored.push(Stored {
                name: t.name,
                file: files.len(),
                dtype,
                shape: t.shape,
                start: t.start,
                strides: None,
            });
        }
        files.push(file);
    }
    // A model resized after training may have more rows than the configuration says, or be padded.
    if let Some(&i) = by_name.get("model.embed_tokens.weight")
        && let Some(&rows) = stored[i].shape.first()
    {
        config.padded_vocab = rows.max(config.vocab);
        if rows < config.vocab {
            let (want, got) = (vec![config.vocab, config.hidden], stored[i].shape.clone());
            return Err(Error::Shape { path: path.to_owned(), name: stored[i].name.clone(), want, got });
        }
    }
    let mut globals = BTreeMap::new();
    for spec in params(&config) {
        let mut pieces = Vec::new();
        let mut dtype = None;
        for named in names::of(&config, &spec) {
            let &i = by_name
                .get(&named.name)
                .ok_or_else(|| Error::Missing { path: path.to_owned(), name: named.name.clone() })?;
            let want = named.region.local_shape();
            if stored[i].shape[..] != want[..] {
                return Err(Error::Shape {
                    path: files[stored[i].file].path().to_owned(),
                    name: named.name,
                    want: want.to_vec(),
                    got: stored[i].shape.clone(),
                });
            }
            dtype.get_or_insert(stored[i].dtype);
            pieces.push(Piece { stored: i, region: named.region, flat: None });
        }
        let dtype = dtype.expect("every parameter has a Hugging Face tensor");
        globals.insert(spec.name, Global { shape: spec.shape, dtype, pieces });
    }
    Ok(Checkpoint {
        root: path.to_owned(),
        kind: Kind::Hf,
        config,
        config_json: Some(config_json),
        files,
        stored,
        globals,
        iteration: 0,
        args: serde_json::Map::new(),
        state: Value::Null,
        via: None,
    })
}

/// Names and canonical regions of every tensor of a Hugging Face folder, in `transformers`' order.
/// Vocabulary tensors have `padded_vocab` rows.
pub(crate) fn tensors(config: &ModelConfig) -> Vec<(String, ParamSpec, Region)> {
    let mut specs = params(config);
    // transformers registers qkv before o, and the norms of a layer after its MLP.
    let rank = |spec: &ParamSpec| -> usize {
        let name = spec.name.as_str();
        let order = [
            ".linear_qkv.",
            ".linear_proj.",
            ".q_layernorm.",
            ".k_layernorm.",
            ".linear_fc1.",
            ".linear_fc2.",
            ".input_layernorm.",
            ".pre_mlp_layernorm.",
        ];
        order.iter().position(|part| name.contains(part)).unwrap_or(0)
    };
    specs.sort_by_key(|s| (s.place, rank(s)));
    // Weights and biases of one projection stand together: q.weight q.bias k.weight k.bias …
    let mut all = Vec::new();
    let mut i = 0;
    while i < specs.len() {
        let pair = specs.get(i + 1).filter(|next| {
            next.name.strip_suffix("bias").is_some_and(|n| specs[i].name.strip_suffix("weight") == Some(n))
        });
        let weights = names::of(config, &specs[i]);
        let mut biases = pair.map_or_else(Vec::new, |p| names::of(config, p)).into_iter();
        let step = if pair.is_some() { 2 } else { 1 };
        for weight in weights {
            all.push((weight.name, specs[i].clone(), weight.region));
            if let Some(bias) = biases.next() {
                all.push((bias.name, specs[i + 1].clone(), bias.region));
            }
        }
        i += step;
    }
    all
}

/// The largest file written, unless one tensor alone is larger: 5 GB, as `save_pretrained` has it.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes weights that a program holds as a Hugging Face folder: `config.json`, safetensors, index.
///
/// `bytes` gives the whole canonical parameter (`[padded_vocab, ...]` for vocabulary tensors) as `dtype`,
/// little-endian; it is called once for each Hugging Face tensor in turn.
///
/// # Errors
/// What the operating system refuses; an existing folder that is not empty, unless `replace`.
pub fn write(
    dir: &Path,
    config: &ModelConfig,
    dtype: DType,
    replace: bool,
    bytes: &mut dyn FnMut(&ParamSpec) -> Result<Vec<u8>>,
) -> Result<()> {
    let config = ModelConfig { dtype: Some(dtype), ..config.clone() };
    plan::write_hf(dir, replace, &config, dtype, SHARD_BYTES, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_tensors_is_that_of_transformers() {
        let json = serde_json::json!({
            "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 10
        });
        let config = hf::read_config(&json).unwrap();
        let names: Vec<String> = tensors(&config).into_iter().map(|t| t.0).collect();
        let l = |rest: &str| format!("model.layers.0.{rest}");
        assert_eq!(
            names,
            [
                "model.embed_tokens.weight".to_owned(),
                l("self_attn.q_proj.weight"),
                l("self_attn.q_proj.bias"),
                l("self_attn.k_proj.weight"),
                l("self_attn.k_proj.bias"),
                l("self_attn.v_proj.weight"),
                l("self_attn.v_proj.bias"),
                l("self_attn.o_proj.weight"),
                l("mlp.gate_proj.weight"),
                l("mlp.up_proj.weight"),
                l("mlp.down_proj.weight"),
                l("input_layernorm.weight"),
                l("post_attention_layernorm.weight"),
                "model.norm.weight".to_owned(),
                "lm_head.weight".to_owned(),
            ]
        );
    }
}
