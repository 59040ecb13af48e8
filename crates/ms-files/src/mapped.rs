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
        // Before it is opened: a pipe would wait for its other end.
        let kind = std::fs::metadata(path).map_err(Error::io(path, "open"))?.file_type();
        if !kind.is_file() {
            let (kind, found) = match kind.is_dir() {
                true => (std::io::ErrorKind::IsADirectory, "a folder"),
                false => (
                    std::io::ErrorKind::NotSeekable,
                    "a pipe or device, which is read once\nhint: write it to a file",
                ),
            };
            let found = std::io::Error::new(kind, format!("expected a file, found {found}"));
            return Err(Error::io(path, "open")(found));
        }
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let length = file.metadata().map_err(Error::io(path, "open"))?.len();
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_taken_for_an_empty_one() {
        let error = |path: &str| Mapped::open(Path::new(path)).unwrap_err().to_string();
        assert!(error("/dev").contains("expected a file, found a folder"), "{}", error("/dev"));
        let device = error("/dev/null");
        assert!(device.contains("/dev/null") && device.contains("found a pipe or device"), "{device}");
        assert!(device.ends_with("\nhint: write it to a file"), "{device}");
    }
}
