//! The rank files of an iteration: the sharding according to their names, args and tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ms_core::{Axis, GridSizes, Region};
use ms_spec::{ModelConfig, ParamSpec, Part, Place, Placement, Role, Stages, params};
use serde_json::{Map, Value};

use super::file_grid::{FileGrid, RankNumbers, gcd};
use super::hints::Hints;
use super::number::number_in;
use super::optimizer::States;
use super::rank_file::{Tensors, rank_file};
use super::rank_tensors::FILE;
use super::spelling::{Experts, FourBit, Speller, Spelling, Version, words};
use super::torch_dist::opened::MOST_LAYERS;
use crate::stored::Stored;
use crate::torch::{Node, TorchFile};
use crate::{Error, Mapped, Result, adapter, optim};

/// A rank's file.
pub(super) struct RankFile {
    /// From the folder's name.
    pub(super) numbers: RankNumbers,
    /// The rank in the grid, once that is known.
    pub(super) rank: usize,
    pub(super) path: PathBuf,
    /// Tensors by chunk and name.
    pub(super) tensors: Tensors,
    chunks: usize,
    /// Optimizer state next to the weights.
    pub(super) states: Option<States>,
}

impl RankFile {
    /// Whether it has a tensor of one of these names.
    pub(super) fn has(&self, names: &[String]) -> bool {
        self.tensors.keys().any(|(_, name)| names.contains(name))
    }
}

/// How tensor-parallel ranks hold experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// All of the expert-parallel rank, whole.
    Whole,
    /// A part of each.
    Cut,
    /// Some of them, whole.
    Shared,
    /// Cut or shared.
    Unclear,
}

pub(super) struct Opened {
    folder: PathBuf,
    /// Numbers in the folder names, with the files.
    numbers: Vec<Vec<usize>>,
    pub(super) ranks: Vec<RankFile>,
    pub(super) files: Vec<Mapped>,
    pub(super) stored: Vec<Stored>,
    pub(super) args: Map<String, Value>,
    /// What the first file says of the run.
    pub(super) state: Value,
}

