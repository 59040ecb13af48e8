//! The toolchain's own checkpoint: safetensors files and a manifest of global tensors.
//!
//! ```text
//! DIR/latest_checkpointed_iteration.txt     10
//! DIR/iter_0000010/manifest.json            every global tensor: shape, dtype, which file holds which part
//! DIR/iter_0000010/rank_00000.safetensors   what rank 0 wrote
//! ```
//!
//! A part is a region of the global tensor (a tensor-parallel shard), or a range of the region's elements (a shard of a
//! distributed optimizer's flat buffer). The manifest refers to global elements only, so any topology can read any part of
//! any tensor, whatever topology wrote it.
//!
//! One rank calls [`Writer::create`]; after that every rank, thread or process, calls [`Writer::write_rank`] (processes
//! through [`Writer::join`]); when all have returned, the first rank calls [`Writer::finish`]. Nothing is visible under its
//! final name before that.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ms_core::{DType, Region, Shape};
use ms_spec::ModelConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, Form};
pub use crate::iterations::MANIFEST;
use crate::iterations::{iteration_name, write_tracker};
use crate::layout::hf;
use crate::name::Names;
use crate::plan::{self, Plan};
use crate::runs::RunIndex;
use crate::stored::{Global, Piece as Part, Stored};
use crate::torch::TensorView;
use crate::{Error, Mapped, Result, checksums, dcp, safetensors};
use ms_files::AtomicFolder;

const FORMAT: &str = "ms-sharded";
const VERSION: u32 = 1;

/// A part of a global tensor that a rank holds.
#[derive(Clone)]
pub struct Piece<'a> {
    /// Name of the global tensor: a parameter's canonical name, or any other for optimizer state.
    pub name: &'a str,
    /// Shape of the global tensor.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// The rank's region of it.
    pub region: Region,
    /// Which elements of the region, in its local order, `bytes` holds; `None`: all.
    pub flat: Option<Range<usize>>,
    /// The elements, little-endian.
    pub bytes: Bytes<'a>,
}

/// The bytes of a piece.
#[derive(Clone, Copy)]
pub enum Bytes<'a> {
    /// In memory.
    InMemory(&'a [u8]),
    /// Brought when they are written, run after run.
    Streamed(&'a Runs<'a>),
}

/// A function that passes its bytes, one run after another, to its argument.
pub type Runs<'a> = dyn Fn(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> + 'a;

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::InMemory(bytes)
    }
}

