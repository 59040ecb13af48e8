//! Writing one planned file in its container.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ms_core::DType;
use ms_spec::{ModelConfig, ParamSpec};

use super::items::{Feed, Item, Sink};
use super::{Container, FilePlan, Plan, RunOptions, Sharding, Target};
use crate::cast::cast;
use crate::checkpoint::Checkpoint;
use crate::checksums::{self, Checksum, ChecksumWriter};
use crate::iterations::iteration_name;
use crate::layout::hf::SHARD_BYTES;
use crate::safetensors::write_header;
use crate::torch::{Object, Writer};
use crate::{Error, Result};
use ms_files::{AtomicFolder, Unfinished};

/// Writes a file and gives the checksum of its bytes.
pub(super) fn write_one(plan: &FilePlan, folder: &Path, sync: bool, feed: Feed<'_>) -> Result<Checksum> {
    let last = folder.join(&plan.path);
    let (name, file) = Unfinished::create(last)?;
    let path = name.temporary();
    let io = |action| Error::io(path, action);
    let mut out = BufWriter::with_capacity(1 << 18, ChecksumWriter::new(file));
    match &plan.container {
        Container::Safetensors { header } => {
            write_header(&mut out, header).map_err(io("write"))?;
            for tensor in &plan.tensors {
                feed(tensor, &mut |bytes| out.write_all(bytes).map_err(io("write")))?;
            }
        }
        Container::Chunks => {
            for t in &plan.tensors {
                let mut zip = Writer::start(out, "archive", &t.archived()).map_err(io("write"))?;
                zip.storage::<Failure>(0, t.bytes(), &mut |sink| {
                    feed(t, &mut |bytes| sink(bytes).map_err(|e| e.into_error(path))).map_err(Failure::Other)
                })
                .map_err(|e| e.into_error(path))?;
                out = zip.finish().map_err(io("write"))?;
            }
        }
        Container::Buffers { object, buffers } => {
            let mut zip = Writer::start(out, "distrib_optim", object).map_err(io("write"))?;
            for (i, buffer) in buffers.iter().enumerate() {
                zip.storage::<Failure>(i, buffer.numel as u64 * 4, &mut |sink| {
                    let mut sink = |bytes: &[u8]| sink(bytes).map_err(|e| e.into_error(path));
                    let mut at = 0;
                    for &(place, target) in &buffer.parts {
                        sink(&vec![0; (place - at) * 4])?;
                        let t = &plan.tensors[target];
                        feed(t, &mut sink)?;
                        at = place + t.shape.iter().product::<usize>();
                    }
                    Ok(())
                })
                .map_err(|e: Failure| e.into_error(path))?;
            }
            out = zip.finish().map_err(io("write"))?;
        }
        Container::Torch { top, chunks, end } => {
            let items = Item::list(plan, feed)?;
            let object = saved_object(&items, top, *chunks, end);
            let mut zip = Writer::start(out, "model_optim_rng", &object).map_err(io("write"))?;
            for (i, item) in items.iter().enumerate() {
                zip.storage::<Failure>(i, item.bytes(), &mut |sink| {
                    item.write(plan, feed, &mut |bytes| sink(bytes).map_err(|e| e.into_error(path)))
                        .map_err(Failure::Other)
                })
                .map_err(|e| e.into_error(path))?;
            }
            out = zip.finish().map_err(io("write"))?;
        }
    }
    let ChecksumWriter { inner: file, sum } = out.into_inner().map_err(|e| io("write")(e.into_error()))?;
    if sync {
        file.sync_all().map_err(io("sync"))?;
    }
    name.publish(sync)?;
    Ok(sum)
}

