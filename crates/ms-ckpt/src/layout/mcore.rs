//! Megatron checkpoints in the `torch` format: `iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ms_core::{DType, Region};
use ms_spec::{Feed, ModelConfig, ParamSpec, Place, hf, megatron, params};
use serde_json::{Map, Value};

use super::cut::{MODEL, Placement, Rank};
use super::hf::read_json;
use super::iteration_name;
use super::rank_file::{Tensors, rank_file};
use super::spelling::{Local, Speller, alternative};
use crate::adapter::{self, Adapters, Part};
use crate::checkpoint::{Checkpoint, Global, Kind, Piece, Stored};
use crate::torch::{Node, TorchFile};
use crate::{Error, Mapped, Result, plan};

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

/// A rank's file.
struct RankFile {
    rank: Rank,
    path: PathBuf,
    /// Tensors by chunk and name.
    tensors: Tensors,
    chunks: usize,
}

impl RankFile {
    fn has(&self, part: &str) -> bool {
        self.tensors.keys().any(|(_, name)| name.contains(part))
    }
}

/// Opens the files of an iteration.
pub(crate) fn open(root: &Path, folder: &Path, hints: &Hints) -> Result<Checkpoint> {
    let mut opened = Opened::read(folder)?;
    opened.number()?;
    let (mut config, config_json) = opened.config(root, folder, hints)?;
    let cut = opened.cut(folder, &config, hints)?;
    let spelling = opened.spelling();
    opened.rows(&mut config, &cut);
    let config = config.validate().map_err(Error::spec(folder))?;
    let placement = opened.placement(folder, &config, &cut)?;
    let Assembled { globals, adapters, copies } =
        opened.assemble(folder, &config, &cut, &placement, spelling)?;
    let iteration = opened.args.get("iteration").and_then(Value::as_u64);
    let named = folder.file_name().and_then(|n| n.to_str()?.strip_prefix("iter_")?.parse().ok());
    Ok(Checkpoint {
        root: root.to_owned(),
        kind: if spelling.legacy { Kind::Legacy } else { Kind::Mcore },
        config,
        config_json,
        files: opened.files,
        stored: opened.stored,
        globals,
        iteration: named.or(iteration).unwrap_or(0),
        args: opened.args,
        state: Value::Null,
        via: None,
        adapters,
        copies,
        merge: None,
    })
}

struct Opened {
    folder: PathBuf,
    /// Numbers in the folder names, beside the files.
    numbers: Vec<Vec<usize>>,
    ranks: Vec<RankFile>,
    files: Vec<Mapped>,
    stored: Vec<Stored>,
    args: Map<String, Value>,
}