impl Opened {
    pub(super) fn read(folder: &Path) -> Result<Self> {
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
            state: Value::Null,
        };
        for (numbers, path) in found {
            let path = path.join(FILE);
            let torch = TorchFile::open(&path)?;
            if opened.args.is_empty()
                && let Some(Value::Object(map)) = torch.root().get("args").map(Node::to_json)
            {
                opened.args = map;
            }
            let (tensors, chunks) = rank_file(&torch, &path, opened.files.len(), &mut opened.stored)?;
            let version = torch.root().get("checkpoint_version").and_then(|v| v.to_json().as_f64());
            check_version(version.unwrap_or(0.0), &path, &tensors)?;
            if opened.state.is_null() {
                opened.state = optim::run_state(&torch)?;
            }
            let beside = path.with_file_name(optim::FILE);
            let file = opened.files.len();
            let mut flat = None;
            let states = if beside.is_file() {
                let torch = TorchFile::open(&beside)?;
                let states = States::flat(&torch, &beside, file + 1)?;
                flat = Some(torch.into_file());
                Some(states)
            } else {
                States::each(&torch, &path, file)?
            };
            let of_name = RankNumbers { p: 0, t: numbers[0], e: 0 };
            opened.ranks.push(RankFile { numbers: of_name, rank: 0, path, tensors, chunks, states });
            opened.numbers.push(numbers);
            opened.files.push(torch.into_file());
            opened.files.extend(flat);
        }
        if opened.ranks.is_empty() {
            Err(Error::folder(folder, "no folder is named mp_rank_TT[_PPP][_EEE]"))
        } else {
            Ok(opened)
        }
    }

    fn arg(&self, name: &str) -> Option<usize> {
        self.args.get(name).and_then(Value::as_u64).map(|n| n as usize)
    }

    /// Finds out what the numbers of the folder names mean.
    pub(super) fn number(&mut self) -> Result<()> {
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
                    // Upstream's converter of Mamba2 writes both ends into every stage, and says nothing else.
                    let everywhere = self.ranks.iter().all(|r| r.has(&words()));
                    let experts = everywhere && self.names().any(of_experts);
                    (!experts, experts)
                }
            },
        };
        for (file, n) in self.ranks.iter_mut().zip(&self.numbers) {
            file.numbers.p = if pp { n[1] } else { 0 };
            file.numbers.e = match (ep, pp) {
                (true, true) => n[2],
                (true, false) => n[1],
                _ => 0,
            };
        }
        Ok(())
    }

    /// Prediction layers in the files.
    pub(super) fn mtp(&self) -> usize {
        let number = |name: &str| number_in(name, "mtp.layers.").or_else(|| number_in(name, "mtp_layers."));
        self.names().filter_map(number).max().map_or(0, |n| n.min(63) + 1)
    }

    /// The grid of the ranks whose files these are, in which every file then has its number.
    pub(super) fn file_grid(
        &mut self,
        folder: &Path,
        config: &ModelConfig,
        hints: &Hints,
    ) -> Result<FileGrid> {
        let most =
            |of: fn(&RankNumbers) -> usize| self.ranks.iter().map(|r| of(&r.numbers)).max().unwrap_or(0) + 1;
        let (tp, pp, ep) = (most(|n| n.t), most(|n| n.p), most(|n| n.e));
        for (name, have) in [
            ("tensor_model_parallel_size", tp),
            ("pipeline_model_parallel_size", pp),
            ("expert_model_parallel_size", ep),
        ] {
            // Converters write the tensor-parallel size of experts as the number of files along it.
            if let Some(said) = self.arg(name).filter(|&said| said != have) {
                let what = format!("args say {name} {said}, but there are {have} ranks along it");
                return Err(Error::folder(folder, what));
            }
        }
        let last_chunk_first_stage =
            |r: &RankFile| r.numbers.p == 0 && r.tensors.contains_key(&(1, "output_layer.weight".to_owned()));
        let dual_pipe = self.args.get("schedules_method").and_then(Value::as_str) == Some("dualpipev")
            || (pp > 1 && self.ranks.iter().any(last_chunk_first_stage));
        let held = self.held_experts(config, tp, ep);
        let extended = tp > 1 && self.extends(folder, held, hints, config.moe.is_some());
        let sizes = GridSizes { tp, ep, ..GridSizes::default() };
        // Without experts, as in dense layers alone, the number of files tells.
        let common = gcd(tp, ep);
        let fewest = || common > 1 && self.ranks.len() == (tp / common).saturating_mul(ep).saturating_mul(pp);
        let sizes = match extended {
            true => GridSizes { ep: ep.saturating_mul(tp), etp: Some(1), ..sizes },
            false if held.map_or_else(fewest, |held| held == Held::Whole) => {
                GridSizes { etp: Some(1), ..sizes }
            }
            false => sizes,
        };
        let file_grid = FileGrid::new(&sizes, Stages { pp, dual_pipe, ..Stages::default() }, extended)?;
        // Counted first: the numbers come from folder names, and a list of all ranks may be endless.
        let (have, want) = (self.ranks.len(), file_grid.grid().world());
        // Some programs write a file for every pair of ranks with whole experts, of which a run only has the listed ones.
        let all_pairs = have == tp.saturating_mul(ep).saturating_mul(pp) && have > want;
        let complete = (have == want || all_pairs) && {
            let by_numbers: BTreeMap<RankNumbers, usize> =
                file_grid.ranks().into_iter().map(|rank| (file_grid.numbers(rank), rank)).collect();
            if all_pairs {
                self.ranks.retain(|r| by_numbers.contains_key(&r.numbers));
            }
            for file in &mut self.ranks {
                file.rank = by_numbers.get(&file.numbers).copied().unwrap_or(usize::MAX);
            }
            self.ranks.iter().all(|r| r.rank != usize::MAX)
        };
        if !complete {
            let names: Vec<String> = self
                .ranks
                .iter()
                .filter_map(|r| r.path.parent()?.file_name()?.to_str().map(str::to_owned))
                .collect();
            let what = format!("{have} of {want} rank folders are there: {}", names.join(" "));
            return Err(Error::folder(folder, what));
        }
        Ok(file_grid)
    }

    /// Whether tensor-parallel ranks share experts out (`--moe-tp-extend-ep`): as the arguments say, else the tensors, else,
    /// of files without arguments, the caller. If none of them does, as upstream's default has it, of which the user is told.
    /// Programs that have the flag write it into their arguments: files of those that wrote others are not extended.
    fn extends(&self, folder: &Path, held: Option<Held>, hints: &Hints, has_experts: bool) -> bool {
        static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        let said = self.args.get("moe_tp_extend_ep").and_then(Value::as_bool);
        let told = match held {
            Some(Held::Shared) => Some(true),
            Some(Held::Whole | Held::Cut) => Some(false),
            // Dense layers alone say nothing of the experts that the model has.
            Some(Held::Unclear) | None => hints.extend_ep.filter(|_| has_experts && self.args.is_empty()),
        };
        let unclear = said.or(told).is_none() && held == Some(Held::Unclear) && self.args.is_empty();
        // A program may open a folder several times.
        if unclear && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
            tracing::warn!(
                "{}: the files do not say whether tensor-parallel ranks hold parts of all experts or whole ones; read as parts, \
                 which is the default\nhint: pass --moe-tp-extend-ep where they are read if they hold whole ones, or experts have \
                 wrong values (ms-convert mcore hf; between Megatron's forms the flag is about the output)",
                folder.display()
            );
        }
        said.or(told) == Some(true)
    }

    /// How tensor-parallel ranks hold experts, from the first that is found; `None` if none is.
    fn held_experts(&self, config: &ModelConfig, tp: usize, ep: usize) -> Option<Held> {
        let first = |spec: &ParamSpec| spec.slot.part == Part::Experts && spec.slot.role == Role::LinearFc1;
        let specs = params(config);
        let spec = specs.iter().find(|spec| first(spec)).filter(|_| tp > 1)?;
        let of_rank = Region::along(&spec.shape, 0, std::iter::once(0..spec.shape[0] / ep));
        // Of each rank, if they share experts out.
        let shared = Some(spec.shape[0] / ep / tp).filter(|n| n * ep * tp == spec.shape[0]);
        let slots = self.slots();
        for spelling in [PLAIN, GROUPED, ONE_KEY_EACH] {
            let experts = spelling.experts(&spec.slot, &of_rank);
            let found = |i: usize| {
                let (module, ending, _) = experts.get(i)?;
                slots.iter().find_map(|slot| self.find(&format!("{LAYERS}{slot}.{module}{ending}")))
            };
            let Some(i) = found(0) else { continue };
            let whole = self.stored[i].shape.iter().product::<usize>()
                == experts[0].2.shape.iter().product::<usize>();
            return Some(match shared {
                // Parts of all experts have the same shape as fewer whole ones, if all can be cut.
                Some(_) if spelling == GROUPED && !whole => {
                    let parts = ms_spec::check_expert_cut(config, ep, tp);
                    if parts.is_ok() { Held::Unclear } else { Held::Shared }
                }
                Some(n) if spelling == ONE_KEY_EACH && whole && found(n).is_none() => Held::Shared,
                _ if whole => Held::Whole,
                _ => Held::Cut,
            });
        }
        None
    }

    /// The tensor of this name, in whichever file and chunk.
    fn find(&self, name: &str) -> Option<usize> {
        let chunks = |r: &RankFile| (0..r.chunks).find_map(|c| r.tensors.get(&(c, name.to_owned())).copied());
        self.ranks.iter().find_map(chunks)
    }

    /// The names of all tensors.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.ranks.iter().flat_map(|r| r.tensors.keys()).map(|(_, name)| name.as_str())
    }

    /// The numbers that layers have in the files.
    fn slots(&self) -> BTreeSet<usize> {
        self.names().filter_map(slot_of).collect()
    }

    /// The name spellings of the files: each spelling is used that prints an existing name (or the name of its adapter) that
    /// the spellings before it do not print.
    pub(super) fn spelling(&self, config: &ModelConfig, file_grid: &FileGrid) -> Spelling {
        const WAYS: [fn(Spelling) -> Spelling; 4] = [
            |_| GROUPED,
            |_| ONE_KEY_EACH,
            |taken| Spelling { version: Version::V2_0_0, ..taken },
            |taken| Spelling { split_heads: true, ..taken },
        ];
        // Of a sound folder, each is that of another layer.
        let slots: BTreeSet<usize> = self.slots().into_iter().take(config.layers).collect();
        let mut seen = BTreeSet::new();
        let mut specs = params(config);
        // A weight of one layer stands for those of all.
        specs.retain(|ParamSpec { slot, .. }| match slot.place {
            Place::Layer(_) => seen.insert((slot.part, slot.half, slot.role, slot.bias)),
            _ => true,
        });
        let printed = |spelling: Spelling| -> BTreeSet<String> {
            let speller = Speller::new(config, file_grid, spelling);
            let experts = speller.is_ok();
            let speller = speller.unwrap_or_else(|_| Speller::without_experts(config, file_grid, spelling));
            let mut names = BTreeSet::new();
            for spec in specs.iter().filter(|spec| experts || spec.slot.part != Part::Experts) {
                let inside = matches!(spec.slot.place, Place::Layer(_));
                let at = if inside { slots.clone() } else { BTreeSet::from([0]) };
                for slot in at {
                    // The first of several: experts are numbered alike.
                    if let Some(local) = speller.locals(spec, 0, 0, slot).into_iter().flatten().next() {
                        names.extend(adapter::local_names(&local.name, local.module.as_deref()));
                        names.extend(local.also);
                        names.insert(local.name);
                    }
                }
            }
            names
        };
        let there: BTreeSet<&str> = self.names().collect();
        // Experts that tensor-parallel ranks share out have no other form, also where none is there.
        let mut taken = if file_grid.extend_ep() { GROUPED } else { PLAIN };
        let mut known = printed(taken);
        for way in WAYS {
            let other = printed(way(taken));
            if other.difference(&known).any(|name| there.contains(name.as_str())) {
                (taken, known) = (way(taken), other);
            }
        }
        let legacy = there.iter().any(|name| number_in(name, LEGACY_LAYERS).is_some());
        Spelling { legacy, ..taken }
    }

    /// Takes the size of the vocabulary and the element type from the embedding.
    pub(super) fn rows(&self, config: &mut ModelConfig, file_grid: &FileGrid) {
        let words = words();
        let embedding =
            self.ranks.iter().flat_map(|r| &r.tensors).find(|((_, name), _)| words.contains(name));
        if let Some((_, &i)) = embedding {
            let rows =
                self.stored[i].shape.first().copied().unwrap_or(0).saturating_mul(file_grid.size(Axis::Tp));
            config.vocab = config.vocab.min(rows);
            config.padded_vocab = rows;
            config.dtype = Some(self.stored[i].dtype);
        }
    }

    /// Finds every layer's chunk and slot. Layers are numbered by the order of chunks; empty slots have no tensors.
    pub(super) fn placement(
        &self,
        folder: &Path,
        config: &ModelConfig,
        file_grid: &FileGrid,
    ) -> Result<Placement> {
        let Stages { pp, dual_pipe, .. } = *file_grid.stages();
        let chunks = self.ranks.iter().map(|r| r.chunks).max().unwrap_or(1);
        if dual_pipe && chunks != 2 {
            return Err(Error::folder(folder, format!("{chunks} chunks in DualPipeV order, expected 2")));
        }
        let mut by_slot = vec![vec![Vec::new(); chunks]; pp];
        let (mut next, mut places) = (0, 0);
        for v in 0..chunks {
            let stages: Vec<usize> =
                if dual_pipe && v == 1 { (0..pp).rev().collect() } else { (0..pp).collect() };
            for p in stages {
                let slots: BTreeSet<usize> = self
                    .ranks
                    .iter()
                    .filter(|r| r.numbers.p == p)
                    .flat_map(|r| r.tensors.keys())
                    .filter(|(c, _)| *c == v)
                    .filter_map(|(_, name)| slot_of(name))
                    .collect();
                let length = slots.last().map_or(0, |last| last.saturating_add(1));
                places = length.saturating_add(places);
                // Empty ones among them, but no more than there may be layers.
                if places > config.layers + MOST_LAYERS {
                    let what = format!("a layer with the number {}, and {places} places", length - 1);
                    return Err(Error::folder(folder, what));
                }
                let mut list = vec![None; length];
                for slot in slots {
                    list[slot] = Some(next);
                    next += 1;
                }
                by_slot[p][v] = list;
            }
        }
        if next == config.layers {
            Ok(Placement::of_slots(&by_slot, config.mtp, dual_pipe))
        } else {
            Err(Error::folder(folder, format!("{next} layers are there, the model has {}", config.layers)))
        }
    }
}

