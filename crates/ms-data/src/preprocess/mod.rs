//! The preprocessing pipeline: records through a handler into a sink, on several threads, in input order.
//!
//! Every worker reads a chunk of records, encodes it, and writes whatever is next in order. So rows arrive in input order for
//! any number of workers, and memory is bounded by a few chunks per worker: a chunk is 64 records or 256 KB (for one worker,
//! 4 records), and at most four chunks per worker are read and not yet written.
//!
//! - [`run`] does that in one go; [`shards`] keeps the rows of every input file separate, so that an interrupted run can
//!   resume, or several processes can share the work, with the same bytes at the end.
//! - [`RecordSelection`] says which records are used, and what happens to those that cannot be.
//! - [`Manifest`] records what a dataset was made from; [`Lengths`] what is in it.

mod lengths;
mod manifest;
mod manifests;
mod output;
mod selection;
pub mod shards;
mod workers;

pub use lengths::Lengths;
pub use manifest::{InputRecord, Manifest, ManifestStatus, OutputRecord, file_sha256};
pub use manifests::Manifests;
pub use output::Output;
pub use selection::{OnError, RecordSelection, Reject};
pub use workers::{CHUNK_BYTES, OPEN_CHUNKS};

use crate::handler::{Handler, Row};
use crate::records::RawRecord;
use crate::select::DedupKey;
use crate::sink::{Sink, Summary};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use workers::encode_all;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Records without prompt or answer, left out.
    pub dropped: u64,
    /// Records that are not a conversation, replaced by an empty one.
    pub replaced: u64,
    /// Tokens of all columns.
    pub tokens: u64,
    /// Records that a sample left out.
    pub unsampled: u64,
    /// Records that a filter refused.
    pub filtered: u64,
    /// Records that occurred before.
    pub duplicates: u64,
    /// Records that could not be used and were passed over.
    pub rejected: u64,
}

impl Report {
    /// Adds what may come from the note of a shard, with any numbers in it.
    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.records, other.records),
            (&mut self.bytes, other.bytes),
            (&mut self.dropped, other.dropped),
            (&mut self.replaced, other.replaced),
            (&mut self.tokens, other.tokens),
            (&mut self.unsampled, other.unsampled),
            (&mut self.filtered, other.filtered),
            (&mut self.duplicates, other.duplicates),
            (&mut self.rejected, other.rejected),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// The rows of a record, one except for documents of several sequences, and what says whether it occurred before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Encoding {
    rows: Vec<Row>,
    key: Option<DedupKey>,
}

impl Encoding {
    /// Tokens of all columns.
    fn tokens(&self) -> u64 {
        let columns = self.rows.iter().flat_map(|row| &row.columns).flatten();
        columns.map(|column| column.len() as u64).sum()
    }
}

/// The encoded records of a chunk and what they add to the report.
#[derive(Default)]
struct Chunk {
    encodings: Vec<Encoding>,
    rejects: Vec<Reject>,
    report: Report,
}

/// Runs all records through `handler` into `sink`.
///
/// `part_rows` (`--n-subs`) is the number of rows of each part but the last ones; `None` for one part. `progress` is called
/// after every chunk.
///
/// # Errors
/// The first error in input order: of reading, of a record, of writing.
pub fn run(
    records: impl Iterator<Item = Result<RawRecord>> + Send,
    handler: &Handler,
    workers: usize,
    part_rows: Option<u64>,
    sink: Box<dyn Sink + '_>,
    progress: impl FnMut(&Report) + Send,
) -> Result<(Report, Summary)> {
    let mut output = Output::new(sink);
    output.part_rows = part_rows;
    run_into(records, handler, workers, &RecordSelection::default(), &mut output, progress)?;
    output.finish()
}

/// [`run`] with a choice of records, into an output that also counts and keeps what could not be used.
///
/// # Errors
/// As [`run`].
pub fn run_into(
    records: impl Iterator<Item = Result<RawRecord>> + Send,
    handler: &Handler,
    workers: usize,
    selection: &RecordSelection,
    output: &mut Output<'_>,
    mut progress: impl FnMut(&Report) + Send,
) -> Result<()> {
    output.start(selection);
    let encode = |records: &[RawRecord]| selection.encode(handler, records);
    encode_all(records, workers, encode, |chunk| {
        output.take(chunk)?;
        progress(output.report());
        Ok(())
    })
}

/// Number of rows the records give, without tokenizing: what `--n-subs` divides.
///
/// # Errors
/// Of reading, or of a record.
pub fn count_rows(records: impl Iterator<Item = Result<RawRecord>>, handler: &Handler) -> Result<u64> {
    let mut count = 0;
    for record in records {
        let record = record?;
        let keeps = handler.keeps(&record.parse()?, record.file).map_err(|reason| record.error(reason))?;
        count += u64::from(keeps);
    }
    Ok(count)
}

/// Most parts whose names have the order of their numbers.
const MOST_PARTS: u64 = 1000;

/// Rows of a part when `rows` are cut into `parts`.
///
/// # Errors
/// [`Error::Options`] if there are fewer rows than parts; if there are more than 1000, with that of the remainder, which upstream
/// puts together in the order of their names (part 1000 before part 100: `main` of `preprocess_data.py`, v2.0.0).
pub fn rows_per_part(rows: u64, parts: u64) -> Result<u64> {
    // With the part of the remainder.
    let parts_of = |parts: u64| rows.div_ceil(rows / parts);
    match rows.checked_div(parts) {
        Some(0) | None => Err(Error::options(format!(
            "--n-subs {parts}: expected a record for each part, found {rows} records"
        ))),
        Some(each) if parts_of(parts) > MOST_PARTS => {
            let fewer = (1..=MOST_PARTS).rev().find(|&fewer| parts_of(fewer) <= MOST_PARTS);
            Err(Error::options(format!(
                "--n-subs {parts}: expected at most {MOST_PARTS} parts with that of the remainder, found {} \
                 ({rows} records, {each} each): upstream puts more together in another order\nhint: pass --n-subs {}",
                parts_of(parts),
                fewer.unwrap_or(1)
            )))
        }
        Some(each) => Ok(each),
    }
}

#[cfg(test)]
mod tests;