impl Opened {
    fn read(folder: &Path) -> Result<Self> {
        let mut found: BTreeMap<Vec<usize>, PathBuf> = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
            let path = entry.map_err(Error::io(folder, "list"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix("mp_rank_") else { continue };
            let numbers: Option<Vec<usize>> = rest.split('_').map(|n| n.parse().ok()).collect();
            if let Some(numbers) = numbers.filter(|n| n.len() <= 3 && n.iter().all(|&n| n < 1 << 16)) {
                found.insert(numbers, path);
            }
        }
        let mut opened = Self {
            folder: folder.to_owned(),
            numbers: Vec::new(),
            ranks: Vec::new(),
            files: Vec::new(),
            stored: Vec::new(),
            args: Map::new(),
        };
        for (numbers, path) in found {
            let path = path.join(FILE);
            let torch = TorchFile::open(&path)?;
            let version = torch.root().get("checkpoint_version").and_then(|v| v.to_json().as_f64());
            if let Some(version) = version.filter(|v| *v < 3.0) {
                let what = format!("checkpoint version {version}: before 3.0 other orders were stored");
                return Err(Error::malformed(&path, what));
            }
            if opened.args.is_empty()
                && let Some(Value::Object(map)) = torch.root().get("args").map(Node::to_json)
            {
                opened.args = map;
            }
            let (tensors, chunks) = rank_file(&torch, &path, opened.files.len(), &mut opened.stored)?;
            let rank = Rank { t: numbers[0], p: 0, e: 0 };
            opened.ranks.push(RankFile { rank, path, tensors, chunks });
            opened.numbers.push(numbers);
            opened.files.push(torch.into_file());
        }
        match opened.ranks.is_empty() {
            true => Err(Error::folder(folder, "no folder is named mp_rank_TT[_PPP][_EEE]")),
            false => Ok(opened),
        }
    }

    fn arg(&self, name: &str) -> Option<usize> {
        self.args.get(name).and_then(Value::as_u64).map(|n| n as usize)
    }

    fn flag(&self, name: &str) -> bool {
        self.args.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Finds out what the numbers of the folder names mean.
    fn number(&mut self) -> Result<()> {
        let fields = self.numbers[0].len();
        if self.numbers.iter().any(|n| n.len() != fields) {
            return Err(Error::folder(&self.folder, "the folders of ranks have different numbers of fields"));
        }
        let (pp, ep) = match fields {
            1 => (false, false),
            3 => (true, true),
            // The second number is a stage or an expert rank: only the contents tell.
            _ => match (self.arg("pipeline_model_parallel_size"), self.arg("expert_model_parallel_size")) {
                (Some(p), _) if p > 1 => (true, false),
                (_, Some(e)) if e > 1 => (false, true),
                _ => {
                    let everywhere = self.ranks.iter().all(|r| r.has("word_embeddings"));
                    (!everywhere, everywhere)
                }
            },
        };
        for (file, n) in self.ranks.iter_mut().zip(&self.numbers) {
            file.rank.p = if pp { n[1] } else { 0 };
            file.rank.e = match (ep, pp) {
                (true, true) => n[2],
                (true, false) => n[1],
                _ => 0,
            };
        }
        Ok(())
    }

    /// The model: from `args`, made complete by a `config.json` if that describes the same one.
    fn config(&self, root: &Path, folder: &Path, hints: &Hints) -> Result<(ModelConfig, Option<Value>)> {
        if let Some(model) = &hints.model {
            return Ok((model.clone(), None));
        }
        let beside = root.join("config.json");
        let json = match &hints.config {
            Some(json) => Some(json.clone()),
            None => beside.is_file().then(|| read_json(&beside)).transpose()?,
        };
        let from_json =
            json.as_ref().map(|j| hf::read_config(j).map_err(Error::spec(&beside))).transpose()?;
        if self.args.is_empty() {
            let config = from_json.ok_or_else(|| {
                Error::folder(
                    folder,
                    "the files hold no args and there is no config.json beside them\nhint: put the model's config.json into the checkpoint's folder",
                )
            })?;
            return Ok((self.with_mtp(config), json));
        }
        let whole = self.args.get(MODEL).and_then(Value::as_str);
        let from_args = match whole.and_then(|text| serde_json::from_str::<ModelConfig>(text).ok()) {
            Some(config) => config.validate(),
            None => megatron::from_args(&self.args),
        };
        let config = match (from_json, from_args) {
            (None, from_args) => from_args.map_err(Error::spec(folder))?,
            // The arguments of a training run need not describe every part of a model in words known here.
            (Some(full), Err(_)) => full,
            (Some(full), Ok(args)) => {
                let sizes =
                    |c: &ModelConfig| (c.layers, c.hidden, c.heads, c.groups, c.tied, c.moe.is_some());
                if sizes(&full) == sizes(&args) {
                    full
                } else if hints.config.is_some() {
                    let (want, got) = (sizes(&full), sizes(&args));
                    let what = format!(
                        "the given configuration describes another model than the checkpoint's args: (layers, hidden, heads, key/value heads, tied, experts) {want:?}, the checkpoint has {got:?}"
                    );
                    return Err(Error::folder(folder, what));
                } else {
                    tracing::warn!(
                        "{} describes another model than the checkpoint's args; ignored",
                        beside.display()
                    );
                    args
                }
            }
        };
        Ok((self.with_mtp(config), json))
    }

    /// Prediction layers are there or not, whatever the configuration says.
    fn with_mtp(&self, config: ModelConfig) -> ModelConfig {
        let numbers = |name: &str| {
            let rest = name.strip_prefix("mtp.layers.").or_else(|| name.strip_prefix("mtp_layers."))?;
            rest.split('.').next()?.parse::<usize>().ok()
        };
        let names = self.ranks.iter().flat_map(|r| r.tensors.keys());
        let mtp = names.filter_map(|(_, name)| numbers(name)).max().map_or(0, |n| n.min(63) + 1);
        ModelConfig { mtp, ..config }
    }

    fn cut(&self, folder: &Path, config: &ModelConfig, hints: &Hints) -> Result<Cut> {
        let most = |of: fn(&Rank) -> usize| self.ranks.iter().map(|r| of(&r.rank)).max().unwrap_or(0) + 1;
        let mut cut = Cut { tp: most(|r| r.t), pp: most(|r| r.p), ep: most(|r| r.e), ..Cut::default() };
        for (name, have) in [
            ("tensor_model_parallel_size", cut.tp),
            ("pipeline_model_parallel_size", cut.pp),
            ("expert_model_parallel_size", cut.ep),
        ] {
            // Converters write the tensor-parallel size of experts as the number of files along it.
            if let Some(said) = self.arg(name).filter(|&said| said != have) {
                let what = format!("args say {name} {said}, but there are {have} ranks along it");
                return Err(Error::folder(folder, what));
            }
        }
        let last_chunk_first_stage =
            |r: &RankFile| r.rank.p == 0 && r.tensors.contains_key(&(1, "output_layer.weight".to_owned()));
        cut.dual_pipe = self.args.get("schedules_method").and_then(Value::as_str) == Some("dualpipev")
            || (cut.pp > 1 && self.ranks.iter().any(last_chunk_first_stage));
        cut.expert_tp = match hints.extend_ep.unwrap_or_else(|| self.flag("moe_tp_extend_ep")) {
            true if cut.tp > 1 => ExpertTp::Extend,
            _ => self.expert_tp(config, &cut),
        };
        let have: BTreeSet<Rank> = self.ranks.iter().map(|r| r.rank).collect();
        // Counted first: the numbers come from folder names, and a list of all ranks may be endless.
        let want = cut.files();
        if have.len() != want || cut.ranks()?.iter().any(|r| !have.contains(r)) {
            let names: Vec<String> = self
                .ranks
                .iter()
                .filter_map(|r| r.path.parent()?.file_name()?.to_str().map(str::to_owned))
                .collect();
            let what = format!("{} of {want} rank folders are there: {}", have.len(), names.join(" "));
            return Err(Error::folder(folder, what));
        }
        Ok(cut)
    }

    /// Whether experts are cut, from the size of the first that is found.
    fn expert_tp(&self, config: &ModelConfig, cut: &Cut) -> ExpertTp {
        let Some(moe) = config.moe.as_ref().filter(|_| cut.tp > 1) else { return ExpertTp::Cut };
        let gate = if config.activation.gated() { 2 } else { 1 };
        for ((_, name), &i) in self.ranks.iter().flat_map(|r| &r.tensors) {
            let (stored, whole) = (&self.stored[i], gate * moe.ffn * config.hidden);
            let numel: usize = stored.shape.iter().product();
            let one =
                name.contains("local_experts.0.linear_fc1.weight") || name.ends_with("linear_fc1.weight0");
            let per_rank = moe.experts / cut.ep.max(1);
            if (one && name.contains(".experts.") && numel == whole)
                || (name.ends_with("mlp.experts.weight1") && numel == whole * per_rank)
            {
                return ExpertTp::Whole;
            }
            if one || name.ends_with("mlp.experts.weight1") {
                return ExpertTp::Cut;
            }
        }
        ExpertTp::Cut
    }

    fn spelling(&self) -> Spelling {
        let has = |part: &str| self.ranks.iter().any(|r| r.has(part));
        let v1 = has(".linear_kvb.") || has("mtp_layers.") || has("mlp.shared_expert_gate.");
        let one_key_each = has(".experts.linear_fc1.weight0");
        Spelling {
            version: if v1 { Version::V2_0_0 } else { Version::Head },
            transformer_engine: one_key_each,
            experts: if has("mlp.experts.weight1") || one_key_each {
                Experts::Grouped
            } else {
                Experts::Sequential
            },
            mla_split: has(".linear_kv_nope."),
            legacy: has("language_model/"),
            nf4: false,
        }
    }

    /// Takes the size of the vocabulary and the element type from the embedding.
    fn rows(&self, config: &mut ModelConfig, cut: &Cut) {
        let named = |name: &str| {
            matches!(
                name,
                "embedding.word_embeddings.weight" | "language_model/embedding/word_embeddings/weight"
            )
        };
        let embedding = self.ranks.iter().flat_map(|r| &r.tensors).find(|((_, name), _)| named(name));
        if let Some((_, &i)) = embedding {
            let rows = self.stored[i].shape.first().copied().unwrap_or(0).saturating_mul(cut.tp);
            config.vocab = config.vocab.min(rows);
            config.padded_vocab = rows;
            config.dtype = Some(self.stored[i].dtype);
        }
    }

    /// Finds every layer's chunk and slot. Layers are numbered by the order of chunks; empty slots have no tensors.
    fn placement(&self, folder: &Path, config: &ModelConfig, cut: &Cut) -> Result<Placement> {
        let chunks = self.ranks.iter().map(|r| r.chunks).max().unwrap_or(1);
        if cut.dual_pipe && chunks != 2 {
            return Err(Error::folder(folder, format!("{chunks} chunks in DualPipeV order, expected 2")));
        }
        let mut placement: Placement = vec![vec![Vec::new(); chunks]; cut.pp];
        let mut next = 0;
        for v in 0..chunks {
            let stages: Vec<usize> = match cut.dual_pipe && v == 1 {
                true => (0..cut.pp).rev().collect(),
                false => (0..cut.pp).collect(),
            };
            for p in stages {
                let slots: BTreeSet<usize> = self
                    .ranks
                    .iter()
                    .filter(|r| r.rank.p == p)
                    .flat_map(|r| r.tensors.keys())
                    .filter(|(c, _)| *c == v)
                    .filter_map(|(_, name)| slot_of(name))
                    .collect();
                if let Some(&last) = slots.last()
                    && last >= 1 << 14
                {
                    return Err(Error::folder(folder, format!("a layer with the number {last}")));
                }
                let mut list = vec![None; slots.last().map_or(0, |l| l + 1)];
                for slot in slots {
                    list[slot] = Some(next);
                    next += 1;
                }
                placement[p][v] = list;
            }
        }
        match next == config.layers {
            true => Ok(placement),
            false => Err(Error::folder(
                folder,
                format!("{next} layers are there, the model has {}", config.layers),
            )),
        }
    }

    /// Finds every parameter's pieces.
    fn assemble(
        &self,
        folder: &Path,
        config: &ModelConfig,
        cut: &Cut,
        placement: &Placement,
        spelling: Spelling,
    ) -> Result<Assembled> {
        cut.check(config)?;
        let only_adapters = !self.ranks.iter().any(|r| r.has("word_embeddings"));
        let mut adapters = Adapters::new();
        let mut copies = Vec::new();
        let mut globals: BTreeMap<String, Global> = BTreeMap::new();
        // Where a piece begins in its tensor: equal copies on other ranks are left out.
        let mut seen: BTreeSet<(String, usize)> = BTreeSet::new();
        for file in &self.ranks {
            let mut used: BTreeSet<usize> = BTreeSet::new();
            for local in rank_tensors(config, cut, placement, spelling, file.rank)? {
                let names = std::iter::once(local.name.clone()).chain(alternative(&local.name));
                let found = names.filter_map(|n| file.tensors.get(&(local.chunk, n))).next();
                if !local.copy {
                    self.adapter(file, &local, &mut used, &mut globals, &mut seen, &mut adapters)?;
                }
                let &i = match found {
                    Some(i) => i,
                    None if local.copy || only_adapters => continue,
                    None => {
                        let path = file.path.clone();
                        return Err(Error::Missing { path, name: local.name });
                    }
                };
                used.insert(i);
                let stored = &self.stored[i];
                if stored.shape != local.lens.shape {
                    return Err(Error::Shape {
                        path: file.path.clone(),
                        name: local.name,
                        want: local.lens.shape,
                        got: stored.shape.clone(),
                    });
                }
                let view = local.lens.view(stored.strides.as_deref());
                let view =
                    view.map_err(|what| Error::malformed(&file.path, format!("{}: {what}", local.name)))?;
                let name = local.spec.name;
                let region = local.lens.region;
                let first = region.runs().next().map_or(0, |r| r.0);
                let piece = Piece { stored: i, region, flat: None, view };
                // The head's copy of the embedding may come before the embedding: it is compared, never read.
                if local.copy || !seen.insert((name.clone(), first)) {
                    copies.push((name, piece));
                    continue;
                }
                let (shape, dtype) = (local.spec.shape, stored.dtype);
                let entry =
                    globals.entry(name).or_insert_with(|| Global { shape, dtype, pieces: Vec::new() });
                entry.pieces.push(piece);
            }
            let extra = file.tensors.iter().find(|(key, i)| !used.contains(i) && !ignored(config, &key.1));
            if let Some(((_, name), _)) = extra {
                let what = format!("tensor {name}: the model has no such parameter");
                return Err(Error::malformed(&file.path, what));
            }
        }
        let mut wanted: Vec<(String, usize)> = globals
            .iter()
            .filter(|(name, _)| name.contains(".lora_"))
            .map(|(name, g)| (name.clone(), g.shape.numel()))
            .collect();
        if !only_adapters {
            wanted.extend(params(config).into_iter().map(|s| (s.name, s.shape.numel())));
        }
        if only_adapters && adapters.is_empty() {
            return Err(Error::folder(folder, "neither weights of the model nor adapters"));
        }
        for (name, numel) in wanted {
            let have: usize = globals
                .get(&name)
                .map_or(0, |g| g.pieces.iter().map(|p| p.region.local_shape().numel()).sum());
            if have != numel {
                return Err(Error::Missing { path: folder.to_owned(), name });
            }
        }
        Ok(Assembled { globals, adapters, copies })
    }

    /// Finds the adapter beside a tensor.
    fn adapter(
        &self,
        file: &RankFile,
        local: &Local,
        used: &mut BTreeSet<usize>,
        globals: &mut BTreeMap<String, Global>,
        seen: &mut BTreeSet<(String, usize)>,
        adapters: &mut Adapters,
    ) -> Result<()> {
        let [a, b] = adapter::local_names(&local.name).map(|n| file.tensors.get(&(local.chunk, n)).copied());
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let n = local.spec.shape.len();
        let grouped = local.lens.transposed;
        let (a_shape, experts) = (&self.stored[a].shape, local.lens.region.local_shape()[0]);
        // Grouped experts keep `[experts, in, r]`, under any shape.
        let columns = if n == 3 { local.lens.region.local_shape()[2] } else { 1 };
        let rank = match grouped {
            true => a_shape.iter().product::<usize>() / (experts * columns).max(1),
            false => a_shape.first().copied().unwrap_or(0),
        };
        if n < 2 || rank == 0 || rank > 1 << 16 || local.name.contains("linear_qk_") {
            return Err(Error::malformed(
                &file.path,
                format!("tensor {}: an adapter of this form", local.name),
            ));
        }
        let names = adapter::names(&local.spec.name);
        let parts = adapter::lenses(&local.spec, &local.lens, rank);
        for ((i, name), (shape, lens)) in [a, b].into_iter().zip(&names).zip(parts) {
            let stored = &self.stored[i];
            let numel = lens.shape.iter().product::<usize>();
            if stored.shape != lens.shape && !(grouped && stored.shape.iter().product::<usize>() == numel) {
                return Err(Error::Shape {
                    path: file.path.clone(),
                    name: stored.name.clone(),
                    want: lens.shape,
                    got: stored.shape.clone(),
                });
            }
            used.insert(i);
            let view = lens.view(stored.strides.as_deref());
            let view = view.map_err(|what| Error::malformed(&file.path, format!("{name}: {what}")))?;
            let first = lens.region.runs().next().map_or(0, |r| r.0);
            let entry = globals.entry(name.clone()).or_insert_with(|| Global {
                shape,
                dtype: stored.dtype,
                pieces: Vec::new(),
            });
            if entry.shape != shape {
                return Err(Error::malformed(
                    &file.path,
                    format!("{name}: ranks have adapters of different sizes"),
                ));
            }
            if seen.insert((name.clone(), first)) {
                entry.pieces.push(Piece { stored: i, region: lens.region, flat: None, view });
            }
        }
        let rows = Region::along(&local.spec.shape, n - 2, std::iter::once(0..local.spec.shape[n - 2]));
        let [a, b] = names;
        adapters.entry(local.spec.name.clone()).or_insert_with(|| vec![Part { a, b, rows }]);
        Ok(())
    }
}

/// What the files of all ranks make up together.
struct Assembled {
    globals: BTreeMap<String, Global>,
    adapters: Adapters,
    /// Parts that are there once more.
    copies: Vec<(String, Piece)>,
}

/// The number of the layer in a tensor's name.
fn slot_of(name: &str) -> Option<usize> {
    let rest = name
        .strip_prefix("decoder.layers.")
        .or_else(|| name.strip_prefix("language_model/encoder/layers."))?;
    rest.split('.').next()?.parse().ok()
}

/// Tensors that a file may hold although the model has no such parameter.
fn ignored(config: &ModelConfig, name: &str) -> bool {
    // Head's converter leaves layers of earlier stages under negative numbers, and both ends everywhere (Mamba2).
    let stray = config.has_feed(Feed::None)
        && (name.starts_with("decoder.layers.-")
            || matches!(
                name,
                "embedding.word_embeddings.weight" | "decoder.final_norm.weight" | "output_layer.weight"
            ));
    stray
        || name == "output_layer.weight" && config.tied
        || name.ends_with("word_embeddings.weight") && config.mtp > 0
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
pub(crate) fn rank_path(iteration: u64, rank: Rank, cut: &Cut) -> PathBuf {
    Path::new(&iteration_name(iteration)).join(rank_folder(rank, cut)).join(FILE)
}