/// What stands before the number of a layer in the names of files: Megatron-core's, and those of legacy models.
pub(super) const LAYERS: &str = "decoder.layers.";
const LEGACY_LAYERS: &str = "language_model/encoder/layers.";

/// Forms of experts other than one module each.
const GROUPED: Spelling = Spelling { experts: Experts::Grouped, ..PLAIN };
const ONE_KEY_EACH: Spelling = Spelling { transformer_engine: true, ..GROUPED };
const PLAIN: Spelling = Spelling {
    version: Version::Head,
    transformer_engine: false,
    as_trained: false,
    experts: Experts::Sequential,
    split_heads: false,
    legacy: false,
    nf4: FourBit::None,
};

/// Checks that rows of queries, keys and values have the order of now. Other modules than the legacy ones never had another.
///
/// # Errors
/// [`Error::Malformed`] for legacy modules of a version below 2.0, such as a file has that names none.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/training/checkpointing.py`, `fix_query_key_value_ordering`.
fn check_version(version: f64, path: &Path, tensors: &Tensors) -> Result<()> {
    let ordered = |(_, name): &(usize, String)| {
        number_in(name, LEGACY_LAYERS).is_some()
            && name.rsplit('.').nth(1).is_some_and(|module| module.ends_with("key_value"))
    };
    if version < 2.0 && tensors.keys().any(ordered) {
        let what = format!(
            "checkpoint version {version}: before 2.0 other orders of queries, keys and values were stored"
        );
        return Err(Error::malformed(path, what));
    }
    Ok(())
}

