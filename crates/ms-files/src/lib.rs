//! File access: memory maps, atomic outputs and validating readers of other programs' containers.
//!
//! - [`Mapped`]: the bytes of a memory-mapped file.
//! - [`AtomicFile`] and [`AtomicFolder`]: outputs that appear under their names when they are complete; [`Unfinished`], the
//!   name of a file before that; [`write_files`], for contents that are in memory.
//! - [`Spill`]: a list of numbers whose earlier part waits in a file.
//! - [`zip`], [`pickle`] and [`safetensors`]: containers written by other programs, validated before use.
//!
//! This crate knows no tensors, only their positions and the names of their types. Its memory map is the only `unsafe` code
//! between kernels and devices.

mod atomic_file;
mod atomic_folder;
mod mapped;
pub mod pickle;
pub mod safetensors;
mod spill;
mod unfinished;
pub mod zip;

pub use atomic_file::{AtomicFile, SyncedFile};
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
