//! A checkpoint of any layout, seen as the global tensors of one model.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ms_core::{DType, Region, Shape};
use ms_spec::{ModelConfig, ParamSpec, Part, Place, Role, Slot};
use serde_json::{Map, Value};

use crate::adapter::{Adapters, Merge};
use crate::cast::{cast, possible};
use crate::name::{Name, State, TensorKind};
use crate::runs::{Gap, RunIndex};
use crate::stored::{Global, Piece, Stored};
use crate::strided::gather;
use crate::{Error, Mapped, Result};

/// How a checkpoint names and files its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A Hugging Face folder of safetensors.
    Hf,
    /// Megatron-core: `iter_*/mp_rank_*/model_optim_rng.pt`.
    Mcore,
    /// The same files with the nested dictionaries of Megatron's legacy models.
    Legacy,
    /// This toolchain's own: safetensors with a manifest of global tensors.
    Sharded,
    /// Megatron's distributed form: `iter_*/.metadata` and chunks of global tensors.
    TorchDist,
    /// An adapter folder of Hugging Face's peft.
    Peft,
}

impl Form {
    /// `hf`, `mcore`, `legacy`, `sharded`, `torch_dist` or `peft`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hf => "hf",
            Self::Mcore => "mcore",
            Self::Legacy => "legacy",
            Self::Sharded => "sharded",
            Self::TorchDist => "torch_dist",
            Self::Peft => "peft",
        }
    }
}

/// A stored tensor, for listings.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// File, relative to the checkpoint's folder.
    pub file: &'a Path,
    /// Name in the file.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: &'a [usize],
}

/// An opened checkpoint. Files are memory-mapped; nothing is read before it is requested.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) root: PathBuf,
    pub(crate) form: Form,
    pub(crate) config: ModelConfig,
    /// Text of the `config.json` in the folder, if there is one.
    pub(crate) config_json: Option<Value>,
    pub(crate) files: Vec<Mapped>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) globals: BTreeMap<Name, Global>,
    pub(crate) iteration: u64,
    pub(crate) args: Map<String, Value>,
    pub(crate) state: Value,
    /// Elements whose type changes on the way in, as upstream's first converter rounds them.
    pub(crate) via: Option<DType>,
    /// Low-rank adapters, by the parameter they change.
    pub(crate) adapters: Adapters,
    /// Equal copies of parts that other ranks hold: the parameter and the part.
    pub(crate) copies: Vec<(Name, Piece)>,
    /// A state that only some ranks have, and that is left out for it.
    pub(crate) torn: Option<Name>,
    /// How they are added to what is read, if they are.
    pub(crate) merge: Option<Merge>,
}

impl Checkpoint {
    /// A folder's checkpoint without tensors, from before the first iteration.
    pub(crate) fn empty(root: &Path, form: Form, config: ModelConfig) -> Self {
        Self {
            root: root.to_owned(),
            form,
            config,
            config_json: None,
            files: Vec::new(),
            stored: Vec::new(),
            globals: BTreeMap::new(),
            iteration: 0,
            args: Map::new(),
            state: Value::Null,
            via: None,
            adapters: Adapters::new(),
            copies: Vec::new(),
            torn: None,
            merge: None,
        }
    }

    /// Folder that was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Layout of the folder.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The model. `padded_vocab` is the number of rows that are stored.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The `config.json` in the folder, if there is one.
    pub fn config_json(&self) -> Option<&Value> {
        self.config_json.as_ref()
    }

    /// Tokens that end a text, by the `generation_config.json` in the folder, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read, is not JSON, or has another `eos_token_id` than a token, a list of them or null.
    ///
    /// # Source
    /// transformers 5.24, `GenerationConfig.eos_token_id`.
    pub fn generation_stops(&self) -> Result<Vec<u32>> {
        let path = self.root.join("generation_config.json");
        if !path.is_file() {
            return Ok(Vec::new());
        }
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let config = ms_spec::hf::parse_json(&text).map_err(Error::spec(&path))?;
        let ids = match config.get("eos_token_id") {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.iter().collect(),
            Some(id) => vec![id],
        };
        let token = |id: &Value| {
            let token = id.as_u64().and_then(|id| u32::try_from(id).ok());
            token.ok_or_else(|| {
                Error::malformed(&path, format!("eos_token_id is a token or a list of them, found {id}"))
            })
        };
        // Negative ids, such as -1 for none, are never generated.
        ids.into_iter().filter(|id| id.as_i64().is_none_or(|id| id >= 0)).map(token).collect()
    }

