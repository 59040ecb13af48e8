//! Files: [`Mapped`], bytes of a file in memory; [`AtomicFile`], and [`AtomicFolder`], outputs that appear under their names when
//! they are whole, [`Unfinished`], the name that a file has before, and [`write_files`], for what is in memory;
//! [`Spill`], numbers of which the earlier ones wait in a file; and three containers of others, read with suspicion: [`zip`],
//! [`pickle`] and [`safetensors`].
//!
//! It knows no tensors, only their places and the names of their types. The only `unsafe` between kernels and devices is that of
//! a memory map.

mod atomic_file;
mod atomic_folder;
mod mapped;
pub mod pickle;
pub mod safetensors;
mod spill;
mod unfinished;
pub mod zip;

pub use atomic_file::{AtomicFile, Settled};
pub use atomic_folder::AtomicFolder;
pub use mapped::Mapped;
pub use spill::Spill;
pub use unfinished::{Unfinished, write_file, write_files};

use std::path::{Path, PathBuf};

/// A file that could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = path.display())]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// What was tried with it.
    pub action: &'static str,
    /// What the system said.
    pub source: std::io::Error,
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { path, action, source }
    }
}
