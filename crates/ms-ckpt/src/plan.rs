//! Conversion as data: which output file holds which tensors, of which canonical elements.
//!
//! A plan is made from a model's configuration alone and can be printed; [`Plan::run`] then copies, file by file,
//! from a [`Checkpoint`]. Source bytes are mapped and written from where they lie, so private memory stays at a
//! few megabytes per worker whatever the model's size.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ms_core::{DType, Region};
use ms_spec::{ModelConfig, ParamSpec, Place};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;
use crate::layout::mcore::{Cut, Spelling, rank_path, rank_tensors};
use crate::layout::{TRACKER, hf, iteration_name};
use crate::safetensors::{dtype_name, make_header, write_header};
use crate::staging::{Folder, sync_folder, write_file};
use crate::torch::{Object, Writer};
use crate::{Error, Result};

/// One tensor of an output file.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Name in the file.
    pub name: String,
    /// Canonical name.
    pub parameter: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in the file.
    pub shape: Vec<usize>,
    /// Which elements of the canonical tensor, in their order.
    pub region: Region,
    #[serde(skip)]
    chunk: usize,
}

impl Target {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }
}

#[derive(Clone, Debug)]
enum Container {
    Safetensors { header: String },
    Torch { args: Option<Object>, chunks: usize },
}

/// One output file.
#[derive(Clone, Debug)]
pub struct FilePlan {
    /// Path relative to the output folder.
    pub path: PathBuf,
    /// Tensors in the order of their bytes.
    pub tensors: Vec<Target>,
    container: Container,
}

impl FilePlan {
    /// Bytes of the tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Target::bytes).sum()
    }
}

/// Everything that a conversion writes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Files with tensors.
    pub files: Vec<FilePlan>,
    /// Small files: path relative to the output folder, content.
    pub texts: Vec<(PathBuf, Vec<u8>)>,
    /// Files that are copied: source, path relative to the output folder.
    pub copies: Vec<(PathBuf, PathBuf)>,
}

/// How `args` are stored in a `.pt` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ArgsForm {
    /// `argparse.Namespace`, as Megatron needs it.
    #[default]
    Namespace,
    /// A dictionary, which `torch.load(weights_only=True)` reads.
    Dict,
    /// Not at all.
    Absent,
}

/// Element type that a parameter gets, by its canonical name.
pub type DTypeOf<'a> = dyn Fn(&str) -> Result<DType> + 'a;

