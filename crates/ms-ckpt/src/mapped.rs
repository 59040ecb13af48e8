//! Files seen as bytes in memory.
#![allow(unsafe_code)] // a memory map is only as constant as the file behind it

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};

/// A file mapped read-only.
///
/// If another program shortens the file while it is mapped, reading past the new end kills the process with
/// SIGBUS; if it changes bytes, the new ones are seen. Checkpoints are written under temporary names and never
/// changed after that, so neither happens unless someone edits a checkpoint in use.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    map: Option<Mmap>,
}

impl Mapped {
    /// Maps a whole file.
    ///
    /// # Errors
    /// If it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let length = file.metadata().map_err(Error::io(path, "open"))?.len();
        let map = if length == 0 {
            None // an empty file cannot be mapped
        } else {
            // SAFETY: the map is read-only and private to this value; all access goes through `bytes`, whose
            // callers check every offset against its length. The documented hazard is a file that shrinks.
            Some(unsafe { Mmap::map(&file) }.map_err(Error::io(path, "map"))?)
        };
        Ok(Self { path: path.to_owned(), map })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}
