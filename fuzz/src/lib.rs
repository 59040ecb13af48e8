//! What the targets share: files with fuzzed contents, seeds, and the containers that random bytes would not get past.

use std::path::PathBuf;
use tempfile::TempDir;

/// A folder that lives as long as the fuzzer.
pub struct Scratch(TempDir);

impl Scratch {
    /// An empty folder.
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, over the one before.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).expect("a folder can be made");
        }
        std::fs::write(&path, bytes).expect("a small file can be written");
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// A file of `tests/golden`; empty if it is not there.
pub fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    std::fs::read(path).unwrap_or_default()
}

/// Puts an input into the corpus that the fuzzer was called with, if it was: the first argument that is a folder. Called in
/// the `init` of a target, which comes before the corpus is read.
pub fn seed(name: &str, bytes: &[u8]) {
    let folder = std::env::args().skip(1).map(PathBuf::from).find(|path| path.is_dir());
    if let Some(folder) = folder {
        std::fs::write(folder.join(format!("seed-{name}")), bytes).expect("a seed can be written");
    }
}

/// [`seed`] of a number and what it chooses.
pub fn seed_of(number: u8, name: &str, bytes: &[u8]) {
    seed(&format!("{number:02}-{name}"), &[&[number], bytes].concat());
}

/// Texts with the byte 0xFF between them, which no text has; those that are not there are empty.
pub fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |byte| *byte == 0xff);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// What [`parts`] takes apart.
pub fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.join(&0xff)
}

/// A file as `torch.save` makes it, of a pickle. Each of its storages, `0` to `99`, has 4 KiB.
pub fn torch_archive(pickle: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut entry = |bytes: &[u8]| {
        let at = out.len() as u32;
        out.extend(b"PK\x03\x04");
        out.extend([0; 26]); // sizes are taken from the directory, and nothing stands between the header and the bytes
        out.extend(bytes);
        (at, bytes.len() as u32)
    };
    let mut entries = vec![entry(pickle), entry(b"3\n")];
    entries.extend((0..100).map(|_| entry(&[0x3f; 4096])));
    let names = ["data.pkl", "version"].map(str::to_owned).into_iter();
    let names: Vec<String> = names.chain((0..100).map(|key| format!("data/{key}"))).collect();
    let start = out.len() as u32;
    for (name, (at, len)) in names.iter().zip(entries) {
        let name = format!("archive/{name}");
        out.extend(b"PK\x01\x02");
        out.extend([0; 16]);
        out.extend([len.to_le_bytes(), len.to_le_bytes()].concat());
        out.extend((name.len() as u16).to_le_bytes());
        out.extend([0; 12]);
        out.extend(at.to_le_bytes());
        out.extend(name.as_bytes());
    }
    let (count, size) = (names.len() as u16, out.len() as u32 - start);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    out.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
    out.extend([0; 2]);
    out
}

/// The pickle of such a file; empty if it is none.
pub fn pickle_of(archive: &[u8]) -> Vec<u8> {
    let entries = ms_files::zip::entries(archive).unwrap_or_default();
    let found = entries.into_iter().find(|(name, _)| name.ends_with("/data.pkl"));
    found.map_or_else(Vec::new, |(_, range)| archive[range].to_vec())
}

/// Reads what can be read of a checkpoint: every tensor that is not too large, the run's state, copies and checksums.
pub fn read_all(checkpoint: &ms_ckpt::Checkpoint) {
    const MOST: usize = 1 << 18;
    let mut elements = 0usize;
    for (name, shape, dtype) in checkpoint.tensors().take(256) {
        let numel = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).unwrap_or(usize::MAX);
        elements = elements.saturating_add(numel);
        if numel <= MOST {
            let mut values = vec![0; numel * dtype.size()];
            let region = ms_core::Region::whole(shape);
            let _ = checkpoint.read_named(name, &region, None, dtype, &mut values);
        }
    }
    if elements <= 4 * MOST {
        let _ = checkpoint.verify();
    }
    let _ = (checkpoint.has_optimizer(), checkpoint.torn_state(), checkpoint.stored().count());
    let _ = (checkpoint.generation_stops(), checkpoint.check_sums());
}

/// Does with a model's description what programs do with it before they have its weights: lists parameters, cuts them, counts
/// operations and bytes, places layers, writes it in both forms.
pub fn described(config: &ms_spec::ModelConfig) {
    use ms_spec::{Placement, Stages, flops, hf, megatron};
    if config.layers > 64 || config.moe.as_ref().is_some_and(|moe| moe.experts > 1024) {
        return;
    }
    let specs = ms_spec::params(config);
    assert!(!specs.is_empty());
    let elements: f64 =
        specs.iter().map(|spec| spec.shape.iter().map(|&dim| dim as f64).product::<f64>()).sum();
    assert!(elements > 0.0);
    for size in [2, 3] {
        let _ = (ms_spec::check_cut(config, size), ms_spec::check_whole_heads(config, size));
        let _ = (ms_spec::check_expert_cut(config, size, 1), ms_spec::check_context(config, 1, size, false));
    }
    let _ = (flops::v2_0_0(config, 1, 128), flops::head(config, 1, 128));
    let activations = ms_spec::Activations::plain(128, 2);
    let _ = activations.input(config);
    for pp in [1, 2] {
        if let Ok(placement) = Placement::new(config, &Stages { pp, ..Stages::default() }) {
            let chunks = placement.stage(0);
            for (number, items) in chunks.iter().enumerate() {
                let _ = activations.of_items(config, items, (number, chunks.len()));
            }
        }
    }
    for dialect in [hf::Dialect::V4, hf::Dialect::V5] {
        let _ = hf::write_config(config, dialect);
    }
    // What is written can be read, whatever the arguments have no words for.
    let _ = megatron::from_args(&megatron::to_args(config));
    let _ = config.beyond_plain();
}