/// The files of an original Hugging Face folder: names and headers, so that they can be made again byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HfLayout {
    /// File name and the text of its header.
    files: Vec<(String, String)>,
    /// Text of the index file, if there is one.
    index: Option<String>,
}

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
            return serde_json::from_slice(&text)
                .map(Some)
                .map_err(|e| Error::malformed(&kept, e.to_string()));
        }
        let names = hf::weight_files(dir);
        if names.is_empty() {
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
    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(FilePlan::bytes).sum()
    }

    /// The plan as JSON: files with their bytes and tensors.
    pub fn to_json(&self) -> Value {
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|f| json!({"path": f.path, "bytes": f.bytes(), "tensors": f.tensors}))
            .collect();
        let texts: Vec<Value> =
            self.texts.iter().map(|(p, t)| json!({"path": p, "bytes": t.len()})).collect();
        let copies: Vec<Value> =
            self.copies.iter().map(|(from, to)| json!({"from": from, "path": to})).collect();
        json!({"bytes": self.bytes(), "files": files, "texts": texts, "copies": copies})
    }

    /// A Hugging Face folder: files filled in the model's order, tensors in a file ordered by type and name, as
    /// `save_pretrained` writes them. Vocabulary tensors have `config.vocab` rows.
    ///
    /// # Errors
    /// What `dtype_of` returns.
    pub fn hf(config: &ModelConfig, dtype_of: &DTypeOf<'_>, sharding: Sharding) -> Result<Self> {
        let config = &ModelConfig { padded_vocab: config.vocab, ..config.clone() };
        let mut shards: Vec<Vec<Target>> = vec![Vec::new()];
        let mut filled = 0;
        for (name, spec, region) in hf::tensors(config) {
            let target = target(name, &spec, region, dtype_of(&spec.name)?);
            let full = match sharding {
                Sharding::Bytes(most) => filled > 0 && filled + target.bytes() > most,
                // The first layer shares its file with the embedding, the last with the head.
                Sharding::PerLayer => matches!(spec.place, Place::Layer(l) if l >= shards.len()),
            };
            if full {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += target.bytes();
            shards.last_mut().expect("there is always one").push(target);
        }
        let count = shards.len();
        let mut plan = Self::default();
        let mut weight_map = Map::new();
        for (i, mut tensors) in shards.into_iter().enumerate() {
            let name = match count {
                1 if sharding != Sharding::PerLayer => hf::SINGLE.to_owned(),
                _ if sharding == Sharding::PerLayer => {
                    format!("model-{:05}-of-{count:06}.safetensors", i + 1)
                }
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
        if count > 1 || sharding == Sharding::PerLayer {
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
    /// `None` if the original holds tensors that the model does not have, or lacks some.
    ///
    /// # Errors
    /// What `dtype_of` returns; a layout that is damaged.
    pub fn hf_like(config: &ModelConfig, layout: &HfLayout, dtype_of: &DTypeOf<'_>) -> Result<Option<Self>> {
        let mut files = Vec::new();
        let mut rows = config.vocab;
        for (name, text) in &layout.files {
            let path = Path::new(name);
            if name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(Error::malformed(path, "no file name"));
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
            if let Some(e) = entries.iter().find(|e| e.2 == "model.embed_tokens.weight") {
                rows = e.4.first().copied().unwrap_or(rows);
            }
            files.push((name, text, json, entries));
        }
        let config = &ModelConfig { padded_vocab: rows, ..config.clone() };
        let mut known: Map<String, Value> = Map::new();
        let all = hf::tensors(config);
        for (i, t) in all.iter().enumerate() {
            known.insert(t.0.clone(), json!(i));
        }
        let mut seen = 0;
        let mut plan = Self::default();
        for (name, text, json, entries) in files {
            let mut tensors = Vec::new();
            let mut same = true;
            for (start, end, tensor, dtype, shape) in entries {
                // Some folders store a tied output layer all the same.
                let tied_head = config.tied && tensor == "lm_head.weight";
                let key = if tied_head { "model.embed_tokens.weight" } else { &tensor };
                let Some(i) = known.get(key).and_then(Value::as_u64) else { return Ok(None) };
                let (_, spec, region) = &all[i as usize];
                seen += usize::from(!tied_head);
                let t = target(tensor, spec, region.clone(), dtype_of(&spec.name)?);
                same &= dtype_name(t.dtype) == dtype && t.shape == shape && end - start == t.bytes();
                tensors.push(t);
            }
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
        if seen != all.len() {
            return Ok(None);
        }
        if let Some(index) = &layout.index {
            plan.texts.push((hf::INDEX.into(), index.clone().into_bytes()));
        }
        Ok(Some(plan))
    }

    /// A Megatron-core checkpoint, iteration 1, `config.padded_vocab` rows in vocabulary tensors.
    ///
    /// # Errors
    /// A cut that does not divide; what `dtype_of` returns.
    pub fn mcore(
        config: &ModelConfig,
        cut: &Cut,
        spelling: Spelling,
        args: ArgsForm,
        dtype_of: &DTypeOf<'_>,
    ) -> Result<Self> {
        let fields = cut.args(config)?;
        let args = match args {
            ArgsForm::Namespace => Some(Object::Namespace(fields)),
            ArgsForm::Dict => Some(Object::Plain(Value::Object(fields))),
            ArgsForm::Absent => None,
        };
        let chunks = cut.placement(config.layers)?[0].len();
        let mut plan = Self::default();
        for p in 0..cut.pp {
            for t in 0..cut.tp {
                let mut tensors = Vec::new();
                for local in rank_tensors(config, cut, spelling, t, p)? {
                    let dtype = dtype_of(&local.spec.name)?;
                    tensors.push(Target {
                        chunk: local.chunk,
                        ..target(local.name, &local.spec, local.region, dtype)
                    });
                }
                plan.files.push(FilePlan {
                    path: rank_path(1, t, p, cut.pp),
                    tensors,
                    container: Container::Torch { args: args.clone(), chunks },
                });
            }
        }
        plan.texts.push((TRACKER.into(), b"1".to_vec()));
        Ok(plan)
    }

    /// This toolchain's sharded form, iteration 1, one file per tensor-parallel rank and stage.
    ///
    /// # Errors
    /// As [`Plan::mcore`].
    pub fn sharded(config: &ModelConfig, cut: &Cut, dtype_of: &DTypeOf<'_>) -> Result<Self> {
        let mut plan = Self::default();
        let mut tensors: Vec<Value> = Vec::new();
        let mut place: Map<String, Value> = Map::new();
        let folder = PathBuf::from(iteration_name(1));
        for p in 0..cut.pp {
            for t in 0..cut.tp {
                let name = format!("rank_{:05}.safetensors", p * cut.tp + t);
                let mut list: Vec<Target> = Vec::new();
                for local in rank_tensors(config, cut, Spelling::Local, t, p)? {
                    let spec = &local.spec;
                    // One copy of what several ranks hold; the tied output layer is the embedding.
                    let first = spec.partition.axis().is_some() || t == 0;
                    if !first || (config.tied && local.name == "output_layer.weight") {
                        continue;
                    }
                    let dtype = dtype_of(&spec.name)?;
                    let part = json!({"file": name, "key": spec.name, "region": local.region});
                    match place.get(&spec.name).and_then(Value::as_u64) {
                        Some(i) => {
                            let parts = tensors[i as usize]["parts"].as_array_mut().expect("made below");
                            parts.push(part);
                        }
                        None => {
                            place.insert(spec.name.clone(), json!(tensors.len()));
                            let shape = spec.shape.to_vec();
                            tensors.push(
                                json!({"name": spec.name, "shape": shape, "dtype": dtype, "parts": [part]}),
                            );
                        }
                    }
                    list.push(target(spec.name.clone(), spec, local.region, dtype));
                }
                let names: Vec<_> = list.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
                let header = make_header(&names, &[("format", "ms-sharded")]);
                plan.files.push(FilePlan {
                    path: folder.join(name),
                    tensors: list,
                    container: Container::Safetensors { header },
                });
            }
        }
        let manifest = json!({
            "format": "ms-sharded", "version": 1, "iteration": 1, "config": config, "tensors": tensors,
            "state": {"args": cut.args(config)?}
        });
        let text = serde_json::to_vec_pretty(&manifest).expect("plain JSON");
        plan.texts.push((folder.join(crate::sharded::MANIFEST), text));
        plan.texts.push((TRACKER.into(), b"1".to_vec()));
        Ok(plan)
    }

    /// Writes everything into `dir`, which appears when it is complete.
    ///
    /// `progress` is told the bytes of tensors written, from several threads.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; what the operating system refuses; [`Error::Exists`].
    pub fn run(
        &self,
        source: &Checkpoint,
        dir: &Path,
        options: &RunOptions,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let folder = Folder::create(dir, options.replace)?;
        let next = AtomicUsize::new(0);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = self.files.get(i) else { return };
                let written = write_one(file, folder.path(), options.sync, &mut |t, sink| {
                    source.copy(&t.parameter, &t.region, None, t.dtype, &mut |bytes| {
                        progress(bytes.len() as u64);
                        sink(bytes)
                    })
                });
                if let Err(error) = written {
                    next.store(self.files.len(), Ordering::Relaxed);
                    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error);
                    return;
                }
            }
        };
        let workers = options.threads.clamp(1, self.files.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(work);
            }
            work();
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        self.write_small(folder.path())?;
        folder.commit(options.sync)
    }

    fn write_small(&self, folder: &Path) -> Result<()> {
        for (path, text) in &self.texts {
            let path = folder.join(path);
            make_parent(&path)?;
            write_file(&path, text)?;
        }
        for (from, to) in &self.copies {
            let text = fs::read(from).map_err(Error::io(from, "read"))?;
            let to = folder.join(to);
            make_parent(&to)?;
            write_file(&to, &text)?;
        }
        Ok(())
    }
}

/// How a Hugging Face folder is cut into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Files of at most so many bytes, one tensor at least.
    Bytes(u64),
    /// One file per layer, as head's converter writes them.
    PerLayer,
}

/// How a plan is carried out.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Files written at the same time. The output does not depend on it.
    pub threads: usize,
    /// Wait until the bytes are on the disk.
    pub sync: bool,
    /// Replace an existing output.
    pub replace: bool,
}

