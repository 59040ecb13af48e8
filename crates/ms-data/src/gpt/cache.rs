//! Index files with upstream's names and contents.
//!
//! A name is the MD5 of a description: the JSON of everything that determines the order. Upstream trusts the file it finds
//! under a name; here an index must fit the data, or it is built again.
//!
//! Source: Megatron-LM `core_r0.8.0` and `core_v0.12.1`
//! `megatron/core/datasets/{gpt_dataset,blended_dataset, megatron_dataset}.py`; MindSpeed-LLM v2.0.0 leaves the split out of
//! the names of datasets.

use super::md5::md5_hex;
use super::{BlendIndex, GptIndex, Source};
use crate::npy::{self, Array};
use crate::{AtomicFile, Error, Result, Split, Upstream};
use ms_text::python_json;
use serde_json::{Map, Number, Value, json};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where index files are, and what their names depend on besides the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCache {
    /// `--data-cache-path`.
    pub folder: PathBuf,
    /// Class of upstream's tokenizer wrapper.
    pub tokenizer_class: String,
    /// `--tokenizer-name-or-path`, as it was given.
    pub tokenizer_path: String,
}

/// What decides the order of one set and split.
pub(super) struct SetKey<'a> {
    pub(super) cache: &'a IndexCache,
    /// `None` for artificial data.
    pub(super) prefix: Option<PathBuf>,
    pub(super) samples: Option<u64>,
    pub(super) split_name: &'static str,
    /// `None` for sets of one split.
    pub(super) split: Option<&'a Split>,
    pub(super) seed: u32,
    pub(super) row_tokens: usize,
    pub(super) upstream: Upstream,
}