/// Small token streams of two columns: as this program writes them, and without the checksums, which no mutation would get past.
/// Streams of earlier versions have none.
pub fn token_streams() -> [Vec<u8>; 2] {
    use ms_data::handler::Row;
    use ms_data::token_stream::{StreamInfo, TokenWriter};
    let columns = ["input_ids".to_owned(), "labels".to_owned()];
    let info =
        StreamInfo { style: "alpaca".into(), tokenizer: "ab".into(), vocab_size: 9, ..StreamInfo::default() };
    let mut sealed = Vec::new();
    let mut writer = TokenWriter::new(&mut sealed, "memory", &columns, &info).expect("memory");
    for row in
        [[Some(vec![1, 2, 3]), Some(vec![0, 2, 3])], [Some(vec![]), None], [Some(vec![4]), Some(vec![4, 5])]]
    {
        writer.push(Row::new(row.into())).expect("memory");
    }
    writer.finish().expect("memory");
    // A mark of 64 bytes ends every header; no token is -1, so that 0xFFFFFFFF begins every message.
    let mut open = Vec::new();
    let starts: Vec<usize> = (0..sealed.len()).filter(|&at| sealed[at..].starts_with(&[0xff; 4])).collect();
    for (number, &start) in starts.iter().enumerate() {
        let message = &sealed[start..starts.get(number + 1).copied().unwrap_or(sealed.len())];
        let length = u32::from_le_bytes(message[4..8].try_into().expect("four bytes")) as usize;
        if length < 64 {
            open.extend_from_slice(message);
            continue;
        }
        open.extend_from_slice(&[0xff; 4]);
        open.extend_from_slice(&(length as u32 - 64).to_le_bytes());
        let header = message[8..8 + length - 64].to_vec();
        let promise = header.windows(11).position(|text| text == b"ms.checksum");
        let mut header = header;
        if let Some(at) = promise {
            header[at] = b'x';
        }
        open.extend_from_slice(&header);
        open.extend_from_slice(&message[8 + length..]);
    }
    [sealed, open]
}

/// Small tables as files, and whether a file is Parquet or Arrow: codecs of both, Arrow's file and its stream.
pub fn tables() -> Vec<(bool, Vec<u8>)> {
    use arrow_array::types::{Int8Type, Int32Type};
    use arrow_array::{
        ArrayRef, BooleanArray, DictionaryArray, Float64Array, ListArray, RecordBatch, StringArray,
    };
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use parquet::basic::{Compression, GzipLevel, ZstdLevel};
    use parquet::file::properties::WriterProperties;
    use std::sync::Arc;
    let kinds: DictionaryArray<Int8Type> = ["x", "y", "x"].into_iter().collect();
    let lists = [Some(vec![Some(1), None]), None, Some(vec![])];
    let columns: [(&str, ArrayRef); 5] = [
        ("text", Arc::new(StringArray::from(vec![Some("one"), None, Some("drei \u{e9}")]))),
        ("x", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 1e300]))),
        ("ok", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("kind", Arc::new(kinds)),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let mut all = Vec::new();
    let (gzip, zstd) = (Compression::GZIP(GzipLevel::default()), Compression::ZSTD(ZstdLevel::default()));
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, gzip, zstd, Compression::LZ4_RAW] {
        let properties = WriterProperties::builder().set_compression(codec).build();
        let mut bytes = Vec::new();
        let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))
            .expect("memory");
        writer.write(&batch).expect("memory");
        writer.close().expect("memory");
        all.push((true, bytes));
    }
    for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let options = IpcWriteOptions::default().try_with_compression(codec).expect("a codec that is there");
        let (mut file, mut stream) = (Vec::new(), Vec::new());
        let mut writer =
            FileWriter::try_new_with_options(&mut file, &batch.schema(), options.clone()).expect("memory");
        writer.write(&batch).and_then(|()| writer.finish()).expect("memory");
        drop(writer);
        let mut writer =
            StreamWriter::try_new_with_options(&mut stream, &batch.schema(), options).expect("memory");
        writer.write(&batch).and_then(|()| writer.finish()).expect("memory");
        drop(writer);
        all.extend([(false, file), (false, stream)]);
    }
    all
}

/// Lets panics unwind that begin in one of these crates: a reader of ours catches them. If it does not, or for a panic from
/// anywhere else, the fuzzer stops. Called in `init`.
pub fn caught_from(crates: &'static [&'static str]) {
    let stop = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let begins_there = |at: &std::panic::Location<'_>| crates.iter().any(|name| at.file().contains(name));
        if !info.location().is_some_and(begins_there) {
            stop(info);
        }
    }));
}
