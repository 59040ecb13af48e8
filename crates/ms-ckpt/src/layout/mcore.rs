//! Megatron checkpoints in the `torch` format: `iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ms_core::DType;
use ms_spec::{ModelConfig, ParamSpec, Place, params};
use serde_json::{Map, Value};

use super::assemble::Assembled;
use super::cut::{Placement, Rank};
use super::described::describe;
use super::ranks::Opened;
use super::spelling::{Local, Speller};
use super::{iteration_name, iteration_of};
use crate::checkpoint::{Checkpoint, Kind};
use crate::{Error, Result, plan};

pub use super::cut::{Cut, ExpertTp};
pub use super::spelling::{Experts, Spelling, Version};

/// Name of the file in each rank's folder.
pub const FILE: &str = "model_optim_rng.pt";

/// What a caller knows of a checkpoint that its files may not say.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The model's `config.json`, from another folder.
    pub config: Option<Value>,
    /// The model itself, for a checkpoint that only holds adapters of it.
    pub model: Option<ModelConfig>,
    /// Whether experts are shared out over tensor-parallel ranks too.
    pub extend_ep: Option<bool>,
}

/// Folder of a rank, relative to the iteration's.
pub(crate) fn rank_folder(rank: Rank, cut: &Cut) -> String {
    let mut name = format!("mp_rank_{:02}", rank.t);
    if cut.pp > 1 {
        name += &format!("_{:03}", rank.p);
    }
    if cut.ep > 1 {
        name += &format!("_{:03}", rank.e);
    }
    name
}

/// The tensors of a rank, in Megatron's order.
pub(crate) fn rank_tensors(
    config: &ModelConfig,
    cut: &Cut,
    placement: &Placement,
    spelling: Spelling,
    rank: Rank,
) -> Result<Vec<Local>> {
    let specs = params(config);
    let speller = Speller::new(config, cut, spelling)?;
    let chunks = &placement[rank.p];
    // The end of the model: the last chunk of the last stage, of the first if the second chunks go backwards.
    let end = (if cut.dual_pipe { 0 } else { cut.pp - 1 }, chunks.len() - 1);
    let mut by_layer: BTreeMap<Place, Vec<&ParamSpec>> = BTreeMap::new();
    for spec in &specs {
        by_layer.entry(spec.place).or_default().push(spec);
    }
    let mut out = Vec::new();
    for (c, slots) in chunks.iter().enumerate() {
        let mut push = |place: Place, slot: usize| -> Result<()> {
            for spec in by_layer.get(&place).into_iter().flatten() {
                out.extend(speller.locals(spec, rank, c, slot)?);
            }
            Ok(())
        };
        if rank.p == 0 && c == 0 {
            push(Place::Embedding, 0)?;
        }
        for (slot, layer) in slots.iter().enumerate() {
            if let Some(layer) = layer {
                push(Place::Layer(*layer), slot)?;
            }
        }
        if (rank.p, c) == end {
            push(Place::Head, 0)?;
            (0..config.mtp).try_for_each(|k| push(Place::Mtp(k), 0))?;
            out.extend(speller.copies(&specs, rank, c)?);
        }
    }
    Ok(out)
}

/// Opens the files of an iteration.
pub(crate) fn open(root: &Path, folder: &Path, hints: &Hints) -> Result<Checkpoint> {
    let mut opened = Opened::read(folder)?;
    opened.number()?;
    let (mut config, config_json) = describe(&opened.args, opened.mtp(), root, folder, hints)?;
    config.reward = opened.ranks.iter().any(|r| r.has("rm_head.weight"));
    let cut = opened.cut(folder, &config, hints)?;
    let spelling = opened.spelling();
    opened.rows(&mut config, &cut);
    let config = config.validate().map_err(Error::spec(folder))?;
    let placement = opened.placement(folder, &config, &cut)?;
    let Assembled { globals, adapters, copies, states } =
        opened.assemble(folder, &config, &cut, &placement, spelling)?;
    opened.stored.extend(states);
    let iteration = opened.args.get("iteration").and_then(Value::as_u64);
    Ok(Checkpoint {
        root: root.to_owned(),
        kind: if spelling.legacy { Kind::Legacy } else { Kind::Mcore },
        config,
        config_json,
        files: opened.files,
        stored: opened.stored,
        globals,
        iteration: iteration_of(folder).or(iteration).unwrap_or(0),
        args: opened.args,
        state: opened.state,
        via: None,
        adapters,
        copies,
        merge: None,
    })
}

/// Writes weights that a program holds as a Megatron-core checkpoint of an iteration, and the tracker file.
///
/// `bytes` gives the whole canonical parameter (`[padded_vocab, ...]` for vocabulary tensors) as `dtype` (float32 for what
/// is not trained: routers' biases, as Megatron keeps them, and whole numbers), little-endian; it is called for every
/// piece of it. `more` is added to `args`: consumed samples, the flags of
/// the run. Optimizer state is not written.
///
/// # Errors
/// A cut that does not divide; what the operating system refuses.
pub fn write(
    root: &Path,
    iteration: u64,
    config: &ModelConfig,
    cut: &Cut,
    dtype: DType,
    more: &Map<String, Value>,
    bytes: &mut dyn FnMut(&ParamSpec) -> Result<Vec<u8>>,
) -> Result<()> {
    let config = ModelConfig { dtype: Some(dtype), ..config.clone() };
    plan::write_mcore(root, iteration, &config, cut, dtype, more, bytes)
}

/// Where the rank files of an iteration go, relative to the output folder.
pub(crate) fn rank_path(iteration: u64, rank: Rank, cut: &Cut) -> PathBuf {
    Path::new(&iteration_name(iteration)).join(rank_folder(rank, cut)).join(FILE)
}
