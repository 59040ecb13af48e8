//! Records through a handler into a sink, on several threads, in input order.
//!
//! One thread reads and deals chunks of records to the workers in turn; the caller's thread takes the encoded chunks back
//! in the same turn. So rows arrive in input order for any number of workers, and memory is bounded by a few chunks per
//! worker.

use crate::handler::{Encoded, Handler, Row};
use crate::records::{RawRecord, RecordReader};
use crate::sink::{Sink, Summary};
use crate::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Records or bytes after which a chunk is full.
const CHUNK_RECORDS: usize = 64;
const CHUNK_BYTES: usize = 1 << 18;
/// Chunks that may wait in front of and behind each worker.
const WAITING: usize = 2;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Records without prompt or answer, left out.
    pub dropped: u64,
    /// Records that are no conversation, replaced by an empty one.
    pub replaced: u64,
    /// Tokens of all columns.
    pub tokens: u64,
}

/// The encoded records of a chunk and what they add to the report.
struct Encodings {
    rows: Vec<Row>,
    report: Report,
}

/// Runs all records of `reader` through `handler` into `sink`.
///
/// `parts` (`--n-subs`) is the number of rows of each part but the last ones; `None` for one part. `progress` is called
/// after every chunk.
///
/// # Errors
/// The first error in input order: of reading, of a record, of writing.
pub fn run(
    reader: RecordReader,
    handler: &Handler,
    workers: usize,
    part_rows: Option<u64>,
    mut sink: Box<dyn Sink + '_>,
    mut progress: impl FnMut(&Report),
) -> Result<(Report, Summary)> {
    let workers = workers.max(1);
    let mut report = Report::default();
    let mut row_number = 0u64;
    std::thread::scope(|scope| -> Result<()> {
        let mut feeds = Vec::with_capacity(workers);
        let mut results = Vec::with_capacity(workers);
        for _ in 0..workers {
            let (feed, work) = sync_channel::<Result<Vec<RawRecord>>>(WAITING);
            let (done, result) = sync_channel::<Result<Encodings>>(WAITING);
            feeds.push(feed);
            results.push(result);
            scope.spawn(move || work_off(handler, &work, &done));
        }
        scope.spawn(move || deal(reader, &feeds));
        for turn in 0.. {
            // A worker hangs up when the reader has nothing more for it; the turns before it are complete.
            let Ok(chunk) = results[turn % workers].recv() else { break };
            let chunk = chunk?;
            report.records += chunk.report.records;
            report.bytes += chunk.report.bytes;
            report.dropped += chunk.report.dropped;
            report.replaced += chunk.report.replaced;
            report.tokens += chunk.report.tokens;
            for row in chunk.rows {
                if part_rows.is_some_and(|part| row_number > 0 && row_number.is_multiple_of(part)) {
                    sink.end_part()?;
                }
                sink.row(row)?;
                row_number += 1;
            }
            progress(&report);
        }
        Ok(())
    })?;
    Ok((report, sink.finish()?))
}

/// Number of rows the records give, without tokenizing: what `--n-subs` divides.
///
/// # Errors
/// Of reading, or of a record.
pub fn count_rows(reader: RecordReader, handler: &Handler) -> Result<u64> {
    let mut count = 0;
    for record in reader {
        let record = record?;
        let keeps = handler.keeps(&record.parse()?).map_err(|reason| record.error(reason))?;
        count += u64::from(keeps);
    }
    Ok(count)
}

/// Rows of a part when `rows` are cut into `parts`.
///
/// # Errors
/// [`Error::Options`] if there are fewer rows than parts.
pub fn rows_per_part(rows: u64, parts: u64) -> Result<u64> {
    match rows.checked_div(parts) {
        Some(0) | None => Err(Error::options(format!("{rows} records cannot be cut into {parts} parts"))),
        Some(each) => Ok(each),
    }
}

fn deal(reader: RecordReader, feeds: &[SyncSender<Result<Vec<RawRecord>>>]) {
    let mut turn = 0;
    let mut chunk = Vec::new();
    let mut bytes = 0;
    let mut send = |chunk: Result<Vec<RawRecord>>| {
        turn += 1;
        // A hung-up worker means that the run has failed elsewhere.
        feeds[(turn - 1) % feeds.len()].send(chunk).is_ok()
    };
    for record in reader {
        match record {
            Ok(record) => {
                bytes += record.size();
                chunk.push(record);
            }
            Err(error) => {
                // What came before the error is still encoded: its errors come first.
                let _ = send(Ok(std::mem::take(&mut chunk))) && send(Err(error));
                return;
            }
        }
        if chunk.len() == CHUNK_RECORDS || bytes >= CHUNK_BYTES {
            bytes = 0;
            if !send(Ok(std::mem::take(&mut chunk))) {
                return;
            }
        }
    }
    if !chunk.is_empty() {
        let _ = send(Ok(chunk));
    }
}

fn work_off(
    handler: &Handler,
    work: &Receiver<Result<Vec<RawRecord>>>,
    done: &SyncSender<Result<Encodings>>,
) {
    while let Ok(chunk) = work.recv() {
        let encodings = chunk.and_then(|records| encode(handler, &records));
        let failed = encodings.is_err();
        if done.send(encodings).is_err() || failed {
            return;
        }
    }
}

fn encode(handler: &Handler, records: &[RawRecord]) -> Result<Encodings> {
    let mut out = Encodings { rows: Vec::with_capacity(records.len()), report: Report::default() };
    for record in records {
        let encoded = handler.encode(&record.parse()?).map_err(|reason| record.error(reason))?;
        out.report.records += 1;
        out.report.bytes += record.size() as u64;
        let row = match encoded {
            Encoded::Row(row) => row,
            Encoded::Replaced(row) => {
                out.report.replaced += 1;
                row
            }
            Encoded::Dropped => {
                out.report.dropped += 1;
                continue;
            }
        };
        out.report.tokens += row.columns.iter().flatten().map(|column| column.len() as u64).sum::<u64>();
        out.rows.push(row);
    }
    Ok(out)
}