/// Writes a safetensors file whose tensors are handed over by `feed`, neighbours by one thread each, since one alone is
/// slower than a disk in memory. Gives the checksum of its bytes.
pub(super) fn write_in_parts(
    plan: &FilePlan,
    header: &str,
    folder: &Path,
    options: &RunOptions,
    feed: &(dyn Fn(&Target, Sink<'_>) -> Result<()> + Sync),
) -> Result<Checksum> {
    let last = folder.join(&plan.path);
    let (name, file) = Unfinished::create(last)?;
    let path = name.temporary();
    let io = |action| Error::io(path, action);
    let mut start = ChecksumWriter::new(file);
    write_header(&mut start, header).map_err(io("write"))?;
    let ChecksumWriter { inner: mut file, sum: head } = start;
    let start = file.stream_position().map_err(io("write"))?;
    file.set_len(start + plan.bytes()).map_err(io("write"))?;
    let part = |tensors: &[Target], at: u64| -> Result<Checksum> {
        let mut file = File::options().write(true).open(path).map_err(io("open"))?;
        file.seek(SeekFrom::Start(at)).map_err(io("write"))?;
        let mut out = BufWriter::with_capacity(1 << 18, ChecksumWriter::new(file));
        for tensor in tensors {
            let mut written = 0;
            feed(tensor, &mut |bytes| {
                written += bytes.len() as u64;
                out.write_all(bytes).map_err(io("write"))
            })?;
            assert_eq!(written, tensor.bytes(), "{}: bytes of its shape", tensor.name);
        }
        out.flush().map_err(io("write"))?;
        Ok(out.get_ref().sum)
    };
    let done: Vec<Result<Checksum>> = std::thread::scope(|scope| {
        let (mut running, mut at) = (Vec::new(), start);
        for tensors in parts(&plan.tensors, options.threads) {
            let (part, first) = (&part, at);
            at += tensors.iter().map(Target::bytes).sum::<u64>();
            running.push(scope.spawn(move || part(tensors, first)));
        }
        running
            .into_iter()
            .map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut sum = head;
    for part in done {
        sum = sum.followed_by(part?);
    }
    if options.sync {
        file.sync_all().map_err(io("sync"))?;
    }
    name.publish(options.sync)?;
    Ok(sum)
}

/// Tensors in at most `count` rows of neighbours with about the same bytes.
fn parts(tensors: &[Target], count: usize) -> Vec<&[Target]> {
    let total: u64 = tensors.iter().map(Target::bytes).sum();
    let (mut all, mut first, mut filled) = (Vec::new(), 0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        filled += tensor.bytes();
        if all.len() + 1 < count && filled * count as u64 >= total * (all.len() as u64 + 1) {
            all.push(&tensors[first..=i]);
            first = i + 1;
        }
    }
    all.push(&tensors[first..]);
    all
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

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Other(e)
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

fn saved_object(items: &[Item], top: &[(String, Object)], chunks: usize, end: &[(String, Object)]) -> Object {
    let mut top = top.to_vec();
    for chunk in 0..chunks {
        let mut model = Vec::new();
        for (i, t) in items.iter().enumerate().filter(|(_, t)| t.chunk == chunk) {
            let tensor = Object::Tensor { storage: i, dtype: t.dtype, shape: t.shape.clone() };
            nest(&mut model, &t.name, tensor);
        }
        let key = if chunks == 1 { "model".to_owned() } else { format!("model{chunk}") };
        top.push((key, Object::Ordered(model)));
    }
    top.extend(end.iter().cloned());
    Object::Dict(top)
}

/// Puts an object into nested dictionaries; levels of its name are joined by `/`.
fn nest(entries: &mut Vec<(String, Object)>, name: &str, object: Object) {
    let Some((level, rest)) = name.split_once('/') else {
        return entries.push((name.to_owned(), object));
    };
    let found = entries.iter().position(|(key, _)| key == level).unwrap_or_else(|| {
        entries.push((level.to_owned(), Object::Ordered(Vec::new())));
        entries.len() - 1
    });
    if let Object::Ordered(inner) = &mut entries[found].1 {
        nest(inner, rest, object);
    }
}

/// Gives the bytes of a whole parameter, little-endian; of one of whole numbers as float32.
pub(crate) type ParamBytes<'a> = &'a mut dyn FnMut(&ParamSpec) -> Result<Vec<u8>>;

/// Writes the files of a plan into `folder` with weights that a program holds, each in the type that the plan names; as floats of
/// type `dtype` they are handed over.
fn write_params(
    plan: &Plan,
    folder: &Path,
    config: &ModelConfig,
    dtype: DType,
    bytes: ParamBytes<'_>,
) -> Result<()> {
    let specs = ms_spec::params(config);
    for t in &plan.zeros {
        let spec =
            specs.iter().find(|s| *s.name == *t.parameter).expect("plans name parameters of the table");
        let (whole, size) = (bytes(spec)?, dtype.size());
        let mut seen = 0;
        for (start, len) in t.region.runs() {
            let mut values = Vec::new();
            cast(&whole[start * size..(start + len) * size], dtype, DType::F32, &mut values);
            t.has_zeros(&values, &mut seen)?;
        }
    }
    let mut sums: BTreeMap<PathBuf, Checksum> = BTreeMap::new();
    for file in &plan.files {
        let sum = write_one(file, folder, true, &mut |t, sink| {
            let spec =
                specs.iter().find(|s| *s.name == *t.parameter).expect("plans name parameters of the table");
            let mut whole = bytes(spec)?;
            let held = if spec.integral { DType::F32 } else { t.dtype };
            assert_eq!(
                whole.len(),
                spec.shape.numel() * held.size(),
                "{}: bytes of the parameter",
                spec.name
            );
            if held != t.dtype {
                let given = std::mem::take(&mut whole);
                cast(&given, held, t.dtype, &mut whole);
            }
            let size = t.dtype.size();
            for (start, len) in t.region.runs() {
                sink(&whole[start * size..(start + len) * size])?;
            }
            Ok(())
        })?;
        sums.insert(file.path.clone(), sum);
    }
    checksums::note(folder, &sums)
}

/// Writes weights that a program holds as a Hugging Face folder: `config.json`, safetensors, index.
///
/// `bytes` gives the whole canonical parameter (`[padded_vocab, ...]` for vocabulary tensors) as `dtype`, little-endian
/// (whole numbers, [`ParamSpec::integral`], as float32); it is called once for each Hugging Face tensor in turn.
///
/// # Errors
/// I/O errors; an existing folder that is not empty, unless `replace`; [`Error::NotZero`].
pub fn write_hf(
    dir: &Path,
    config: &ModelConfig,
    dtype: DType,
    replace: bool,
    bytes: &mut dyn FnMut(&ParamSpec) -> Result<Vec<u8>>,
) -> Result<()> {
    let config = &ModelConfig { dtype: Some(dtype), ..config.clone() };
    let plan = Plan::hf(config, &|_| Ok(dtype), Sharding::Bytes(SHARD_BYTES))?;
    let folder = AtomicFolder::create(dir, replace)?;
    write_params(&plan, folder.path(), config, dtype, bytes)?;
    plan.write_small(folder.path())?;
    let json = ms_spec::hf::write_config(config, ms_spec::hf::Dialect::V4).map_err(Error::spec(dir))?;
    let mut text = serde_json::to_vec_pretty(&json).expect("plain JSON");
    text.push(b'\n');
    ms_files::write_file(&folder.path().join("config.json"), &text)?;
    Ok(folder.commit(true)?)
}

/// The files of a plan of Megatron's, in the folder of an iteration that is being written, of what `source` holds.
pub(crate) fn write_from(plan: &Plan, source: &Checkpoint, folder: &Path, iteration: u64) -> Result<()> {
    let prefix = iteration_name(iteration);
    let mut sums: BTreeMap<PathBuf, Checksum> = BTreeMap::new();
    for file in &plan.files {
        let path = file.path.strip_prefix(&prefix).unwrap_or(&file.path).to_owned();
        let file = FilePlan { path, ..file.clone() };
        let sum = write_one(&file, folder, true, &mut |t, sink| {
            if t.transposed {
                source.copy_transposed(&t.parameter, &t.region, t.dtype, sink)
            } else {
                source.copy(&t.parameter, &t.region, None, t.dtype, sink)
            }
        })?;
        sums.insert(file.path, sum);
    }
    for (path, text) in &plan.texts {
        // The tracker stands above the folder, and is written when that is complete.
        if let Ok(name) = path.strip_prefix(&prefix) {
            ms_files::write_file(&folder.join(name), text)?;
            sums.insert(name.to_owned(), Checksum::of(text));
        }
    }
    checksums::note(folder, &sums)
}

#[cfg(test)]
mod tests {
    use ms_core::{DType, Region};
    use ms_spec::Slot;

    use super::*;
    use crate::Name;

    #[test]
    fn the_parts_of_a_file_are_neighbours_of_about_equal_size() {
        let tensor = |n: usize| Target {
            name: n.to_string(),
            parameter: Name::weight(&Slot::WORDS),
            dtype: DType::U8,
            shape: vec![n],
            region: Region::whole(&[n].into()),
            transposed: false,
            nf4: false,
            chunk: 0,
        };
        let sizes = |tensors: &[Target], count: usize| -> Vec<Vec<usize>> {
            parts(tensors, count).iter().map(|p| p.iter().map(|t| t.shape[0]).collect()).collect()
        };
        let tensors: Vec<Target> = [10, 20, 30, 60, 5, 5].map(tensor).to_vec();
        assert_eq!(sizes(&tensors, 1), [[10, 20, 30, 60, 5, 5]]);
        assert_eq!(sizes(&tensors, 2), [vec![10, 20, 30, 60], vec![5, 5]]);
        assert_eq!(sizes(&tensors, 3), [vec![10, 20, 30], vec![60], vec![5, 5]]);
        assert_eq!(sizes(&tensors[..1], 4).concat(), [10]);
        assert_eq!(sizes(&[], 2).concat(), [] as [usize; 0]);
    }
}
