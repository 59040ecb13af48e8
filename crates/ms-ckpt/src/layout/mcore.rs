//! Megatron-core checkpoints in the `torch` format: `iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ms_core::{Axis, DType, Region, Topology};
use ms_spec::{ModelConfig, ParamSpec, Place, hf, local, megatron, params};
use serde_json::{Map, Value, json};

use super::hf::read_json;
use super::iteration_name;
use crate::checkpoint::{Checkpoint, Global, Kind, Piece, Stored};
use crate::torch::{Node, TorchFile};
use crate::{Error, Result, plan};

/// Name of the file in each rank's folder.
pub const FILE: &str = "model_optim_rng.pt";

/// How a model is cut into files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tensor-parallel size.
    pub tp: usize,
    /// Pipeline-parallel size.
    pub pp: usize,
    /// Layers of a chunk when stages are interleaved.
    pub layers_per_chunk: Option<usize>,
    /// Slots of each stage when they differ.
    pub layer_list: Option<Vec<usize>>,
    /// Slots without a layer: positions at which empty ones are inserted, in this order.
    pub noop: Vec<usize>,
}

impl Default for Cut {
    fn default() -> Self {
        Self { tp: 1, pp: 1, layers_per_chunk: None, layer_list: None, noop: Vec::new() }
    }
}

impl Cut {
    /// Layers by stage, chunk and slot; `None`: an empty slot.
    ///
    /// # Errors
    /// [`Error::Cut`] with the numbers if the slots cannot be shared out so.
    pub fn placement(&self, layers: usize) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
        let mut slots: Vec<Option<usize>> = (0..layers).map(Some).collect();
        for &at in &self.noop {
            if at > slots.len() {
                return Err(Error::Cut(format!(
                    "empty slot {at} is beyond the {} slots before it",
                    slots.len()
                )));
            }
            slots.insert(at, None);
        }
        let (n, pp) = (slots.len(), self.pp);
        if let Some(list) = &self.layer_list {
            if self.layers_per_chunk.is_some() {
                return Err(Error::Cut("a layer list and interleaved chunks exclude each other".to_owned()));
            }
            if list.len() != pp || list.iter().sum::<usize>() != n {
                return Err(Error::Cut(format!(
                    "layer list {list:?}: expected {pp} numbers with the sum {n}"
                )));
            }
            let mut rest = slots.into_iter();
            return Ok(list.iter().map(|&k| vec![rest.by_ref().take(k).collect()]).collect());
        }
        if pp == 0 || n % pp != 0 {
            return Err(Error::Cut(format!("{n} layers do not divide by pipeline size {pp}")));
        }
        let per_chunk = self.layers_per_chunk.unwrap_or(n / pp);
        if per_chunk == 0
            || (n / pp) % per_chunk != 0
            || (self.layers_per_chunk.is_some() && per_chunk >= n / pp)
        {
            return Err(Error::Cut(format!(
                "chunks of {per_chunk} layers: expected at least two equal ones in a stage of {} layers",
                n / pp
            )));
        }
        let chunks = n / pp / per_chunk;
        let chunk = |p: usize, v: usize| slots[(v * pp + p) * per_chunk..][..per_chunk].to_vec();
        Ok((0..pp).map(|p| (0..chunks).map(|v| chunk(p, v)).collect()).collect())
    }

    fn chunks(&self, layers: usize) -> Result<usize> {
        Ok(self.placement(layers)?[0].len())
    }

    /// The arguments that describe the cut, for the file's `args`.
    pub(crate) fn args(&self, config: &ModelConfig) -> Result<Map<String, Value>> {
        let chunks = self.chunks(config.layers)?;
        let list = |items: &[usize]| {
            let text: Vec<String> = items.iter().map(ToString::to_string).collect();
            Value::String(text.join(","))
        };
        let mut args = megatron::to_args(config);
        let mut set = |name: &str, value: Value| {
            args.insert(name.to_owned(), value);
        };
        set("num_layers", json!(config.layers + self.noop.len()));
        set("tensor_model_parallel_size", json!(self.tp));
        set("pipeline_model_parallel_size", json!(self.pp));
        set("virtual_pipeline_model_parallel_size", if chunks > 1 { json!(chunks) } else { Value::Null });
        set("num_layers_per_virtual_pipeline_stage", json!(self.layers_per_chunk));
        set("num_layer_list", self.layer_list.as_deref().map_or(Value::Null, list));
        set("noop_layers", if self.noop.is_empty() { Value::Null } else { list(&self.noop) });
        set("expert_model_parallel_size", json!(1));
        set("context_parallel_size", json!(1));
        set("sequence_parallel", json!(false));
        set("iteration", json!(1));
        set("consumed_train_samples", json!(0));
        set("consumed_valid_samples", json!(0));
        Ok(args)
    }
}