impl Bytes<'_> {
    /// Writes them; how many there are.
    fn write(&self, out: &mut impl io::Write) -> io::Result<usize> {
        match self {
            Self::InMemory(bytes) => out.write_all(bytes).map(|()| bytes.len()),
            Self::Streamed(runs) => {
                let mut written = 0;
                runs(&mut |bytes| {
                    written += bytes.len();
                    out.write_all(bytes)
                })?;
                Ok(written)
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    iteration: u64,
    config: ModelConfig,
    tensors: Vec<Tensor>,
    state: Value,
    /// CRC-32C of every file of tensors; checkpoints of earlier versions have none.
    #[serde(default)]
    crc32c: BTreeMap<String, u32>,
}

#[derive(Serialize, Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    parts: Vec<Place>,
}

/// Where a part lies.
#[derive(Serialize, Deserialize)]
struct Place {
    file: String,
    key: String,
    region: Region,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flat: Option<(usize, usize)>,
}

/// Writes one sharded checkpoint.
#[derive(Debug)]
pub struct Writer {
    root: PathBuf,
    iteration: u64,
    folder: PathBuf,
    /// Present in the value that [`Writer::create`] made, until it is published.
    staging: Mutex<Option<AtomicFolder>>,
}

impl Writer {
    /// Starts the checkpoint of an iteration in the folder `root`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(root: &Path, iteration: u64) -> Result<Self> {
        fs::create_dir_all(root).map_err(Error::io(root, "create"))?;
        let staging = AtomicFolder::create(&root.join(iteration_name(iteration)), true)?;
        Ok(Self {
            root: root.to_owned(),
            iteration,
            folder: staging.path().to_owned(),
            staging: Mutex::new(Some(staging)),
        })
    }

    /// The same checkpoint seen from another process, after the first has called [`Writer::create`].
    pub fn join(root: &Path, iteration: u64) -> Self {
        let folder = AtomicFolder::temporary_of(&root.join(iteration_name(iteration)));
        Self { root: root.to_owned(), iteration, folder, staging: Mutex::default() }
    }

    /// Writes what `rank` holds. Every part of a tensor should be written by one rank only; equal copies do no harm.
    ///
    /// # Errors
    /// I/O errors.
    ///
    /// # Panics
    /// If a piece has not exactly the bytes of its region or range.
    pub fn write_rank(&self, rank: usize, pieces: &[Piece<'_>]) -> Result<()> {
        let file = format!("rank_{rank:05}.safetensors");
        let mut used: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut list, mut sizes) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        let mut tensors = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let local = piece.region.local_shape();
            let shape = match &piece.flat {
                None => local.to_vec(),
                Some(range) => {
                    assert!(
                        range.start <= range.end && range.end <= local.numel(),
                        "{}: range in its region",
                        piece.name
                    );
                    vec![range.len()]
                }
            };
            let times = used.entry(piece.name).or_default();
            let key = if *times == 0 { piece.name.to_owned() } else { format!("{}#{times}", piece.name) };
            *times += 1;
            sizes.push(shape.iter().product::<usize>() * piece.dtype.size());
            list.push((key.clone(), piece.dtype, shape));
            tensors.push(Tensor {
                name: piece.name.to_owned(),
                shape: piece.shape.to_vec(),
                dtype: piece.dtype,
                parts: vec![Place {
                    file: file.clone(),
                    key,
                    region: piece.region.clone(),
                    flat: piece.flat.as_ref().map(|r| (r.start, r.end)),
                }],
            });
        }
        let path = self.folder.join(&file);
        let io = |action| Error::io(&path, action);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(io("create"))?);
        let header = safetensors::make_header(&list, &[("format", FORMAT)]);
        safetensors::write_header(&mut out, &header).map_err(io("write"))?;
        for (piece, want) in pieces.iter().zip(sizes) {
            let written = piece.bytes.write(&mut out).map_err(io("write"))?;
            assert_eq!(written, want, "{}: bytes of its region", piece.name);
        }
        let out = out.into_inner().map_err(|e| io("write")(e.into_error()))?;
        out.sync_all().map_err(io("sync"))?;
        let index = serde_json::to_vec(&tensors).expect("a list of plain structs");
        Ok(ms_files::write_file(&self.folder.join(format!("rank_{rank:05}.json")), &index)?)
    }

    /// Writes the ranks' tensors into the same folder a second time, as Megatron's files, so that Megatron can read the
    /// checkpoint as well as this toolchain. `sealed` is what [`Writer::seal`] returned.
    ///
    /// # Errors
    /// A tensor that is missing; I/O errors.
    pub fn write_megatron(&self, plan: &Plan, sealed: &Checkpoint) -> Result<()> {
        plan::write_from(plan, sealed, &self.folder, self.iteration)
    }

    /// Completes the checkpoint: manifest, final name, tracker file.
    ///
    /// `state` is any JSON: arguments, consumed samples, random states, schedule.
    ///
    /// # Errors
    /// A tensor that the ranks' pieces do not cover or describe differently; I/O errors.
    ///
    /// # Panics
    /// If this value came from [`Writer::join`].
    pub fn finish(self, config: &ModelConfig, state: &Value) -> Result<()> {
        self.seal(config, state)?;
        self.publish()
    }

    /// Writes the manifest of what the ranks have written, which is visible nowhere yet, and opens it: other forms of the
    /// same weights can be made from it.
    ///
    /// # Errors
    /// A tensor that the ranks' pieces do not cover or describe differently; I/O errors.
    pub fn seal(&self, config: &ModelConfig, state: &Value) -> Result<Checkpoint> {
        let mut names: Vec<PathBuf> = fs::read_dir(&self.folder)
            .map_err(Error::io(&self.folder, "list"))?
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "json") && !p.ends_with(dcp::BACKEND))
            .collect();
        names.sort();
        let mut all: BTreeMap<String, Tensor> = BTreeMap::new();
        for path in names {
            let text = fs::read(&path).map_err(Error::io(&path, "read"))?;
            let tensors: Vec<Tensor> =
                serde_json::from_slice(&text).map_err(|e| Error::malformed(&path, e.to_string()))?;
            for tensor in tensors {
                match all.get_mut(&tensor.name) {
                    None => {
                        all.insert(tensor.name.clone(), tensor);
                    }
                    Some(known) if known.shape == tensor.shape && known.dtype == tensor.dtype => {
                        known.parts.extend(tensor.parts);
                    }
                    Some(known) => {
                        return Err(Error::malformed(
                            &path,
                            format!(
                                "tensor {}: {:?} {} here, {:?} {} in another rank",
                                tensor.name, tensor.shape, tensor.dtype, known.shape, known.dtype
                            ),
                        ));
                    }
                }
            }
            fs::remove_file(&path).map_err(Error::io(&path, "remove"))?;
        }
        for tensor in all.values() {
            let total = tensor.shape.iter().product();
            let parts = tensor.parts.iter().map(|p| (&p.region, p.flat.map(|(a, b)| a..b)));
            if let Some(gap) = RunIndex::new(parts).first_gap(total) {
                let what = format!("tensor {}: no rank wrote element {gap} of {total}", tensor.name);
                return Err(Error::folder(&self.folder, what));
            }
        }
        let mut crc32c = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).map_err(Error::io(&self.folder, "list"))? {
            let path = entry.map_err(Error::io(&self.folder, "list"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("rank_") && name.ends_with(".safetensors") {
                crc32c.insert(name, checksums::of_file(&path)?.crc32c);
            }
        }
        let manifest = Manifest {
            crc32c,
            format: FORMAT.to_owned(),
            version: VERSION,
            iteration: self.iteration,
            config: config.clone(),
            tensors: all.into_values().collect(),
            state: state.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&manifest).expect("a plain struct");
        text.push(b'\n');
        ms_files::write_file(&self.folder.join(MANIFEST), &text)?;
        checksums::note(&self.folder, &BTreeMap::from([(MANIFEST.into(), checksums::Checksum::of(&text))]))?;
        open(&self.folder, &self.folder)
    }

    /// Gives a sealed checkpoint its final name and writes the tracker file.
    ///
    /// # Errors
    /// I/O errors.
    ///
    /// # Panics
    /// If this value came from [`Writer::join`], or was published before.
    pub fn publish(&self) -> Result<()> {
        let staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner).take();
        let staging = staging.expect("the rank that created the checkpoint finishes it, once");
        staging.commit(true)?;
        write_tracker(&self.root, self.iteration)
    }
}

