//! The approximate memory of a run, estimated before it starts.

use crate::cli::{Tokenize, Vocabulary};
use anyhow::Result;
use ms_cli::{available_memory, too_little_memory};
use ms_data::preprocess::{CHUNK_BYTES, OPEN_CHUNKS};
use ms_data::records::RecordReader;
use std::path::Path;

/// A thread with its buffers and its scratch.
const WORKER_BYTES: u64 = 10 << 20;
/// A byte of a record that is read and not yet written: as it stands, as an object, as a text, and as tokens.
const OPEN_FACTOR: u64 = 6;
/// A byte of the files of a tokenizer that are read for the first time: parsed, and as tables.
const TOKENIZER_FACTOR: u64 = 16;
/// Columns of a row, at most, in 32-bit tokens.
const ROW_TOKEN_BYTES: u64 = 12;
/// Number of records examined at the beginning of the first file, and their bytes.
const SEEN: (u64, u64) = (64, 1 << 20);
/// What the knapsack holds of its samples before it uses a file, twice for the moment in which it grows; in addition, where
/// each begins, its length, and its place in a row.
const KNAPSACK: (u64, u64) = (128 << 20, 32);

/// The parts of an estimate in bytes, each with what lowers it.
pub(crate) struct Estimate {
    parts: Vec<(&'static str, u64)>,
}

impl Estimate {
    /// The estimate for a run, from its flags, its tokenizer files, the sizes of its inputs and their first records.
    pub(crate) fn of(job: &Tokenize) -> Self {
        let (records, longest) = records(job);
        let workers = job.workers as u64;
        let packed = job.options.seq_length.filter(|_| job.pack).unwrap_or(0);
        let row = (packed.max(job.options.pad_to_multiple_of) as u64).saturating_mul(ROW_TOKEN_BYTES);
        let rows = row.saturating_mul(workers.saturating_mul(2).saturating_add(1));
        let chunk = longest.max(CHUNK_BYTES as u64).saturating_mul(OPEN_FACTOR);
        let open = if job.workers > 1 { workers.saturating_mul(OPEN_CHUNKS as u64) } else { 1 };
        let known = job.curation.selection.dedup.map_or(0, ms_data::select::Dedup::record_bytes);
        let mut parts = vec![
            ("--workers", workers.saturating_mul(WORKER_BYTES).saturating_add(open.saturating_mul(chunk))),
            ("--seq-length or --pad-to-multiple-of", rows),
            ("the number of records that --dedup compares (by --sample, or set by set)", records * known),
            ("--shuffle-memory", job.curation.shuffle.map_or(0, |(_, bytes)| bytes as u64)),
            ("the size of the tokenizer", tokenizer_bytes(&job.tokenizer).saturating_mul(TOKENIZER_FACTOR)),
        ];
        if job.pack {
            // A sample has four bytes a token and at least one for every eight bytes of text.
            let held = job.inputs.iter().map(|file| file_bytes(&file.path)).sum::<u64>().min(KNAPSACK.0);
            let bytes = held.saturating_add(records.saturating_mul(KNAPSACK.1));
            parts.push(("the number of records that are packed together, or set by set", bytes));
        }
        Self { parts }
    }

    /// All parts together.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.1))
    }

    /// What to lower: what the greatest part depends on.
    fn lower(&self) -> &'static str {
        self.parts.iter().max_by_key(|part| part.1).map_or("--workers", |part| part.0)
    }
}

/// The approximate number of records, and the bytes of the longest of the first ones. Compressed input counts by its size on
/// disk, and piped input not at all.
fn records(job: &Tokenize) -> (u64, u64) {
    let file = job.inputs.iter().find(|file| file.path.as_os_str() != "-");
    let (mut seen, mut bytes, mut longest) = (0, 0, 0);
    let mut reader = RecordReader::new(file.cloned());
    while seen < SEEN.0 && bytes < SEEN.1 {
        // What cannot be read the run itself says better.
        let Some(Ok(record)) = reader.next() else { break };
        let size = record.size() as u64;
        (seen, bytes, longest) = (seen + 1, bytes + size, longest.max(size));
    }
    let total: u64 = job.inputs.iter().map(|file| file_bytes(&file.path)).sum();
    let mean = bytes.checked_div(seen).unwrap_or(1).max(1);
    (total / mean, longest)
}

/// Bytes of all inputs as they are on disk; `None` if one is piped.
pub(crate) fn input_bytes(job: &Tokenize) -> Option<u64> {
    job.inputs.iter().map(|file| file.path.is_file().then(|| file_bytes(&file.path))).sum()
}

fn file_bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |data| if data.is_file() { data.len() } else { 0 })
}

/// Bytes of the largest file that the vocabulary is read from.
fn tokenizer_bytes(tokenizer: &Vocabulary) -> u64 {
    match tokenizer {
        Vocabulary::Folder { path, .. } if path.is_dir() => {
            let files = ["tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "qwen.tiktoken"];
            files.iter().map(|name| file_bytes(&path.join(name))).find(|bytes| *bytes > 0).unwrap_or(0)
        }
        Vocabulary::Folder { path, .. }
        | Vocabulary::SentencePiece(path)
        | Vocabulary::Bert { vocab: path, .. } => file_bytes(path),
        Vocabulary::Gpt2 { vocab, merges } => file_bytes(vocab).saturating_add(file_bytes(merges)),
    }
}

/// Checks that the machine, or the control group of this process, has what the run takes.
///
/// # Errors
/// If it has not: needed, available, and what to lower.
pub(crate) fn check(job: &Tokenize) -> Result<()> {
    let Some(available) = available_memory() else { return Ok(()) };
    let estimate = Estimate::of(job);
    if estimate.bytes() > available {
        return Err(too_little_memory(estimate.bytes(), available, estimate.lower()));
    }
    Ok(())
}