/// Which spelling of tensor names is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Spelling {
    /// Norms stand on their own.
    #[default]
    Local,
    /// Transformer Engine: the first norm of a layer is part of `linear_qkv`. The second keeps its own name, as
    /// head's converter writes it for models without leading dense layers.
    TransformerEngine,
}

/// One tensor of a rank's file.
pub(crate) struct Local {
    pub(crate) chunk: usize,
    pub(crate) name: String,
    pub(crate) spec: ParamSpec,
    pub(crate) region: Region,
}

/// Folder of a rank, relative to the iteration's.
pub(crate) fn rank_folder(t: usize, p: usize, pp: usize) -> String {
    if pp == 1 { format!("mp_rank_{t:02}") } else { format!("mp_rank_{t:02}_{p:03}") }
}

/// The tensors of rank `(t, p)`, in Megatron's order.
pub(crate) fn rank_tensors(
    config: &ModelConfig,
    cut: &Cut,
    spelling: Spelling,
    t: usize,
    p: usize,
) -> Result<Vec<Local>> {
    let path = Path::new("cut");
    ms_spec::check_cut(config, cut.tp).map_err(|e| Error::Cut(e.to_string()))?;
    let placement = cut.placement(config.layers)?;
    let topology = Topology::new(&[(Axis::Tp, cut.tp)]).map_err(|e| Error::Cut(e.to_string()))?;
    let specs = params(config);
    let chunks = &placement[p];
    let mut out = Vec::new();
    let mut push = |chunk: usize, name: String, spec: &ParamSpec| -> Result<()> {
        let region = local(spec, &topology, t).map_err(Error::spec(path))?;
        out.push(Local { chunk, name, spec: spec.clone(), region });
        Ok(())
    };
    for (c, slots) in chunks.iter().enumerate() {
        if p == 0 && c == 0 {
            push(c, specs[0].name.clone(), &specs[0])?;
        }
        for (slot, layer) in slots.iter().enumerate() {
            let Some(layer) = layer else { continue };
            for spec in specs.iter().filter(|s| s.place == Place::Layer(*layer)) {
                push(c, spelled(spelling, &inner(spec), slot), spec)?;
            }
        }
        if p + 1 == cut.pp && c + 1 == chunks.len() {
            for spec in specs.iter().filter(|s| s.place == Place::Head) {
                push(c, spec.name.clone(), spec)?;
            }
            if config.tied && cut.pp > 1 {
                // The last stage needs the embedding too; Megatron keeps it under the output layer's name.
                push(c, OUTPUT.to_owned(), &specs[0])?;
            }
        }
    }
    Ok(out)
}

const OUTPUT: &str = "output_layer.weight";

/// The name of a layer's parameter without `decoder.layers.N.`.
fn inner(spec: &ParamSpec) -> String {
    spec.name.splitn(4, '.').nth(3).unwrap_or(&spec.name).to_owned()
}

fn spelled(spelling: Spelling, inner: &str, slot: usize) -> String {
    match (spelling, inner) {
        (Spelling::TransformerEngine, "input_layernorm.weight") => {
            format!("decoder.layers.{slot}.self_attention.linear_qkv.layer_norm_weight")
        }
        _ => format!("decoder.layers.{slot}.{inner}"),
    }
}

/// The canonical end of a layer's tensor name.
fn canonical(inner: &str) -> &str {
    match inner {
        "self_attention.linear_qkv.layer_norm_weight" => "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight" => "pre_mlp_layernorm.weight",
        other => other,
    }
}

type RankFolders = BTreeMap<(usize, usize), PathBuf>;

/// Folders `mp_rank_TT[_PPP]` of an iteration, by `(t, p)`; whether there was a second number.
fn rank_folders(folder: &Path) -> Result<(RankFolders, bool)> {
    let mut found = BTreeMap::new();
    let mut two = false;
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let path = entry.map_err(Error::io(folder, "list"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix("mp_rank_") else { continue };
        let numbers: Option<Vec<usize>> = rest.split('_').map(|n| n.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[t]) => found.insert((t, 0), path),
            Some(&[t, p]) => {
                two = true;
                found.insert((t, p), path)
            }
            Some(&[_, _, _]) => {
                return Err(Error::folder(
                    folder,
                    format!("{name}: checkpoints with expert parallelism are not supported yet"),
                ));
            }
            _ => continue,
        };
    }
    Ok((found, two))
}