fn target(name: String, spec: &ParamSpec, region: Region, dtype: DType) -> Target {
    let shape = region.local_shape().to_vec();
    Target { name, parameter: spec.name.clone(), dtype, shape, region, chunk: 0 }
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

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(Error::io(parent, "create"))
}

type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;
type Feed<'a> = &'a mut dyn FnMut(&Target, Sink<'_>) -> Result<()>;

fn write_one(plan: &FilePlan, folder: &Path, sync: bool, feed: Feed<'_>) -> Result<()> {
    let path = folder.join(&plan.path);
    make_parent(&path)?;
    let io = |action| Error::io(&path, action);
    let file = File::create(&path).map_err(io("create"))?;
    let mut out = BufWriter::with_capacity(1 << 18, file);
    match &plan.container {
        Container::Safetensors { header } => {
            write_header(&mut out, header).map_err(io("write"))?;
            for tensor in &plan.tensors {
                feed(tensor, &mut |bytes| out.write_all(bytes).map_err(io("write")))?;
            }
        }
        Container::Torch { args, chunks } => {
            let mut zip = Writer::start(out, "model_optim_rng", &saved_object(plan, args.as_ref(), *chunks))
                .map_err(io("write"))?;
            for (i, tensor) in plan.tensors.iter().enumerate() {
                zip.storage::<Failure>(i, tensor.bytes(), &mut |sink| {
                    feed(tensor, &mut |bytes| sink(bytes).map_err(|e| e.into_error(&path)))
                        .map_err(Failure::Other)
                })
                .map_err(|e| e.into_error(&path))?;
            }
            out = zip.finish().map_err(io("write"))?;
        }
    }
    let file = out.into_inner().map_err(|e| io("write")(e.into_error()))?;
    if sync {
        file.sync_all().map_err(io("sync"))?;
        sync_folder(path.parent().unwrap_or(folder))?;
    }
    Ok(())
}

/// An error on the way through the zip writer, which knows I/O errors only.
enum Failure {
    Io(std::io::Error),
    Other(Error),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
    }
}