/// Compares the files of a checkpoint of this form, and accompanying files such as Megatron's, with the checksums in its
/// manifest, at the speed of memory or of the disk. `folder` is that of one iteration.
///
/// # Errors
/// [`Error::Malformed`] naming the file whose bytes are not those that were written; I/O errors.
pub(crate) fn check_sums(folder: &Path) -> Result<()> {
    checksums::check_noted(folder)?;
    let path = folder.join(MANIFEST);
    let text = fs::read(&path).map_err(Error::io(&path, "read"))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| Error::malformed(&path, e.to_string()))?;
    for (name, noted) in &manifest.crc32c {
        check_name(name).map_err(|what| Error::malformed(&path, what))?;
        let file = folder.join(name);
        if checksums::of_file(&file)?.crc32c != *noted {
            return Err(Error::malformed(
                &file,
                "its bytes are not those that were written (CRC-32C)".to_owned(),
            ));
        }
    }
    Ok(())
}

/// Checks that a file is one of the manifest's folder: a name with a path in it could point anywhere.
fn check_name(file: &str) -> std::result::Result<(), String> {
    if file.contains(['/', '\\']) || file.starts_with('.') || file.is_empty() {
        Err(format!("{file:?} is not a file name"))
    } else {
        Ok(())
    }
}

