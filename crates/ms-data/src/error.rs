//! Errors of data.

use std::path::PathBuf;

/// What can go wrong between a record and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A stream (standard input or output) failed.
    #[error("{name}: {source}")]
    Stream {
        /// Which one.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// An index file is not one, or lies.
    #[error("{path}: not a valid dataset index: {reason}")]
    Index {
        /// The `.idx` file.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// A sequence lies outside the token file.
    #[error("{path}: sequence {index} ends at byte {end}, past the end of the file ({len} bytes)")]
    OutOfFile {
        /// The `.bin` file.
        path: PathBuf,
        /// Number of the sequence, from 0.
        index: u64,
        /// Byte after its last one.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// A number does not fit the token type of a dataset.
    #[error("{path}: token {value} does not fit {dtype}")]
    TokenRange {
        /// The `.bin` file.
        path: PathBuf,
        /// The number.
        value: i64,
        /// Name of the type.
        dtype: &'static str,
    },
    /// Datasets that must agree do not.
    #[error("{path}: {what}: expected {want}, found {found}")]
    Mismatch {
        /// The file or prefix that disagrees.
        path: PathBuf,
        /// What is compared.
        what: &'static str,
        /// Value of the others.
        want: String,
        /// Value here.
        found: String,
    },
    /// An output exists and may not be replaced.
    #[error("{path}: exists already\nhint: pass --force to replace it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// An input cannot be used at all.
    #[error("{path}: {reason}")]
    Input {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A record cannot be used.
    #[error("{path}: record {record}: {}{reason}", line.map(|n| format!("line {n}: ")).unwrap_or_default())]
    Record {
        /// The file.
        path: PathBuf,
        /// Number of the record in that file, from 1.
        record: u64,
        /// Number of the line that it begins in, where that is another number.
        line: Option<u64>,
        /// What was expected and found.
        reason: Reason,
    },
    /// Options contradict each other or miss something.
    #[error("{0}")]
    Options(String),
    /// A token stream is broken or cut short.
    #[error("{name}: not a complete token stream: {reason}")]
    TokenStream {
        /// Where it came from.
        name: String,
        /// What was expected and found.
        reason: String,
    },
    /// A split has no data but samples are asked of it.
    #[error("{path}: the {split} split holds no tokens, but {samples} samples are asked of it")]
    EmptySplit {
        /// Prefix of the set.
        path: PathBuf,
        /// Name of the split.
        split: &'static str,
        /// Requested number.
        samples: u64,
    },
    /// A sample outside a dataset was requested.
    #[error("sample {index} of a set of {len}")]
    NoSuchSample {
        /// The requested number.
        index: u64,
        /// Size of the set.
        len: u64,
    },
    /// Text could not become tokens.
    #[error(transparent)]
    Text(#[from] ms_text::Error),
}

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It lacks a field, or the field is null.
    #[error("{field}: missing or null")]
    Missing {
        /// The field, by its path in the record.
        field: String,
    },
    /// It has more bytes than records may have.
    #[error("{0}")]
    TooLong(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Reason {
    pub(crate) fn missing(field: impl Into<String>) -> Self {
        Self::Missing { field: field.into() }
    }

    pub(crate) fn too_long(limit: usize) -> Self {
        Self::TooLong(format!("longer than {limit} bytes"))
    }

    /// The same of a field within another.
    pub(crate) fn within(self, place: &str) -> Self {
        match self {
            Self::Missing { field } => Self::Missing { field: format!("{place}.{field}") },
            Self::TooLong(said) => Self::TooLong(format!("{place}.{said}")),
            Self::Other(said) => Self::Other(format!("{place}.{said}")),
        }
    }

    /// Of an error of reading that may carry one.
    pub(crate) fn of(error: &std::io::Error) -> Self {
        let carried = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        carried.cloned().unwrap_or_else(|| Self::Other(error.to_string()))
    }
}

impl From<String> for Reason {
    fn from(said: String) -> Self {
        Self::Other(said)
    }
}

impl From<&str> for Reason {
    fn from(said: &str) -> Self {
        Self::Other(said.to_owned())
    }
}

impl From<ms_files::Error> for Error {
    fn from(e: ms_files::Error) -> Self {
        Self::Io { path: e.path, source: e.source }
    }
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn options(message: impl Into<String>) -> Self {
        Self::Options(message.into())
    }
}
