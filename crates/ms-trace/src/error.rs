//! Errors of reporting.

use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: expected {expected}, found {found}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the path to an I/O error.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::Io { path: path.to_owned(), source }
}

impl From<ms_files::Error> for Error {
    fn from(e: ms_files::Error) -> Self {
        Self::Io { path: e.path, source: e.source }
    }
}
