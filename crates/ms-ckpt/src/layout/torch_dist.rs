//! Megatron's distributed checkpoints (`torch_dist`): global tensors under keys that do not depend on the sharding.
//!
//! A key covers a parameter of all layers at once, with the layer dimension first (`decoder.layers.mlp.linear_fc2.weight` of
//! shape `[L, H, F]`), or of one layer (`decoder.layers.3.mlp.linear_fc2.weight`) if layers differ. Experts come before the
//! rest (`mlp.experts.experts.linear_fc2.weight`, `[E, H, F]`), or have a key each; the halves of a gated `linear_fc1` may
//! have a key each too (`_w`, `_v`). All these forms are read. Optimizer state has the parameter's key after the prefix
//! `optimizer.state.exp_avg.`.
//!
//! # Source
//! Megatron-Core 0.16.1: `sharded_state_dict` of `transformer_block.py`, `mlp.py`, `moe/experts.py`, `gpt_model.py`,
//! `multi_token_prediction.py`, `distrib_optimizer.py`; for flattened fragments `dist_checkpointing/strategies/torch.py`.

mod key_mapping;
pub(super) mod opened;

pub use key_mapping::Modules;
pub(crate) use key_mapping::{in_layer, module, sections, written};

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::buckets;
use super::described::describe;
use super::fsdp2;
use super::hints::Hints;
use super::number::number_in;
use crate::checkpoint::{Checkpoint, Form};
use crate::dcp::{self, Metadata, Tensor};
use crate::iterations::{TRACKER, iteration_of, read_tracker};
use crate::optim;
use crate::torch::{Node, TorchFile};
use crate::{Error, Result};
use opened::Opened;

/// Opens a distributed checkpoint.
pub(crate) fn open(root: &Path, folder: &Path, hints: &Hints) -> Result<Checkpoint> {
    let metadata = Metadata::read(folder)?;
    let common = folder.join(dcp::COMMON);
    let common = common.is_file().then(|| TorchFile::open(&common)).transpose()?;
    let args = match common.as_ref().and_then(|c| c.root().get("args")).map(Node::to_json) {
        Some(Value::Object(args)) => args,
        _ => Map::new(),
    };
    let mtp = metadata.tensors.keys().filter_map(|k| number_in(k, "mtp.layers.")).max();
    let mtp = mtp.map_or(0, |n| n.min(63) + 1);
    let (mut config, config_json) = describe(&args, mtp, root, folder, hints)?;
    let hugging_face = fsdp2::embedding_key(&metadata, &config);
    let embedding = hugging_face.as_deref().unwrap_or("embedding.word_embeddings.weight");
    if let Some(embedding) = metadata.tensors.get(embedding) {
        let rows = embedding.size.first().copied().unwrap_or(0);
        config.vocab = config.vocab.min(rows);
        config.padded_vocab = rows;
        config.dtype = embedding.dtype;
    }
    let head = |name: &str| metadata.tensors.contains_key(name);
    config.reward = ["rm_head.weight", "score.weight", "model.score.weight"].into_iter().any(head);
    let config = config.validate().map_err(Error::spec(folder))?;
    let mut opened = Opened {
        folder,
        metadata: &metadata,
        config: &config,
        files: Vec::new(),
        by_name: BTreeMap::new(),
        stored: Vec::new(),
        chunks: BTreeMap::new(),
        used: BTreeSet::new(),
    };
    let globals = match &hugging_face {
        Some(_) => opened.named_as_hugging_face()?,
        None => opened.globals()?,
    };
    let iteration =
        common.as_ref().and_then(|c| c.root().get("iteration")).and_then(|n| n.to_json().as_u64());
    let mut state = common.as_ref().map_or(Ok(Value::Null), optim::run_state)?;
    if hugging_face.is_some() {
        state = opened.optimizer_steps()?;
    }
    let mut ways = Vec::new();
    if opened.has_buckets() {
        opened.beside_buckets(&mut state)?;
        let modules = buckets::modules(&config).into_iter();
        ways = modules.map(|modules| opened.by_rank(&args, &globals, modules)).collect();
    }
    opened.report_unused();
    let Opened { files, stored, .. } = opened;
    let mut checkpoint = Checkpoint {
        config_json,
        files,
        stored,
        globals,
        iteration: iteration_of(folder).or(iteration).unwrap_or(0),
        args,
        state,
        ..Checkpoint::empty(root, Form::TorchDist, config)
    };
    buckets::settle(&mut checkpoint, folder, ways)?;
    Ok(checkpoint)
}

/// A key of a distributed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Element type, by PyTorch's name.
    pub dtype: String,
    /// Dimensions, layers and experts in front.
    pub shape: Vec<usize>,
    /// Number of chunks.
    pub chunks: usize,
}

/// The keys of a checkpoint folder or one iteration of it, in the order of names: what can be said without a model.
///
/// # Errors
/// A folder without `.metadata`, or a damaged one.
pub fn keys(path: &Path) -> Result<Vec<Key>> {
    let tracked = path.join(TRACKER).is_file();
    let folder = if tracked { path.join(read_tracker(path)?) } else { path.to_owned() };
    let key = |(name, t): (String, Tensor)| Key {
        name,
        dtype: t.dtype_name.trim_start_matches("torch.").to_owned(),
        shape: t.size,
        chunks: t.chunks.len(),
    };
    Ok(Metadata::read(&folder)?.tensors.into_iter().map(key).collect())
}
