//! Conversion as data: which output file holds which tensors, made of which canonical elements.
//!
//! A plan is made from a model's configuration alone and can be printed; [`Plan::run`] then copies, file by file, from a
//! [`Checkpoint`]. Source files are memory-mapped and written directly from there, so private memory stays at a few megabytes
//! per worker whatever the model's size.

mod hf;
mod items;
mod megatron;
mod optimizer;
mod peft;
mod run;
mod torch_dist;
mod write;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ms_core::{DType, Region};
use ms_spec::ParamSpec;
use serde::Serialize;
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::checksums;
use crate::finite::{Counter, NonFiniteReport};
use crate::lens::Lens;
use crate::name::{Name, State};
use crate::torch::Object;
use crate::{Error, Result};
use ms_files::AtomicFolder;

pub use hf::{HF_LAYOUT, HfLayout, KeyMismatch};
pub use run::{AdapterTensors, Run};
pub(crate) use write::write_from;
pub use write::write_hf;
use write::{write_in_parts, write_one};

/// One tensor of an output file.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Name in the file.
    pub name: String,
    /// Canonical name.
    pub parameter: Name,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in the file.
    pub shape: Vec<usize>,
    /// Which elements of the canonical tensor, in their order.
    pub region: Region,
    /// Whether the last two dimensions of the region are swapped in the file.
    pub transposed: bool,
    /// Whether 4-bit codes are stored instead of elements.
    pub nf4: bool,
    #[serde(skip)]
    chunk: usize,
}

impl Target {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }

    /// Counts elements in float32; `seen` elements were counted before.
    ///
    /// # Errors
    /// [`Error::NotZero`].
    fn has_zeros(&self, bytes: &[u8], seen: &mut usize) -> Result<()> {
        let values = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b));
        let first = *seen;
        *seen += values.len();
        match values.enumerate().find(|(_, x)| *x != 0.0) {
            None => Ok(()),
            Some((i, value)) => Err(Error::NotZero {
                parameter: self.parameter.to_string(),
                name: self.name.clone(),
                index: first + i,
                value,
            }),
        }
    }

    /// The object of an archive that holds this tensor alone.
    fn archived(&self) -> Object {
        Object::Tensor { storage: 0, dtype: self.dtype, shape: self.shape.clone() }
    }
}

#[derive(Clone, Debug)]
enum Container {
    Safetensors {
        header: String,
    },
    /// `top` comes before the model, `end` after it.
    Torch {
        top: Vec<(String, Object)>,
        chunks: usize,
        end: Vec<(String, Object)>,
    },
    /// An archive for each tensor, one after the other.
    Chunks,
    /// Flat buffers that targets lie in.
    Buffers {
        object: Object,
        buffers: Vec<optimizer::Buffer>,
    },
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
    /// What the layout has no tensor for, and what therefore has to be zero.
    zeros: Vec<Target>,
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

impl Plan {
    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(FilePlan::bytes).sum()
    }

    /// Private memory that [`Plan::run`] needs at most, in bytes: buffers of every worker and the names of tensors.
    /// (Mapped files are not private.)
    pub fn memory(&self, threads: usize) -> u64 {
        let names = |f: &FilePlan| f.tensors.iter().map(|t| 256 + 2 * t.name.len() as u64).sum::<u64>();
        let transposed = self.files.iter().flat_map(|f| &f.tensors).any(|t| t.transposed);
        // A file buffer, a piece that is converted and its two forms; strips of transposed matrices, twice.
        let worker = (1 << 18) + 3 * (1 << 19) + if transposed { 3 << 21 } else { 0 };
        let parts = self.files.iter().any(|f| matches!(f.container, Container::Safetensors { .. }));
        let workers = if parts { threads.max(1) } else { threads.clamp(1, self.files.len().max(1)) } as u64;
        workers * worker + self.files.iter().map(names).sum::<u64>() * 2
    }