impl IndexCache {
    /// A folder for runs with a tokenizer of the Hugging Face kind.
    pub fn new(folder: impl Into<PathBuf>, tokenizer_path: &str) -> Self {
        Self {
            folder: folder.into(),
            tokenizer_class: "_AutoTokenizer".into(),
            tokenizer_path: tokenizer_path.into(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl SetKey<'_> {
    /// The description, as an object with keys in upstream's order.
    pub(super) fn description(&self) -> Value {
        let matrix = self.split.map(|split| {
            let bounds = split.matrix().into_iter().enumerate().map(|(which, bounds)| {
                bounds.map_or(Value::Null, |(low, high)| {
                    // Python's running sum begins with the integer 0.
                    let low = if which == 0 { Value::from(0) } else { float(low) };
                    Value::Array(vec![low, float(high)])
                })
            });
            Value::Array(bounds.collect())
        });
        let mut out = Map::new();
        let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
        put("class", self.class().into());
        let prefix = self.prefix.as_ref();
        put("dataset_path", prefix.map_or(Value::Null, |prefix| prefix.to_string_lossy().into()));
        put("num_samples", self.samples.map_or(Value::Null, Value::from));
        put("index_split", self.split_name.into());
        put("random_seed", self.seed.into());
        put("sequence_length", self.row_tokens.into());
        put("split", self.split.map_or(Value::Null, |split| split.text().into()));
        put("split_matrix", matrix.unwrap_or(Value::Null));
        let path = &self.cache.tokenizer_path;
        put("tokenizer", json!({"class": self.cache.tokenizer_class, "tokenizer_path": [path]}));
        Value::Object(out)
    }

    /// The name of upstream's class of the set.
    fn class(&self) -> &'static str {
        if self.prefix.is_some() { "GPTDataset" } else { "MockGPTDataset" }
    }

    fn file(&self, stem: &str, what: &str) -> PathBuf {
        self.cache.path(&format!("{stem}-{}-{what}", self.class()))
    }

    /// The index of the files, if they are there and fit the set.
    pub(super) fn read(&self, set: &Source, sequences: &Range<usize>) -> Option<GptIndex> {
        let stem = md5_hex(&text(&self.description()));
        let open = |what: &str| Array::open(&self.file(&stem, &format!("{what}_index.npy")));
        let read = || -> Result<std::result::Result<GptIndex, String>> {
            let (documents, samples, shuffle) = (open("document")?, open("sample")?, open("shuffle")?);
            Ok(fitting(set, sequences, self, &documents, &samples, &shuffle))
        };
        match read() {
            Ok(Ok(index)) => Some(index),
            Ok(Err(reason)) => {
                tracing::warn!("{}: index {stem} does not fit the data: {reason}", set.name().display());
                None
            }
            // Missing files are the usual case; damaged ones are built again too.
            Err(_) => None,
        }
    }

    /// Writes the index under upstream's names.
    pub(super) fn write(&self, index: &GptIndex) -> Result<()> {
        std::fs::create_dir_all(&self.cache.folder).map_err(Error::io(&self.cache.folder))?;
        let description = text(&self.description());
        let stem = md5_hex(&description);
        let file = |what: &str| self.file(&stem, what);
        npy::write(&file("document_index.npy"), 0, index.documents.len(), index.documents.iter().copied())?;
        let numbers = index.samples.iter().flat_map(|&(at, offset)| [at, offset]);
        let count = index.samples.len() * 2;
        let narrow = self.upstream == Upstream::Head && numbers.clone().all(|n| i32::try_from(n).is_ok());
        if narrow {
            npy::write(&file("sample_index.npy"), 2, count, numbers.map(|n| n as i32))?;
        } else {
            npy::write(&file("sample_index.npy"), 2, count, numbers)?;
        }
        npy::write(&file("shuffle_index.npy"), 0, index.shuffle.len(), index.shuffle.iter().copied())?;
        // Upstream takes an index for complete when all four files are there.
        write_text(&file("description.txt"), &description)
    }
}

/// What decides the order of a blend.
pub(super) struct BlendKey<'a> {
    pub(super) cache: &'a IndexCache,
    pub(super) parts: Vec<Value>,
    pub(super) split_name: &'static str,
    pub(super) weights: &'a [f64],
    /// `None` for an exhaustive blend.
    pub(super) size: Option<u64>,
}

impl BlendKey<'_> {
    fn stem(&self) -> (String, String) {
        let weights: Vec<Value> = self.weights.iter().map(|&w| float(w)).collect();
        let mut out = Map::new();
        let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
        put("class", "BlendedDataset".into());
        put("datasets", self.parts.clone().into());
        put("split", self.split_name.into());
        put("weights", weights.into());
        put("size", self.size.map_or(Value::Null, Value::from));
        let description = text(&Value::Object(out));
        (md5_hex(&description), description)
    }

    fn file(&self, stem: &str, what: &str) -> PathBuf {
        self.cache.path(&format!("{stem}-BlendedDataset-{}-{what}", self.split_name))
    }

    /// The order of the files, if they are there and fit the sets' lengths.
    pub(super) fn read(&self, lengths: &[u64]) -> Option<BlendIndex> {
        let (stem, _) = self.stem();
        let dataset = Array::open(&self.file(&stem, "dataset_index.npy")).ok()?;
        let sample = Array::open(&self.file(&stem, "dataset_sample_index.npy")).ok()?;
        let index = BlendIndex {
            dataset: dataset.values().map(|v| i16::try_from(v).ok()).collect::<Option<_>>()?,
            sample: sample.values().collect(),
        };
        let inside = |(&set, &sample): (&i16, &i64)| {
            let length = usize::try_from(set).ok().and_then(|set| lengths.get(set));
            length.is_some_and(|&length| u64::try_from(sample).is_ok_and(|sample| sample < length))
        };
        let whole = self.size.unwrap_or_else(|| lengths.iter().sum());
        let fits = index.dataset.len() == index.sample.len()
            && index.dataset.len() as u64 == whole
            && index.dataset.iter().zip(&index.sample).all(inside);
        if !fits {
            tracing::warn!("blend index {stem} does not fit the data and is built again");
        }
        fits.then_some(index)
    }

