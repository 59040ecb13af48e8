//! Plans for Hugging Face folders: from scratch, or laid out like an original.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, fs};

use ms_core::DType;
use ms_spec::{Feed, ModelConfig, Place};
use serde_json::{Map, Value, json};

use super::{Container, DTypeOf, FilePlan, Plan, Sharding, Target, target, type_of};
use crate::layout::hf;
use crate::safetensors::{dtype_name, make_header};
use crate::{Error, Result};

/// The files of an original Hugging Face folder: names and headers, so that they can be reproduced byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HfLayout {
    /// File name and the text of its header.
    files: Vec<(String, String)>,
    /// Text of the index file, if there is one.
    index: Option<String>,
}

/// Most rows of an embedding whose number a kept layout says: no vocabulary has more.
const MOST_ROWS: usize = 1 << 28;

/// Name under which a converted checkpoint keeps the [`HfLayout`] of its source.
pub const HF_LAYOUT: &str = "hf_layout.json";

impl HfLayout {
    /// Reads the layout of a Hugging Face folder, or the one kept in a converted checkpoint; `None` if `dir` has
    /// neither.
    ///
    /// # Errors
    /// Damaged files.
    pub fn find(dir: &Path) -> Result<Option<Self>> {
        let kept = dir.join(HF_LAYOUT);
        if kept.is_file() {
            let text = fs::read(&kept).map_err(Error::io(&kept, "read"))?;
            let layout: Self =
                serde_json::from_slice(&text).map_err(|e| Error::malformed(&kept, e.to_string()))?;
            for (name, header) in &layout.files {
                let wrong = |what: String| Error::malformed(&kept, format!("{name:?}: {what}"));
                if name.contains(['/', '\\']) || name.starts_with('.') || !name.ends_with(".safetensors") {
                    return Err(wrong("expected the name of a .safetensors file".to_owned()));
                }
                if let Err(error) = serde_json::from_str::<Map<String, Value>>(header) {
                    return Err(wrong(format!("its header: {error}")));
                }
            }
            return Ok(Some(layout));
        }
        let names = hf::files_of(dir)?;
        if names.is_empty() || names.iter().any(|n| !n.ends_with(".safetensors")) {
            return Ok(None);
        }
        let mut files = Vec::new();
        for name in names {
            let file = crate::Mapped::open(&dir.join(&name))?;
            files.push((name, crate::safetensors::read_header(&file)?.text));
        }
        let index = dir.join(hf::INDEX);
        let index = index
            .is_file()
            .then(|| fs::read_to_string(&index).map_err(Error::io(&index, "read")))
            .transpose()?;
        Ok(Some(Self { files, index }))
    }
}

