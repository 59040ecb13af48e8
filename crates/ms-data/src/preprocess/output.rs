//! The end of the pipeline: final deduplication, counts, rejects, and the sink.

use super::selection::RecordSelection;
use super::{Chunk, Encoding, Lengths, Reject, Report};
use crate::select::Deduplicator;
use crate::sink::{Sink, Summary};
use crate::{AtomicFile, Error, Result, SyncedFile};
use std::io::Write;
use std::path::Path;

/// Takes encoded records in input order.
pub struct Output<'a> {
    sink: Box<dyn Sink + 'a>,
    /// `--n-subs`: rows of each part but the last ones.
    pub part_rows: Option<u64>,
    rows: u64,
    report: Report,
    /// The records that were kept so far, if duplicates are looked for.
    known: Option<Deduplicator>,
    rejects: Option<AtomicFile>,
    lengths: Option<Lengths>,
}

impl<'a> Output<'a> {
    /// Rows go to `sink`.
    pub fn new(sink: Box<dyn Sink + 'a>) -> Self {
        Self {
            sink,
            part_rows: None,
            rows: 0,
            report: Report::default(),
            known: None,
            rejects: None,
            lengths: None,
        }
    }

    /// Also writes the records that are passed over to a file, one JSON object per line.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_rejects(&mut self, path: &Path) -> Result<()> {
        self.rejects = Some(AtomicFile::create(path)?);
        Ok(())
    }

    /// Also counts lengths and masked labels.
    pub fn keep_lengths(&mut self, lengths: Lengths) {
        self.lengths = Some(lengths);
    }

    /// What happened so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Documents given to the sink so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The lengths so far, if they are counted.
    pub fn lengths(&self) -> Option<&Lengths> {
        self.lengths.as_ref()
    }

    pub(super) fn start(&mut self, selection: &RecordSelection) {
        self.known = selection.dedup.map(Deduplicator::new);
    }

    pub(super) fn take(&mut self, chunk: Chunk) -> Result<()> {
        self.report.add(&chunk.report);
        for reject in &chunk.rejects {
            self.reject(reject)?;
        }
        for encoding in chunk.encodings {
            self.encoding(encoding)?;
        }
        Ok(())
    }

    pub(super) fn add_report(&mut self, report: &Report) {
        self.report.add(report);
    }

    pub(super) fn reject(&mut self, reject: &Reject) -> Result<()> {
        if let Some(file) = &mut self.rejects {
            let line = serde_json::to_string(reject).expect("texts and numbers");
            let path = file.path().to_path_buf();
            writeln!(file, "{line}").map_err(Error::io(path))?;
        }
        Ok(())
    }

    pub(super) fn encoding(&mut self, encoding: Encoding) -> Result<()> {
        if let (Some(known), Some(key)) = (&mut self.known, &encoding.key)
            && !known.admit(key)
        {
            self.report.duplicates = self.report.duplicates.saturating_add(1);
            self.report.tokens = self.report.tokens.saturating_sub(encoding.tokens());
            return Ok(());
        }
        for row in encoding.rows {
            if self.part_rows.is_some_and(|part| self.rows > 0 && self.rows.is_multiple_of(part)) {
                self.sink.end_part()?;
            }
            if let Some(lengths) = &mut self.lengths {
                lengths.add(&row);
            }
            self.rows += u64::from(!row.continues);
            self.sink.row(row)?;
        }
        Ok(())
    }

    /// Completes all outputs, which appear now.
    ///
    /// # Errors
    /// What writing gives.
    pub fn finish(self) -> Result<(Report, Summary)> {
        self.finish_after(&mut || Ok(()))
    }

    /// [`Output::finish`], with a call of `ready` when all is written and nothing has appeared.
    ///
    /// # Errors
    /// What writing or `ready` gives.
    pub fn finish_after(self, ready: &mut dyn FnMut() -> Result<()>) -> Result<(Report, Summary)> {
        let rejects = self.rejects.map(AtomicFile::settle).transpose()?;
        let summary = self.sink.finish_after(ready)?;
        rejects.map_or(Ok(()), SyncedFile::publish)?;
        Ok((self.report, summary))
    }
}