    /// What a plan and its source are known by: a conversion that was interrupted goes on only if they are the same.
    fn fingerprint(&self, source: &Checkpoint) -> String {
        let mut text = self.to_json().to_string();
        for file in &source.files {
            let changed = fs::metadata(file.path()).and_then(|m| m.modified()).ok();
            text += &format!("\n{} {} {changed:?}", file.path().display(), file.bytes().len());
        }
        text += &format!("\n{:?} {:?}", source.via, source.merge);
        text
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

    /// Writes everything into `dir`, which appears when it is complete.
    ///
    /// `progress` is called with the bytes of tensors written, from several threads. Non-finite values are written unchanged
    /// and counted in the result, except those in files that an interrupted run has finished.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a source whose bytes are not those of its checksums; I/O errors;
    /// [`Error::Exists`]; [`Error::NotZero`].
    pub fn run(
        &self,
        source: &Checkpoint,
        dir: &Path,
        options: &RunOptions,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<NonFiniteReport> {
        for t in &self.zeros {
            let mut seen = 0;
            source.copy(&t.parameter, &t.region, None, DType::F32, &mut |bytes| {
                t.has_zeros(bytes, &mut seen)
            })?;
        }
        let (folder, begun) = AtomicFolder::resume(dir, options.replace, &self.fingerprint(source))?;
        if begun {
            tracing::info!("{}: continuing with what an interrupted run has left", dir.display());
        }
        // Files are written side by side; where there are too few, the parts of one.
        let workers = options.threads.clamp(1, self.files.len().max(1));
        let next = AtomicUsize::new(0);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let values = Counter::default();
        let sums = Mutex::new(BTreeMap::new());
        let sum_of = |file: &FilePlan, sum| {
            sums.lock().unwrap_or_else(PoisonError::into_inner).insert(file.path.clone(), sum);
        };
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = self.files.get(i) else { return };
                // A file has its name when it is complete.
                let whole = folder.path().join(&file.path);
                if begun
                    && whole.is_file()
                    && let Ok(sum) = checksums::of_file(&whole)
                {
                    sum_of(file, sum);
                    progress(file.bytes());
                    continue;
                }
                let feed = |t: &Target, sink: items::Sink<'_>| {
                    let sink = &mut |bytes: &[u8]| {
                        progress(bytes.len() as u64);
                        if !t.nf4 {
                            values.look(&t.parameter, t.dtype, bytes);
                        }
                        sink(bytes)
                    };
                    if t.transposed {
                        source.copy_transposed(&t.parameter, &t.region, t.dtype, sink)
                    } else {
                        source.copy(&t.parameter, &t.region, None, t.dtype, sink)
                    }
                };
                let written = match &file.container {
                    Container::Safetensors { header } if options.threads >= 2 * workers => {
                        let options = RunOptions { threads: options.threads / workers, ..*options };
                        write_in_parts(file, header, folder.path(), &options, &feed)
                    }
                    _ => write_one(file, folder.path(), options.sync, &mut |t, sink| feed(t, sink)),
                };
                let written = written.map(|sum| sum_of(file, sum));
                if let Err(error) = written {
                    next.store(self.files.len(), Ordering::Relaxed);
                    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error);
                    return;
                }
            }
        };
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
        checksums::note(folder.path(), &sums.into_inner().unwrap_or_else(PoisonError::into_inner))?;
        folder.commit(options.sync)?;
        Ok(values.report())
    }

    fn write_small(&self, folder: &Path) -> Result<()> {
        for (path, text) in &self.texts {
            ms_files::write_file(&folder.join(path), text)?;
        }
        for (from, to) in &self.copies {
            let text = fs::read(from).map_err(Error::io(from, "read"))?;
            ms_files::write_file(&folder.join(to), &text)?;
        }
        Ok(())
    }
}

/// How a Hugging Face folder is divided into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Files of at most this many bytes, with at least one tensor.
    Bytes(u64),
    /// One file per layer, as head's converter writes them.
    PerLayer,
    /// One file per layer with experts, in which the dense layers before it are, too.
    ///
    /// # Source
    /// MindSpeed-LLM 2.0.0, `examples/mcore/deepseek3/convert_ckpt_deepseek3_mcore2hf.py`.
    PerLayerOfExperts,
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

/// The type that a parameter is written in: whole numbers stay whole, whatever type the others get.
fn type_of(spec: &ParamSpec, dtype_of: &DTypeOf<'_>) -> Result<DType> {
    let dtype = dtype_of(&spec.name)?;
    Ok(if spec.integral && dtype.is_float() { DType::I64 } else { dtype })
}

fn target(name: String, spec: &ParamSpec, lens: &Lens, dtype: DType) -> Target {
    let (shape, region, transposed) = (lens.shape.clone(), lens.region.clone(), lens.transposed);
    Target {
        name,
        parameter: Name::weight(&spec.slot),
        dtype,
        shape,
        region,
        transposed,
        nf4: false,
        chunk: 0,
    }
}

/// The name of a parameter, or of a state of it.
fn parameter(state: Option<State>, spec: &ParamSpec) -> Name {
    state.map_or_else(|| Name::weight(&spec.slot), |state| Name::state(state, &spec.slot))
}