    /// Iteration of the training run; 0 for a Hugging Face folder.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Megatron's arguments, as stored; empty for a Hugging Face folder.
    pub fn args(&self) -> &Map<String, Value> {
        &self.args
    }

    /// User state stored by the writer of a sharded checkpoint, or the run state in Megatron's files other than tensors and
    /// arguments; null otherwise.
    pub fn state(&self) -> &Value {
        &self.state
    }

    /// Whether AdamW's moments of every trained parameter are there, and their float32 weights, or weights that are float32.
    pub fn has_optimizer(&self) -> bool {
        self.has_states(&[State::ExpAvg.word(), State::ExpAvgSq.word()])
    }

    /// An optimizer state that only some ranks' files have, so that it cannot be used.
    pub fn torn_state(&self) -> Option<&str> {
        self.torn.as_deref()
    }

    /// Whether the optimizer's state `names` of every trained parameter are there, and its unrounded weights, or weights that
    /// are not rounded.
    pub fn has_states(&self, names: &[&str]) -> bool {
        self.lacking_state(names).is_none()
    }

    /// The first state that [`Checkpoint::has_states`] looks for and that is not there.
    pub fn lacking_state(&self, names: &[&str]) -> Option<String> {
        let trained = ms_spec::params(&self.config).into_iter().filter(ms_spec::ParamSpec::trained);
        let lacking = |spec: ParamSpec| {
            let wide = self.globals.get(spec.name.as_str()).is_some_and(|g| g.dtype == g.dtype.wide());
            let master = (!wide).then_some(State::Master.word());
            let lacks = |name: &&str| {
                let state = State::ALL.iter().find(|state| state.word() == *name);
                !state.is_some_and(|state| self.has(&Name::state(*state, &spec.slot)))
            };
            let name = master.into_iter().chain(names.iter().copied()).find(lacks)?;
            Some(format!("{name} of {}", spec.name))
        };
        trained.map(lacking).find_map(|lacks| lacks)
    }

