//! Errors of checkpoints.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter for which a family's Hugging Face class has no tensor.
    #[error("parameter {parameter}: family {family:?} has no Hugging Face name for it")]
    NoName {
        /// Its canonical name.
        parameter: String,
        /// The family.
        family: ms_spec::Family,
    },
    /// The memory that weights should go to cannot be written.
    #[error(transparent)]
    Store(#[from] ms_core::Error),
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is not what its format says.
    #[error("{path}: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// A pickle stream that is malformed or asks for something that is not on the list of allowed things.
    #[error("{path}: pickle, byte {offset}: {what}")]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Offset in the stream.
        offset: usize,
        /// What is wrong.
        what: String,
    },
    /// The folder is not a checkpoint of a known kind, or not of the kind expected.
    #[error("{path}: {what}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What was looked for and not found.
        what: String,
    },
    /// A tensor that the model needs is not in the checkpoint.
    #[error("{path}: tensor {name} is missing")]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the model needs.
    #[error("{path}: tensor {name}: expected shape {want:?}, got {got:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What the model needs.
        want: Vec<usize>,
        /// What the file has.
        got: Vec<usize>,
    },
    /// Elements that a format has no tensor for, because they are zero there, and that are not.
    #[error(
        "{parameter}: the model's class in Hugging Face has no {name}, which is zero there; element {index} is {value}"
    )]
    NotZero {
        /// Canonical name of the parameter.
        parameter: String,
        /// What the tensor would be called.
        name: String,
        /// Which element of the tensor.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// Values cannot be converted.
    #[error("{name}: no conversion from {from} to {to}")]
    Cast {
        /// The tensor.
        name: String,
        /// As stored.
        from: ms_core::DType,
        /// As wanted.
        to: ms_core::DType,
    },
    /// A model that cannot be sharded as requested.
    #[error(transparent)]
    Share(ms_spec::Error),
    /// A model that training can shard in this way, but whose files no other program would read.
    #[error("{0}, and upstream's Megatron reads no such files")]
    Unread(ms_spec::Error),
    /// A way of cutting that cannot be.
    #[error("{0}")]
    Cut(String),
    /// The output is there already.
    #[error("{path} exists already")]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The model is described wrongly.
    #[error("{}", once(path, source))]
    Spec {
        /// Where the description stands.
        path: PathBuf,
        /// What is wrong.
        source: ms_spec::Error,
    },
}

/// What is wrong with a description, and the file, which it may name itself.
fn once(path: &Path, source: &ms_spec::Error) -> String {
    let text = source.to_string();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let rest = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).filter(|_| !name.is_empty());
    format!("{}: {}", path.display(), rest.unwrap_or(&text))
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<ms_files::Error> for Error {
    fn from(e: ms_files::Error) -> Self {
        match e.source.kind() {
            ErrorKind::AlreadyExists => Self::Exists { path: e.path },
            ErrorKind::ResourceBusy => Self::Folder { path: e.path, what: e.source.to_string() },
            _ => Self::Io { path: e.path, action: e.action, source: e.source },
        }
    }
}

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn folder(path: &Path, what: impl Into<String>) -> Self {
        Self::Folder { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn spec(path: &Path) -> impl FnOnce(ms_spec::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Spec { path, source }
    }
}