pub(crate) fn open(root: &Path, folder: &Path) -> Result<Checkpoint> {
    let path = folder.join(MANIFEST);
    let text = fs::read(&path).map_err(Error::io(&path, "read"))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| Error::malformed(&path, e.to_string()))?;
    if manifest.format != FORMAT || manifest.version != VERSION {
        let (format, version) = (manifest.format, manifest.version);
        return Err(Error::malformed(
            &path,
            format!("expected {FORMAT} version {VERSION}, got {format} version {version}"),
        ));
    }
    let config = manifest.config.validate().map_err(Error::spec(&path))?;
    let mut files: Vec<Mapped> = Vec::new();
    let mut stored: Vec<Stored> = Vec::new();
    let mut by_file: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let (names, mut globals) = (Names::of(&config), BTreeMap::new());
    for tensor in manifest.tensors {
        if tensor.shape.len() > ms_core::MAX_RANK {
            return Err(Error::malformed(
                &path,
                format!("tensor {}: more than {} dimensions", tensor.name, ms_core::MAX_RANK),
            ));
        }
        if tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_none() {
            let (name, shape) = (&tensor.name, &tensor.shape);
            return Err(Error::malformed(&path, format!("tensor {name}: too many elements: {shape:?}")));
        }
        let shape = Shape::new(&tensor.shape);
        let mut pieces = Vec::new();
        for part in tensor.parts {
            let wrong = |what: String| Error::malformed(&path, format!("tensor {}: {what}", tensor.name));
            check_name(&part.file).map_err(wrong)?;
            if !by_file.contains_key(&part.file) {
                let file = Mapped::open(&folder.join(&part.file))?;
                let mut keys = BTreeMap::new();
                for t in safetensors::read_header(&file)?.tensors {
                    let dtype = safetensors::dtype(&t.dtype)
                        .ok_or_else(|| wrong(format!("dtype {} is not supported", t.dtype)))?;
                    keys.insert(t.name.clone(), stored.len());
                    let view = TensorView { dtype, shape: t.shape, start: t.start, strides: None };
                    stored.push(Stored::of(t.name, files.len(), view));
                }
                files.push(file);
                by_file.insert(part.file.clone(), keys);
            }
            let found = by_file[&part.file].get(&part.key);
            let &i = found.ok_or_else(|| wrong(format!("{} has no tensor {}", part.file, part.key)))?;
            let local = part.region.local_shape();
            let want = match part.flat {
                None => local.to_vec(),
                Some((a, b)) if a <= b && b <= local.numel() => vec![b - a],
                Some((a, b)) => {
                    return Err(wrong(format!(
                        "range {a}..{b} is outside its region of {} elements",
                        local.numel()
                    )));
                }
            };
            if part.region.shape != shape || stored[i].shape != want || stored[i].dtype != tensor.dtype {
                return Err(wrong(format!(
                    "part {} in {}: expected {} {want:?}, got {} {:?}",
                    part.key, part.file, tensor.dtype, stored[i].dtype, stored[i].shape
                )));
            }
            pieces.push(Part {
                stored: i,
                region: part.region,
                flat: part.flat.map(|(a, b)| a..b),
                view: None,
            });
        }
        globals.insert(names.find(tensor.name), Global { shape, dtype: tensor.dtype, pieces });
    }
    let beside = root.join("config.json");
    let config_json = beside.is_file().then(|| hf::read_json(&beside)).transpose()?;
    let args = manifest.state["args"].as_object().cloned().unwrap_or_else(Map::new);
    Ok(Checkpoint {
        config_json,
        files,
        stored,
        globals,
        iteration: manifest.iteration,
        args,
        state: manifest.state,
        ..Checkpoint::empty(root, Form::Sharded, config)
    })
}