struct Tensors {
    /// Chunk, name, index in the list of stored tensors.
    list: Vec<(usize, String, usize)>,
    chunks: usize,
}

pub(crate) fn open(root: &Path, folder: &Path) -> Result<Checkpoint> {
    let (ranks, two) = rank_folders(folder)?;
    let tp = ranks.keys().map(|k| k.0 + 1).max().unwrap_or(0);
    let pp = ranks.keys().map(|k| k.1 + 1).max().unwrap_or(0);
    if ranks.len() != tp * pp {
        let have: Vec<String> =
            ranks.keys().map(|(t, p)| rank_folder(*t, *p, if two { 2 } else { 1 })).collect();
        return Err(Error::folder(
            folder,
            format!("{} of {} rank folders are there: {}", ranks.len(), tp * pp, have.join(" ")),
        ));
    }
    let mut files = Vec::new();
    let mut stored: Vec<Stored> = Vec::new();
    let mut by_rank: BTreeMap<(usize, usize), Tensors> = BTreeMap::new();
    let mut args = Map::new();
    for (&rank, path) in &ranks {
        let path = path.join(FILE);
        let torch = TorchFile::open(&path)?;
        if let Some(version) = torch.root().get("checkpoint_version").and_then(|v| v.to_json().as_f64())
            && version < 3.0
        {
            return Err(Error::malformed(
                &path,
                format!("checkpoint version {version}: before 3.0 other orders were stored"),
            ));
        }
        if args.is_empty()
            && let Some(Value::Object(map)) = torch.root().get("args").map(Node::to_json)
        {
            args = map;
        }
        let tensors = rank_file(&torch, &path, files.len(), &mut stored)?;
        by_rank.insert(rank, tensors);
        files.push(torch.into_file());
    }
    refuse_other_kinds(folder, &args, tp, pp)?;
    let (config, config_json) = read_config(root, folder, &args, &by_rank, &stored, tp)?;
    let globals = assemble(folder, &config, tp, pp, &by_rank, &stored)?;
    let iteration = args.get("iteration").and_then(Value::as_u64);
    let named = folder.file_name().and_then(|n| n.to_str()?.strip_prefix("iter_")?.parse().ok());
    Ok(Checkpoint {
        root: root.to_owned(),
        kind: Kind::Mcore,
        config,
        config_json,
        files,
        stored,
        globals,
        iteration: named.or(iteration).unwrap_or(0),
        args,
        state: Value::Null,
        via: None,
    })
}

/// Lists the tensors of one file.
fn rank_file(torch: &TorchFile, path: &Path, file: usize, stored: &mut Vec<Stored>) -> Result<Tensors> {
    let Node::Dict(top) = torch.root() else {
        return Err(Error::malformed(path, "the saved object is no dictionary"));
    };
    let mut list = Vec::new();
    let mut chunks = 0;
    for (key, node) in top {
        let Some(number) = key.strip_prefix("model") else { continue };
        let chunk = match number {
            "" => 0,
            n => match n.parse() {
                Ok(chunk) => chunk,
                Err(_) => continue,
            },
        };
        let Node::Dict(entries) = node else {
            return Err(Error::malformed(path, format!("{key} is no dictionary")));
        };
        if entries.iter().any(|(k, _)| k == "language_model") {
            return Err(Error::malformed(path, "the legacy layout is not supported yet"));
        }
        chunks = chunks.max(chunk + 1);
        for (name, node) in entries {
            // None entries are left by modules with extra state; buffers of old files are no parameters.
            let Node::Tensor(tensor) = node else { continue };
            if name.ends_with("_extra_state") || name.ends_with(".inv_freq") {
                continue;
            }
            let view = torch.view(name, tensor)?;
            list.push((chunk, name.clone(), stored.len()));
            stored.push(Stored {
                name: if number.is_empty() { name.clone() } else { format!("{key}/{name}") },
                file,
                dtype: view.dtype,
                shape: view.shape,
                start: view.start,
                strides: view.strides,
            });
        }
    }
    if chunks == 0 {
        return Err(Error::malformed(path, "no `model` in the saved dictionary"));
    }
    Ok(Tensors { list, chunks })
}