    /// Names, global shapes and element types, in the order of names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Shape, DType)> {
        self.globals.iter().map(|(name, g)| (&**name, &g.shape, g.dtype))
    }

    /// Whether a global tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.globals.contains_key(name)
    }

    /// Element type of a global tensor.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn dtype(&self, name: &str) -> Result<DType> {
        let name = self.name(name)?;
        let head = Slot { part: Part::Reward, ..HEAD };
        let name = if self.lacks(&name) { Name::weight(&head) } else { name };
        self.global(&name).map(|g| g.dtype)
    }

    /// What a tensor of this name is: one that is there, or one that another stands for.
    ///
    /// # Errors
    /// [`Error::Missing`].
    fn name(&self, name: &str) -> Result<Name> {
        if let Some((name, _)) = self.globals.get_key_value(name) {
            return Ok(name.clone());
        }
        let weights = self.globals.keys().filter_map(|name| match name.kind() {
            TensorKind::Weight(slot) => Some(Name::state(State::Master, &slot)),
            _ => None,
        });
        let mut others = IDLE.iter().map(Name::weight).chain(weights);
        let missing = || Error::Missing { path: self.root.clone(), name: name.to_owned() };
        others.find(|other| **other == *name).ok_or_else(missing)
    }

    /// Whether a parameter of a reward model is not in the files and stands for zeros.
    fn lacks(&self, name: &Name) -> bool {
        let idle = matches!(name.kind(), TensorKind::Weight(slot) if is_idle(&slot));
        self.config.reward && idle && !self.has(name)
    }

    /// Every stored tensor, file by file.
    pub fn stored(&self) -> impl Iterator<Item = Listed<'_>> {
        self.stored.iter().filter(|s| s.is_there()).map(|s| Listed {
            file: self.files[s.file].path().strip_prefix(&self.root).unwrap_or(self.files[s.file].path()),
            name: &s.name,
            dtype: s.dtype,
            shape: &s.shape,
        })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes().len() as u64).sum()
    }

    /// Reads a rank's piece of a parameter as `dtype`, little-endian. `out` has exactly its bytes.
    ///
    /// # Errors
    /// A missing tensor, another shape than the model needs, or a type that is no float.
    ///
    /// # Panics
    /// If `out` has another length than the region's bytes.
    pub fn read(&self, spec: &ParamSpec, region: &Region, dtype: DType, out: &mut [u8]) -> Result<()> {
        self.read_into(&Name::weight(&spec.slot), region, None, dtype, out)
    }

    /// Reads elements `flat` (all if `None`) of a region of any global tensor, such as an optimizer moment.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    ///
    /// # Panics
    /// If the length of `out` differs from the requested number of bytes.
    pub fn read_named(
        &self,
        name: &str,
        region: &Region,
        flat: Option<Range<usize>>,
        dtype: DType,
        out: &mut [u8],
    ) -> Result<()> {
        self.read_into(&self.name(name)?, region, flat, dtype, out)
    }

    fn read_into(
        &self,
        name: &Name,
        region: &Region,
        flat: Option<Range<usize>>,
        dtype: DType,
        out: &mut [u8],
    ) -> Result<()> {
        let mut at = 0;
        self.copy(name, region, flat, dtype, &mut |bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            Ok(())
        })?;
        assert_eq!(at, out.len(), "{name}: bytes of the region");
        Ok(())
    }

    pub(crate) fn global(&self, name: &Name) -> Result<&Global> {
        // Weights that are float32 have no second copy in the optimizer.
        let weight = || match name.kind() {
            TensorKind::State(State::Master, slot) => self.globals.get(&Name::weight(&slot)),
            _ => None,
        };
        let found = self.globals.get(name).or_else(weight);
        found.ok_or_else(|| Error::Missing { path: self.root.clone(), name: name.to_string() })
    }

    /// Hands the bytes of a region, in its local order and as `dtype`, to `sink`, piece by piece.
    pub(crate) fn copy(
        &self,
        name: &Name,
        region: &Region,
        flat: Option<Range<usize>>,
        dtype: DType,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.lacks(name) {
            let numel = region.local_shape().numel();
            let asked = flat.map_or(numel, |f| f.end.min(numel).saturating_sub(f.start));
            let zeros = vec![0; asked.min(1 << 16) * dtype.size()];
            let mut left = asked;
            while left > 0 {
                let n = left.min(1 << 16);
                sink(&zeros[..n * dtype.size()])?;
                left -= n;
            }
            return Ok(());
        }
        self.check_shape(name, self.global(name)?, region)?;
        self.copy_runs(name, region, flat, dtype, sink)
    }

    /// Hands over runs of the flattened global tensor, whatever its shape.
    pub(crate) fn copy_flat(
        &self,
        name: &Name,
        region: &Region,
        dtype: DType,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.copy_runs(name, region, None, dtype, sink)
    }

    fn copy_runs(
        &self,
        name: &Name,
        region: &Region,
        flat: Option<Range<usize>>,
        dtype: DType,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let global = self.global(name)?;
        // Only what lies between the first and the last requested element: a stack of experts has many pieces.
        let bounds = region.runs().fold((usize::MAX, 0), |(a, b), (s, n)| (a.min(s), b.max(s + n)));
        let bounds = if bounds.1 > global.shape.numel() { 0..usize::MAX } else { bounds.0..bounds.1 };
        let index = RunIndex::within(global.pieces.iter().map(|p| (&p.region, p.flat.clone())), &bounds);
        let adapter = self.load_adapter(name, &(bounds.start..bounds.end.min(global.shape.numel())))?;
        let mut out = Cast { name, to: dtype, via: self.via, buffer: Vec::new(), sink };
        let flat = flat.unwrap_or(0..usize::MAX);
        let stored = global.shape.numel();
        // Rows that were padded on: copies of the last row in use, as upstream's first converter writes them.
        let row: usize = global.shape.iter().skip(1).product();
        let last_row =
            self.config.vocab.min(global.shape.first().copied().unwrap_or(1)).saturating_sub(1) * row;
        let moment = matches!(name.kind(), TensorKind::State(state, _) if state != State::Master);
        let mut local = 0;
        for (start, len) in region.runs() {
            let (from, to) = (local.max(flat.start), (local + len).min(flat.end));
            local += len;
            if from >= to {
                continue;
            }
            let mut at = start + (from - (local - len));
            let end = at + (to - from);
            while at < end {
                let (source, n) = if at < stored {
                    (at, end.min(stored) - at)
                } else if moment {
                    // Nothing was learned of them.
                    out.push(
                        &vec![0; row * global.dtype.size()][..(end - at).min(row) * global.dtype.size()],
                        global.dtype,
                    )?;
                    at += (end - at).min(row);
                    continue;
                } else {
                    let column = at % row;
                    (last_row + column, (row - column).min(end - at))
                };
                let found = index.find(source, n, |run| {
                    let piece = &global.pieces[run.piece];
                    let Some(adapter) = &adapter else {
                        return self.copy_run(piece, run.local, run.len, &mut |b, dtype| out.push(b, dtype));
                    };
                    // A bounded number of elements at a time, in the type they are stored in.
                    for first in (0..run.len).step_by(1 << 18) {
                        let n = (run.len - first).min(1 << 18);
                        let (mut held, mut held_type) = (Vec::new(), dtype);
                        self.copy_run(piece, run.local + first, n, &mut |b, dtype| {
                            held.extend_from_slice(b);
                            held_type = dtype;
                            Ok(())
                        })?;
                        adapter.apply(run.global + first, &mut held, held_type);
                        out.push(&held, held_type)?;
                    }
                    Ok(())
                });
                found.map_err(|gap| match gap {
                    Gap::Other(e) => e,
                    Gap::At(i) => {
                        Error::folder(&self.root, format!("tensor {name}: element {i} is not stored"))
                    }
                })?;
                at += n;
            }
        }
        Ok(())
    }

    fn check_shape(&self, name: &Name, global: &Global, region: &Region) -> Result<()> {
        let skip = usize::from(counts_words(name));
        if global.shape.len() == region.shape.len() && global.shape[skip..] == region.shape[skip..] {
            return Ok(());
        }
        Err(Error::Shape {
            path: self.root.clone(),
            name: name.to_string(),
            want: region.shape.to_vec(),
            got: global.shape.to_vec(),
        })
    }

    pub(crate) fn copy_run(
        &self,
        piece: &Piece,
        local: usize,
        len: usize,
        out: &mut dyn FnMut(&[u8], DType) -> Result<()>,
    ) -> Result<()> {
        let stored = &self.stored[piece.stored];
        let bytes = self.files[stored.file].bytes();
        let size = stored.dtype.size();
        if let Some(quantised) = &stored.quantised {
            let mut values = Vec::new();
            for first in (local..local + len).step_by(1 << 16) {
                let n = (1 << 16).min(local + len - first);
                values.clear();
                quantised.read(&self.files, stored, first, n, &mut values);
                out(&values, stored.dtype)?;
            }
            return Ok(());
        }
        match &piece.view {
            None => {
                let start = stored.start + local * size;
                out(&bytes[start..start + len * size], stored.dtype)
            }
            Some(strides) => {
                // Element by element, a bounded number at a time: a view may be larger than its storage.
                let shape = piece.region.local_shape();
                let mut gathered = Vec::new();
                for first in (local..local + len).step_by(1 << 16) {
                    let range = first..(first + (1 << 16)).min(local + len);
                    gathered.clear();
                    gather(bytes, stored.start, &shape, strides, size, range, &mut gathered);
                    out(&gathered, stored.dtype)?;
                }
                Ok(())
            }
        }
    }
}