    /// Writes the order under upstream's names.
    pub(super) fn write(&self, index: &BlendIndex) -> Result<()> {
        std::fs::create_dir_all(&self.cache.folder).map_err(Error::io(&self.cache.folder))?;
        let (stem, description) = self.stem();
        let file = |what: &str| self.file(&stem, what);
        npy::write(&file("dataset_index.npy"), 0, index.dataset.len(), index.dataset.iter().copied())?;
        npy::write(&file("dataset_sample_index.npy"), 0, index.sample.len(), index.sample.iter().copied())?;
        write_text(&file("description.txt"), &description)
    }
}

/// The arrays as an index, if they could have been built of this set: whole epochs of its sequences, the samples that
/// these tokens give, positions inside their sequences, a permutation.
fn fitting(
    set: &Source,
    sequences: &Range<usize>,
    key: &SetKey<'_>,
    documents: &Array,
    samples: &Array,
    shuffle: &Array,
) -> std::result::Result<GptIndex, String> {
    let row = key.row_tokens as i64;
    if (documents.columns, samples.columns, shuffle.columns) != (0, 2, 0) {
        return Err("its arrays have other dimensions".into());
    }
    let inside = |v: i64| usize::try_from(v).is_ok_and(|v| sequences.contains(&v));
    let documents: Vec<i32> = documents
        .values()
        .map(|v| inside(v).then_some(v as i32))
        .collect::<Option<_>>()
        .ok_or("a sequence outside the split")?;
    let per_epoch: i64 = sequences.clone().map(|i| set.length(i) as i64).sum();
    if per_epoch == 0
        || sequences.is_empty()
        || !documents.len().is_multiple_of(sequences.len())
        || documents.is_empty()
    {
        return Err(format!("{} entries for {} sequences", documents.len(), sequences.len()));
    }
    let epochs = (documents.len() / sequences.len()) as i64;
    let tokens: i64 = documents.iter().map(|&d| set.length(d as usize) as i64).sum();
    if tokens != epochs * per_epoch {
        return Err(format!("{tokens} tokens in {epochs} epochs of {per_epoch}"));
    }
    let count = ((tokens - 1) / row).max(0) as usize;
    let flat: Vec<i64> = samples.values().collect();
    let rows: Vec<(i64, i64)> = flat.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    if rows.len() != count + 1 {
        return Err(format!("{} samples, expected {count}", rows.len().saturating_sub(1)));
    }
    let length = |at: i64| {
        usize::try_from(at).ok().and_then(|at| documents.get(at)).map(|&d| set.length(d as usize) as i64)
    };
    let sound =
        rows.iter().all(|&(at, offset)| length(at).is_some_and(|length| (0..=length).contains(&offset)))
            && rows.windows(2).all(|pair| pair[0] <= pair[1]);
    if !sound {
        return Err("a sample that starts outside its sequence".into());
    }
    let mut seen = vec![false; count];
    let mut order = Vec::with_capacity(count);
    for value in shuffle.values() {
        let place = usize::try_from(value).ok().and_then(|v| seen.get_mut(v)).filter(|seen| !**seen);
        *place.ok_or("its order is not a permutation")? = true;
        order.push(value as u32);
    }
    if order.len() != count {
        return Err(format!("an order of {}, expected {count}", order.len()));
    }
    let separate = super::index::separate_last_epoch(key.samples, epochs, per_epoch, row)?;
    Ok(GptIndex {
        documents,
        samples: rows,
        shuffle: order,
        tokens_per_epoch: per_epoch,
        epochs,
        separate_last_epoch: separate,
    })
}

fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// `json.dumps(value, indent=4)`, with everything beyond ASCII escaped.
fn text(value: &Value) -> String {
    python_json::Style { indent: Some(4), ensure_ascii: true, ..Default::default() }.dumps(value)
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(text.as_bytes()).map_err(Error::io(path))?;
    Ok(file.commit()?)
}