fn refuse_other_kinds(folder: &Path, args: &Map<String, Value>, tp: usize, pp: usize) -> Result<()> {
    let size = |name: &str| args.get(name).and_then(Value::as_u64).unwrap_or(1) as usize;
    let set = |name: &str| {
        args.get(name).is_some_and(|v| !v.is_null() && v.as_bool() != Some(false) && v.as_u64() != Some(0))
    };
    if size("expert_model_parallel_size") > 1 || set("num_experts") {
        return Err(Error::folder(folder, "mixture-of-experts checkpoints are not supported yet"));
    }
    if set("multi_head_latent_attention") || set("multi_latent_attention") {
        return Err(Error::folder(folder, "checkpoints with latent attention are not supported yet"));
    }
    if args.get("schedules_method").and_then(Value::as_str) == Some("dualpipev") {
        return Err(Error::folder(folder, "checkpoints in DualPipeV order are not supported yet"));
    }
    for (name, have) in [("tensor_model_parallel_size", tp), ("pipeline_model_parallel_size", pp)] {
        if args.contains_key(name) && size(name) != have {
            let said = size(name);
            return Err(Error::folder(
                folder,
                format!("args say {name} {said}, but there are {have} ranks along it"),
            ));
        }
    }
    Ok(())
}

/// The model: from `args`, made complete by a `config.json` beside the checkpoint if that describes the same one.
fn read_config(
    root: &Path,
    folder: &Path,
    args: &Map<String, Value>,
    ranks: &BTreeMap<(usize, usize), Tensors>,
    stored: &[Stored],
    tp: usize,
) -> Result<(ModelConfig, Option<Value>)> {
    let beside = root.join("config.json");
    let json = beside.is_file().then(|| read_json(&beside)).transpose()?;
    let from_json = match &json {
        Some(json) => Some(hf::read_config(json).map_err(Error::spec(&beside))?),
        None => None,
    };
    let mut config = match (args.is_empty(), from_json) {
        (true, Some(config)) => config,
        (true, None) => {
            return Err(Error::folder(
                folder,
                "the files hold no args and there is no config.json beside them\nhint: put the model's config.json into the checkpoint's folder",
            ));
        }
        (false, from_json) => {
            let config = megatron::from_args(args).map_err(Error::spec(folder))?;
            let sizes = |c: &ModelConfig| (c.layers, c.hidden, c.ffn, c.heads, c.groups, c.head_dim, c.tied);
            match from_json {
                Some(full) if sizes(&full) == sizes(&config) => full,
                Some(_) => {
                    tracing::warn!(
                        "{} describes another model than the checkpoint's args; ignored",
                        beside.display()
                    );
                    config
                }
                None => config,
            }
        }
    };
    let embedding = ranks
        .get(&(0, 0))
        .and_then(|r| r.list.iter().find(|(_, n, _)| n == "embedding.word_embeddings.weight"));
    if let Some(&(_, _, i)) = embedding {
        let rows = stored[i].shape.first().copied().unwrap_or(0).saturating_mul(tp);
        config.vocab = config.vocab.min(rows);
        config.padded_vocab = rows;
        config.dtype = Some(stored[i].dtype);
    }
    Ok((config.validate().map_err(Error::spec(folder))?, json))
}