impl Plan {
    /// A Hugging Face folder: files filled in the model's order, tensors in a file ordered by type and name, as
    /// `save_pretrained` writes them. Vocabulary tensors have `config.vocab` rows.
    ///
    /// # Errors
    /// What `dtype_of` returns.
    pub fn hf(config: &ModelConfig, dtype_of: &DTypeOf<'_>, sharding: Sharding) -> Result<Self> {
        let config = &ModelConfig { padded_vocab: config.vocab, ..config.clone() };
        let mut shards: Vec<Vec<Target>> = vec![Vec::new()];
        let mut filled = 0;
        let dense = |&layer: &usize| config.moe.is_some() && config.layer(layer).feed == Feed::Dense;
        let together = match sharding {
            Sharding::PerLayerOfExperts => (0..config.layers).take_while(dense).count(),
            _ => 0,
        };
        for t in hf::tensors(config)? {
            let (spec, place) = (&t.spec, written_place(&t, config));
            let target = target(t.named.name, spec, &t.named.lens, type_of(spec, dtype_of)?);
            let full = match sharding {
                Sharding::Bytes(most) => filled > 0 && filled + target.bytes() > most,
                // The first layer shares its file with the embedding, the last with the head.
                _ => matches!(place, Place::Layer(l) if l >= shards.len() + together),
            };
            if full {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += target.bytes();
            shards.last_mut().expect("there is always one").push(target);
        }
        let (count, per_layer) = (shards.len(), !matches!(sharding, Sharding::Bytes(_)));
        let mut plan = Self { zeros: zeros(config)?, ..Self::default() };
        let mut weight_map = Map::new();
        for (i, mut tensors) in shards.into_iter().enumerate() {
            let name = match count {
                1 if !per_layer => hf::SINGLE.to_owned(),
                _ if per_layer => format!("model-{:05}-of-{count:06}.safetensors", i + 1),
                _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
            };
            tensors.sort_by_key(|t| (type_rank(t.dtype), t.name.clone()));
            for t in &tensors {
                weight_map.insert(t.name.clone(), json!(name));
            }
            let list: Vec<_> = tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
            let header = make_header(&list, &[("format", "pt")]);
            plan.files.push(FilePlan {
                path: name.into(),
                tensors,
                container: Container::Safetensors { header },
            });
        }
        if count > 1 || per_layer {
            let mut sorted: Vec<_> = weight_map.into_iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            let index = json!({
                "metadata": {"total_size": plan.bytes()},
                "weight_map": sorted.into_iter().collect::<Map<_, _>>()
            });
            let mut text = serde_json::to_vec_pretty(&index).expect("plain JSON");
            text.push(b'\n');
            plan.texts.push((hf::INDEX.into(), text));
        }
        Ok(plan)
    }

    /// A Hugging Face folder with the files of an original one, byte for byte where types are the same.
    /// The inner error names a tensor that the original holds and the model does not have, or the other way round.
    ///
    /// # Errors
    /// What `dtype_of` returns; a layout that is damaged.
    pub fn hf_like(
        config: &ModelConfig,
        layout: &HfLayout,
        dtype_of: &DTypeOf<'_>,
    ) -> Result<std::result::Result<Self, KeyMismatch>> {
        let mut files = Vec::new();
        let mut rows = config.vocab;
        let embedding_name = hf::tensors(config)?.first().map_or_else(String::new, |t| t.named.name.clone());
        for (name, text) in &layout.files {
            let path = Path::new(name);
            if name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(Error::malformed(path, "the path has no file name"));
            }
            let json: Map<String, Value> =
                serde_json::from_str(text).map_err(|e| Error::malformed(path, format!("header: {e}")))?;
            let mut entries: Vec<(u64, u64, String, String, Vec<usize>)> = Vec::new();
            for (tensor, v) in json.iter().filter(|(k, _)| *k != "__metadata__") {
                let offset = |i: usize| v["data_offsets"][i].as_u64();
                let shape = v["shape"]
                    .as_array()
                    .and_then(|s| s.iter().map(|n| Some(n.as_u64()? as usize)).collect());
                let (Some(start), Some(end), Some(shape), Some(dtype)) =
                    (offset(0), offset(1), shape, v["dtype"].as_str())
                else {
                    return Err(Error::malformed(path, format!("header: tensor {tensor} is incomplete")));
                };
                entries.push((start, end, tensor.clone(), dtype.to_owned(), shape));
            }
            entries.sort();
            if let Some(e) = entries.iter().find(|e| hf::usual(config, &e.2) == embedding_name) {
                rows = e.4.first().copied().unwrap_or(rows);
                if rows > MOST_ROWS {
                    let what =
                        format!("header: tensor {} has {rows} rows, at most {MOST_ROWS} are written", e.2);
                    return Err(Error::malformed(path, what));
                }
            }
            files.push((name, text, json, entries));
        }
        let config = &ModelConfig { padded_vocab: rows, ..config.clone() };
        let mut known: Map<String, Value> = Map::new();
        let all = hf::tensors(config)?;
        for (i, t) in all.iter().enumerate() {
            known.insert(t.named.name.clone(), json!(i));
        }
        let embedding = all.first().map_or("", |t| t.named.name.as_str()).to_owned();
        let mut seen = BTreeSet::new();
        let mut plan = Self { zeros: zeros(config)?, ..Self::default() };
        let mut unchanged = true;
        for (name, text, json, entries) in files {
            let mut tensors = Vec::new();
            let mut same = true;
            for (start, end, tensor, dtype, shape) in entries {
                // Some folders store a tied output layer all the same.
                let tied_head = hf::is_tied_head(config, &tensor);
                let usual = hf::usual(config, &tensor);
                let key = if tied_head { &embedding } else { &usual };
                let Some(i) = known.get(key).and_then(Value::as_u64) else {
                    return Ok(Err(KeyMismatch::Unexpected(tensor)));
                };
                let found = &all[i as usize];
                if !tied_head {
                    seen.insert(&found.named.name);
                }
                let t = target(tensor, &found.spec, &found.named.lens, type_of(&found.spec, dtype_of)?);
                same &= dtype_name(t.dtype) == dtype
                    && t.shape == shape
                    && end.checked_sub(start) == Some(t.bytes());
                tensors.push(t);
            }
            unchanged &= same;
            let header = if same {
                text.clone()
            } else {
                let list: Vec<_> =
                    tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
                let meta = json.get("__metadata__").and_then(Value::as_object);
                let meta: Vec<(&str, &str)> =
                    meta.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))).collect();
                make_header(&list, &meta)
            };
            plan.files.push(FilePlan {
                path: name.into(),
                tensors,
                container: Container::Safetensors { header },
            });
        }
        if let Some(t) = all.iter().find(|t| !t.named.copy && !seen.contains(&t.named.name)) {
            return Ok(Err(KeyMismatch::Missing(t.named.name.clone())));
        }
        if let Some(index) = &layout.index {
            let index = if unchanged { index.clone() } else { with_size(index, plan.bytes()) };
            plan.texts.push((hf::INDEX.into(), index.into_bytes()));
        }
        Ok(Ok(plan))
    }
}