/// Converts on the way to a sink.
struct Cast<'a> {
    name: &'a str,
    to: DType,
    via: Option<DType>,
    buffer: Vec<u8>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Cast<'_> {
    fn push(&mut self, bytes: &[u8], from: DType) -> Result<()> {
        let via = self.via.filter(|v| *v != from && from.is_float());
        if from == self.to && via.is_none() {
            return (self.sink)(bytes);
        }
        if !possible(from, self.to) {
            return Err(Error::Cast { name: self.name.to_owned(), from, to: self.to });
        }
        // A bounded piece at a time: 64 Ki elements.
        for chunk in bytes.chunks(from.size() << 16) {
            self.buffer.clear();
            match via {
                None => cast(chunk, from, self.to, &mut self.buffer),
                Some(via) => {
                    let mut between = Vec::new();
                    cast(chunk, from, via, &mut between);
                    cast(&between, via, self.to, &mut self.buffer);
                }
            }
            (self.sink)(&self.buffer)?;
        }
        Ok(())
    }
}

/// Whether a parameter of a reward model is only there because Megatron's class has it: an output layer that is not used,
/// and the head's bias, which Hugging Face's class does not have. Both are zero when they are made.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/posttrain/orm/orm_model.py` and `set_postprocess_state` of
/// `mindspeed_llm/tasks/checkpoint/models.py`.
pub(crate) fn is_idle(what: &Slot) -> bool {
    IDLE.contains(what)
}

/// Whether the first dimension of a parameter or of its optimizer's state is the vocabulary, whose rows may be padded.
pub(crate) fn counts_words(name: &Name) -> bool {
    const TABLES: [Slot; 3] = [Slot::WORDS, HEAD, Slot { bias: true, ..HEAD }];
    matches!(name.kind(), TensorKind::Weight(slot) | TensorKind::State(_, slot) if TABLES.contains(&slot))
}

/// The output layer.
pub(crate) const HEAD: Slot =
    Slot { place: Place::Head, part: Part::Output, half: None, role: Role::Own, bias: false };
const IDLE: [Slot; 3] = [HEAD, Slot { bias: true, ..HEAD }, Slot { part: Part::Reward, bias: true, ..HEAD }];