/// Finds every parameter's pieces. Layers are numbered by the order of chunks; empty slots have no tensors.
fn assemble(
    folder: &Path,
    config: &ModelConfig,
    tp: usize,
    pp: usize,
    ranks: &BTreeMap<(usize, usize), Tensors>,
    stored: &[Stored],
) -> Result<BTreeMap<String, Global>> {
    let chunks = ranks.values().map(|r| r.chunks).max().unwrap_or(1);
    // (chunk, stage) and slot of every layer, in the model's order.
    let mut layers: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
    for v in 0..chunks {
        for p in 0..pp {
            let slots: BTreeSet<usize> = ranks[&(0, p)]
                .list
                .iter()
                .filter(|(c, ..)| *c == v)
                .filter_map(|(_, name, _)| {
                    name.strip_prefix("decoder.layers.")?.split('.').next()?.parse().ok()
                })
                .collect();
            for slot in slots {
                let next = layers.len();
                layers.insert((v, p, slot), next);
            }
        }
    }
    if layers.len() != config.layers {
        return Err(Error::folder(
            folder,
            format!("{} layers are there, args say {}", layers.len(), config.layers),
        ));
    }
    let specs = params(config);
    let topology = Topology::new(&[(Axis::Tp, tp)]).map_err(|e| Error::Cut(e.to_string()))?;
    let by_name: BTreeMap<&str, &ParamSpec> = specs.iter().map(|s| (s.name.as_str(), s)).collect();
    let mut globals: BTreeMap<String, Global> = BTreeMap::new();
    for (&(t, p), rank) in ranks {
        for (chunk, name, i) in &rank.list {
            let global = match name.strip_prefix("decoder.layers.").and_then(|rest| rest.split_once('.')) {
                Some((slot, inner)) => {
                    let slot = slot.parse().ok().and_then(|s: usize| layers.get(&(*chunk, p, s)));
                    let Some(layer) = slot else { continue };
                    format!("decoder.layers.{layer}.{}", canonical(inner))
                }
                None => name.clone(),
            };
            if config.tied && global == OUTPUT {
                continue; // the last stage's copy of the embedding
            }
            let Some(spec) = by_name.get(global.as_str()) else {
                return Err(Error::folder(folder, format!("tensor {name}: the model has no such parameter")));
            };
            let region = local(spec, &topology, t).map_err(Error::spec(folder))?;
            let want = region.local_shape();
            if stored[*i].shape[..] != want[..] {
                return Err(Error::Shape {
                    path: folder.join(rank_folder(t, p, pp)),
                    name: name.clone(),
                    want: want.to_vec(),
                    got: stored[*i].shape.clone(),
                });
            }
            let entry = globals.entry(global).or_insert_with(|| Global {
                shape: spec.shape,
                dtype: stored[*i].dtype,
                pieces: Vec::new(),
            });
            // Replicated tensors are equal on all ranks; one copy is enough.
            if spec.partition.is_cut() || entry.pieces.is_empty() {
                let view = stored[*i].strides.clone();
                entry.pieces.push(Piece { stored: *i, region, flat: None, view });
            }
        }
    }
    for spec in &specs {
        let pieces = globals.get(&spec.name).map_or(0, |g| g.pieces.len());
        let want = if spec.partition.is_cut() { tp } else { 1 };
        if pieces != want {
            return Err(Error::Missing { path: folder.to_owned(), name: spec.name.clone() });
        }
    }
    Ok(globals)
}

/// Writes weights that a program holds as a Megatron-core checkpoint of an iteration, and the tracker file.
///
/// `bytes` gives the whole canonical parameter (`[padded_vocab, ...]` for vocabulary tensors) as `dtype`,
/// little-endian; it is called for every piece of it. `more` is added to `args`: consumed samples, the flags of
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
pub(crate) fn rank_path(iteration: u64, t: usize, p: usize, pp: usize) -> PathBuf {
    Path::new(&iteration_name(iteration)).join(rank_folder(t, p, pp)).join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(stage: &[Vec<Option<usize>>]) -> Vec<Vec<Option<usize>>> {
        stage.to_vec()
    }

    #[test]
    fn stages_are_even_listed_or_interleaved() {
        let even = Cut { pp: 2, ..Cut::default() }.placement(4).unwrap();
        assert_eq!(even, [[[Some(0), Some(1)]], [[Some(2), Some(3)]]]);
        let listed = Cut { pp: 2, layer_list: Some(vec![1, 3]), ..Cut::default() }.placement(4).unwrap();
        assert_eq!(real(&listed[1]), [[Some(1), Some(2), Some(3)]]);
        let interleaved = Cut { pp: 2, layers_per_chunk: Some(1), ..Cut::default() }.placement(4).unwrap();
        assert_eq!(interleaved, [[[Some(0)], [Some(2)]], [[Some(1)], [Some(3)]]]);
    }

    #[test]
    fn empty_slots_keep_their_place() {
        let cut = Cut { pp: 2, noop: vec![1, 5], ..Cut::default() };
        assert_eq!(cut.placement(4).unwrap(), [[[Some(0), None, Some(1)]], [[Some(2), Some(3), None]]]);
    }

    #[test]
    fn impossible_cuts_are_refused_with_the_numbers() {
        let message = |cut: Cut| cut.placement(4).unwrap_err().to_string();
        assert_eq!(message(Cut { pp: 3, ..Cut::default() }), "4 layers do not divide by pipeline size 3");
        assert_eq!(
            message(Cut { pp: 2, layer_list: Some(vec![1, 2]), ..Cut::default() }),
            "layer list [1, 2]: expected 2 numbers with the sum 4"
        );
        assert!(
            message(Cut { pp: 2, layers_per_chunk: Some(2), ..Cut::default() })
                .contains("at least two equal ones")
        );
        assert!(message(Cut { noop: vec![9], ..Cut::default() }).contains("beyond"));
    }
}
