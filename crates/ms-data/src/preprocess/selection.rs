//! Which records are used, and what happens to those that cannot be.

use super::{Chunk, Encoding};
use crate::handler::{Encoded, Handler};
use crate::records::RawRecord;
use crate::select::{Dedup, DedupKey, Filter, Sampling, Scope};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// What happens to a record that cannot be used (`--on-error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run ends with its error.
    #[default]
    Stop,
    /// It is passed over, counted, and its error is kept.
    Skip,
}

/// A record that was passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The file.
    pub file: String,
    /// Number of the record in that file, from 1.
    pub record: u64,
    /// Line of the file at which it begins; absent in files without lines.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u64>,
    /// What was expected and found.
    pub reason: String,
}

/// Which records are taken. The default takes all and stops at the first that cannot be used.
#[derive(Clone, Debug, Default)]
pub struct RecordSelection {
    /// `--sample`.
    pub sampling: Option<Sampling>,
    /// `--filter`: rules that all must be kept.
    pub filters: Vec<Filter>,
    /// What the filters look at.
    pub filter_scope: Scope,
    /// `--dedup`.
    pub dedup: Option<Dedup>,
    /// What duplicates are compared by.
    pub dedup_scope: Scope,
    /// `--on-error`.
    pub on_error: OnError,
}

/// What became of a record.
enum RecordOutcome {
    Unsampled,
    Filtered,
    Dropped,
    Kept(Encoding),
    Replaced(Encoding),
}

impl RecordOutcome {
    fn of(encoded: Encoded, key: Option<DedupKey>) -> Self {
        match encoded {
            Encoded::Row(row) => Self::Kept(Encoding { rows: vec![row], key }),
            Encoded::Rows(rows) if !rows.is_empty() => Self::Kept(Encoding { rows, key }),
            Encoded::Replaced(row) => Self::Replaced(Encoding { rows: vec![row], key }),
            Encoded::Rows(_) | Encoded::Dropped => Self::Dropped,
        }
    }
}

impl RecordSelection {
    /// Whether the number of rows follows from the records' form alone.
    pub fn takes_all(&self) -> bool {
        self.sampling.is_none()
            && self.filters.is_empty()
            && self.dedup.is_none()
            && self.on_error == OnError::Stop
    }

    /// Whether a record that cannot be used may be passed over.
    pub fn passes_over(&self) -> bool {
        self.on_error == OnError::Skip || self.sampling.is_some()
    }

    /// Encodes a chunk of records. Duplicates are not looked for here: which record came first is known only where chunks
    /// are in order. So a record that cannot be used is an error or a reject, and one that a filter refuses is counted as
    /// such, whether or not it occurred before.
    pub(super) fn encode(&self, handler: &Handler, records: &[RawRecord]) -> Result<Chunk> {
        let mut out = Chunk { encodings: Vec::with_capacity(records.len()), ..Chunk::default() };
        for record in records {
            out.report.records += 1;
            out.report.bytes += record.size() as u64;
            let encoding = match self.fate(handler, record) {
                Ok(RecordOutcome::Kept(encoding)) => encoding,
                Ok(RecordOutcome::Replaced(encoding)) => {
                    out.report.replaced += 1;
                    encoding
                }
                Ok(other) => {
                    *match other {
                        RecordOutcome::Unsampled => &mut out.report.unsampled,
                        RecordOutcome::Filtered => &mut out.report.filtered,
                        _ => &mut out.report.dropped,
                    } += 1;
                    continue;
                }
                Err(error) if self.on_error == OnError::Stop => return Err(error),
                Err(error) => {
                    let reason = match error {
                        // File, number and line have places of their own.
                        Error::Record { reason, .. } => reason.to_string(),
                        other => other.to_string(),
                    };
                    out.report.rejected += 1;
                    out.rejects.push(Reject {
                        file: record.path.display().to_string(),
                        record: record.number,
                        line: (record.line > 0).then_some(record.line),
                        reason,
                    });
                    continue;
                }
            };
            out.report.tokens += encoding.tokens();
            out.encodings.push(encoding);
        }
        Ok(out)
    }

    fn fate(&self, handler: &Handler, record: &RawRecord) -> Result<RecordOutcome> {
        if self.sampling.is_some_and(|sampling| !sampling.takes(record)) {
            return Ok(RecordOutcome::Unsampled);
        }
        // Most records are read for one text only, and nothing else needs to be built.
        let only = handler.only_field().filter(|_| self.filters.is_empty() && self.dedup.is_none());
        if let Some(text) = only.and_then(|field| record.text(field)) {
            let encoded = handler.encode_text(&text).map_err(|reason| record.error(reason))?;
            return Ok(RecordOutcome::of(encoded, None));
        }
        let object = record.parse()?;
        let (of_tokens, of_text): (Vec<&Filter>, Vec<&Filter>) =
            self.filters.iter().partition(|filter| filter.of_tokens());
        if !of_text.is_empty() {
            let text = self.filter_scope.text(&object).map_err(|reason| record.error(reason))?;
            if !of_text.iter().all(|filter| filter.keeps(&text)) {
                return Ok(RecordOutcome::Filtered);
            }
        }
        let key = match self.dedup {
            None => None,
            Some(dedup) => {
                let text = self.dedup_scope.text(&object).map_err(|reason| record.error(reason))?;
                Some(dedup.key(&text))
            }
        };
        let encoded = handler.encode_from(&object, record.file).map_err(|reason| record.error(reason))?;
        let fate = RecordOutcome::of(encoded, key);
        if let RecordOutcome::Kept(encoding) | RecordOutcome::Replaced(encoding) = &fate {
            let first = encoding.rows.iter().filter_map(|row| row.columns.first()?.as_ref());
            let tokens = first.map(Vec::len).sum();
            if !of_tokens.iter().all(|filter| filter.keeps_tokens(tokens)) {
                return Ok(RecordOutcome::Filtered);
            }
        }
        Ok(fate)
    }
}