/// Whether a tensor is of a layer's experts, by its name.
fn of_experts(name: &str) -> bool {
    let in_layer = name.strip_prefix(LAYERS).and_then(|rest| rest.split_once('.'));
    in_layer.is_some_and(|(number, rest)| {
        let inside = rest.strip_prefix(Part::Experts.path()).is_some_and(|rest| rest.starts_with('.'));
        number.parse::<usize>().is_ok() && inside
    })
}

/// The number of the layer in a tensor's name.
fn slot_of(name: &str) -> Option<usize> {
    number_in(name, LAYERS).or_else(|| number_in(name, LEGACY_LAYERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_several_kinds_are_refused() {
        use crate::torch::{Object, archive_of};

        let dir = tempfile::tempdir().unwrap();
        let file = |folder: &str| {
            let top = vec![("model".to_owned(), Object::Dict(Vec::new()))];
            let folder = dir.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(FILE), archive_of("archive", &Object::Dict(top))).unwrap();
            Opened::read(dir.path()).unwrap()
        };
        assert_eq!(file("mp_rank_00").ranks.len(), 1);
        let refused = file("mp_rank_00_001").number().unwrap_err().to_string();
        assert!(refused.contains("different numbers of fields"), "{refused}");
    }

    #[test]
    fn chunks_of_more_places_than_a_model_has_layers_are_refused() {
        use crate::torch::{Object, archive_of};

        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mp_rank_00");
        std::fs::create_dir(&folder).unwrap();
        let refused = |numbers: &[usize]| {
            let tensor =
                |number| Object::Dict(vec![(format!("{LAYERS}{number}.norm.weight"), Object::Scalar(1.0))]);
            let chunks =
                numbers.iter().enumerate().map(|(chunk, &number)| (format!("model{chunk}"), tensor(number)));
            std::fs::write(folder.join(FILE), archive_of("archive", &Object::Dict(chunks.collect())))
                .unwrap();
            let opened = Opened::read(dir.path()).unwrap();
            let model = ModelConfig { layers: 2, ..ModelConfig::tiny() };
            opened.placement(dir.path(), &model, &FileGrid::default()).map_err(|e| e.to_string())
        };
        assert!(refused(&[0, 9000]).is_ok());
        let far = refused(&[9000, 9000]).unwrap_err();
        assert!(far.contains("a layer with the number 9000, and 18002 places"), "{far}");
        assert!(refused(&[usize::MAX]).unwrap_err().contains("a layer with the number"));
    }

    #[test]
    fn old_orders_of_queries_keys_and_values_are_refused() {
        const LEGACY: &str = "language_model/encoder/layers.3.self_attention.query_key_value";
        let check = |version: f64, name: &str| {
            let tensors = Tensors::from([((0, name.to_owned()), 0)]);
            check_version(version, Path::new("a.pt"), &tensors).map_err(|e| e.to_string())
        };
        for ending in ["weight", "bias"] {
            let name = format!("{LEGACY}.{ending}");
            let refused = check(0.0, &name).unwrap_err();
            assert!(refused.contains("checkpoint version 0: before 2.0"), "{refused}");
            assert!(check(1.0, &name).is_err() && check(2.0, &name).is_ok());
        }
        for other in [
            &LEGACY.replace("query_key_value", "dense.weight"),
            "decoder.layers.3.self_attention.linear_qkv.weight",
        ] {
            assert_eq!(check(0.0, other), Ok(()), "{other}");
        }
    }

    #[test]
    fn experts_are_what_stands_in_a_layers_network() {
        assert!(of_experts("decoder.layers.3.mlp.experts.local_experts.0.linear_fc1.weight"));
        for other in ["vision.layers.3.mlp.experts.weight1", "decoder.layers.3.adapter.experts.weight1"] {
            assert!(!of_experts(other), "{other}");
        }
    }
}