/// An index of as many bytes of tensors.
fn with_size(index: &str, bytes: u64) -> String {
    let Ok(mut json) = serde_json::from_str::<Value>(index) else { return index.to_owned() };
    if let Some(size) = json.get_mut("metadata").and_then(|metadata| metadata.get_mut("total_size")) {
        *size = json!(bytes);
    }
    format!("{json:#}\n")
}

/// How a folder differs from a model: the name of a tensor that only one of them has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyMismatch {
    /// The folder has it.
    Unexpected(String),
    /// The model has it.
    Missing(String),
}

impl fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected(tensor) => write!(f, "hold {tensor}, which the model does not have"),
            Self::Missing(tensor) => write!(f, "lack {tensor}"),
        }
    }
}

/// What a folder has no tensors for.
fn zeros(config: &ModelConfig) -> Result<Vec<Target>> {
    let absent = hf::absent(config)?.into_iter();
    Ok(absent.map(|t| target(t.named.name, &t.spec, &t.named.lens, DType::F32)).collect())
}

/// The layer a tensor is filed with: copies that belong to a prediction layer are at its place.
fn written_place(t: &hf::HfTensor, config: &ModelConfig) -> Place {
    match (t.spec.slot.place, t.named.copy) {
        (Place::Mtp(k), _) => Place::Layer(config.layers + k),
        (_, true) => Place::Layer(config.layers),
        (place, false) => place,
    }
}

/// The order in which the reference implementation of safetensors puts types: widest last in its list first.
fn type_rank(dtype: DType) -> usize {
    let order = [
        DType::I64,
        DType::F64,
        DType::F32,
        DType::I32,
        DType::Bf16,
        DType::F16,
        DType::I16,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];
    order.iter().position(|d| *d == dtype).expect("every type is in the list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_layout_of_more_rows_than_any_vocabulary_has_is_refused() {
        let config = ModelConfig::tiny();
        let name = hf::tensors(&config).unwrap()[0].named.name.clone();
        let refused = |rows: usize| {
            let header = json!({name.clone(): {"dtype": "F32", "shape": [rows, 16], "data_offsets": [0, 0]}});
            let files = vec![("model.safetensors".to_owned(), header.to_string())];
            Plan::hf_like(&config, &HfLayout { files, index: None }, &|_| Ok(DType::F32)).map(drop)
        };
        assert!(refused(32).is_ok());
        for rows in [MOST_ROWS + 1, 1 << 60] {
            let said = refused(rows).unwrap_err().to_string();
            assert!(said.contains(&format!("tensor {name} has {rows} rows, at most 268435456")), "{said}");
        }
    }
}
