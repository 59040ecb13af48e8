//! Where rows go: indexed datasets, packed ones, or a token stream.

mod indexed_sink;
mod packed_sink;

pub use indexed_sink::IndexedSink;
pub use packed_sink::PackedSink;

use crate::Result;
use crate::indexed::{bin_path, idx_path};
use crate::row::Row;
use std::path::{Path, PathBuf};

/// Takes rows in order, on whichever thread has the next one.
pub trait Sink: Send {
    /// The next row.
    ///
    /// # Errors
    /// What writing gives.
    fn row(&mut self, row: Row) -> Result<()>;

    /// The end of one of `--n-subs` parts: what is collected per part is written.
    ///
    /// # Errors
    /// What writing gives.
    fn end_part(&mut self) -> Result<()>;

    /// Completes the outputs, which appear now.
    ///
    /// # Errors
    /// What writing gives.
    fn finish(self: Box<Self>) -> Result<Summary> {
        self.finish_after(&mut || Ok(()))
    }

    /// [`Sink::finish`], with a call of `ready` when all is written and nothing has appeared.
    ///
    /// # Errors
    /// What writing or `ready` gives.
    fn finish_after(self: Box<Self>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Summary>;
}

/// What a sink wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// One per column.
    pub outputs: Vec<Output>,
    /// Rows left out because they are too long.
    pub too_long: u64,
    /// Samples that were packed.
    pub packed: u64,
    /// Share of the packed rows' places that hold tokens of samples.
    pub fill: Option<f64>,
}

/// One file pair, or one column of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Prefix of the file pair; the column's name in a stream.
    pub prefix: PathBuf,
    /// Sequences written.
    pub sequences: u64,
    /// Tokens written.
    pub tokens: u64,
}

/// What the sequences of a dataset are, as its file names say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Whole documents.
    #[default]
    Document,
    /// Sentences; a document may have several.
    Sentence,
}

/// Names of the file pairs of a dataset: `PREFIX[_packed]_KEY_document`, or `…_sentence`.
pub fn dataset_prefixes(prefix: &Path, columns: &[String], packed_name: bool, level: Level) -> Vec<PathBuf> {
    columns
        .iter()
        .map(|key| {
            let mut name = prefix.as_os_str().to_os_string();
            name.push(if packed_name { "_packed_" } else { "_" });
            name.push(key);
            name.push(match level {
                Level::Document => "_document",
                Level::Sentence => "_sentence",
            });
            name.into()
        })
        .collect()
}

/// Refuses to replace existing files unless `force`.
///
/// # Errors
/// [`crate::Error::Exists`] with the first file that is there.
pub fn check_absent(prefixes: &[PathBuf], force: bool) -> Result<()> {
    for path in prefixes.iter().flat_map(|prefix| [bin_path(prefix), idx_path(prefix)]) {
        if !force && path.exists() {
            return Err(crate::Error::Exists { path });
        }
    }
    Ok(())
}
