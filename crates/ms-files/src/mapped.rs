//! Memory-mapped files.
#![allow(unsafe_code)] // a memory map is only as constant as the file behind it

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};

/// A file mapped read-only.
///
/// A mapped file is input from outside: whoever reads it validates lengths and offsets first. If another program shortens the
/// file while it is mapped, reading past the new end kills the process with SIGBUS; if it changes bytes, the new ones are seen.
/// Datasets and checkpoints are written under temporary names and never changed after that, so neither happens unless someone
/// edits one in use.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// An empty file cannot be mapped.
    Nothing,
    Map(Mmap),
    /// Made from what files hold.
    Held(Vec<u8>),
}

impl Mapped {
    /// Maps a whole file.
    ///
    /// # Errors
    /// If it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let metadata = file.metadata().map_err(Error::io(path, "open"))?;
        if metadata.is_dir() {
            let found =
                std::io::Error::new(std::io::ErrorKind::IsADirectory, "expected a file, found a folder");
            return Err(Error::io(path, "open")(found));
        }
        let length = metadata.len();
        let bytes = if length == 0 {
            Bytes::Nothing
        } else {
            // SAFETY: the map is read-only and private to this value; all access goes through `bytes`, whose
            // callers check every offset against its length. The documented hazard is a file that shrinks.
            Bytes::Map(unsafe { Mmap::map(&file) }.map_err(Error::io(path, "map"))?)
        };
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// Bytes in place of the file at `path`, from which they were made.
    pub fn held(path: &Path, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), bytes: Bytes::Held(bytes) }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Nothing => &[],
            Bytes::Map(map) => map,
            Bytes::Held(bytes) => bytes,
        }
    }
}