impl Failure {
    fn into_error(self, path: &Path) -> Error {
        match self {
            Self::Io(e) => Error::io(path, "write")(e),
            Self::Other(e) => e,
        }
    }
}

fn saved_object(plan: &FilePlan, args: Option<&Object>, chunks: usize) -> Object {
    let mut top = Vec::new();
    if let Some(args) = args {
        top.push(("args".to_owned(), args.clone()));
    }
    top.push(("checkpoint_version".to_owned(), Object::Plain(json!(3.0))));
    top.push(("iteration".to_owned(), Object::Plain(json!(1))));
    for chunk in 0..chunks {
        let model = plan.tensors.iter().enumerate().filter(|(_, t)| t.chunk == chunk).map(|(i, t)| {
            (t.name.clone(), Object::Tensor { storage: i, dtype: t.dtype, shape: t.shape.clone() })
        });
        let key = if chunks == 1 { "model".to_owned() } else { format!("model{chunk}") };
        top.push((key, Object::Ordered(model.collect())));
    }
    top.push(("num_floating_point_operations_so_far".to_owned(), Object::Plain(json!(0))));
    Object::Dict(top)
}

/// Carries out a Hugging Face plan with weights that a program holds.
pub(crate) fn write_held(
    plan: &Plan,
    dir: &Path,
    replace: bool,
    config: &ModelConfig,
    dtype: DType,
    bytes: &mut dyn FnMut(&ParamSpec) -> Result<Vec<u8>>,
) -> Result<()> {
    let folder = Folder::create(dir, replace)?;
    let specs = ms_spec::params(config);
    for file in &plan.files {
        write_one(file, folder.path(), true, &mut |t, sink| {
            let spec =
                specs.iter().find(|s| s.name == t.parameter).expect("plans name parameters of the table");
            let whole = bytes(spec)?;
            assert_eq!(
                whole.len(),
                spec.shape.numel() * dtype.size(),
                "{}: bytes of the parameter",
                spec.name
            );
            for (start, len) in t.region.runs() {
                sink(&whole[start * dtype.size()..(start + len) * dtype.size()])?;
            }
            Ok(())
        })?;
    }
    plan.write_small(folder.path())?;
    let mut text = serde_json::to_vec_pretty(&ms_spec::hf::write_config(config, ms_spec::hf::Dialect::V4))
        .expect("plain JSON");
    text.push(b'\n');
    write_file(&folder.path().join("config.json"), &text)?;
    folder.commit(true)
}
