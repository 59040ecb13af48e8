//! Read-only memory maps.
#![allow(unsafe_code)] // mapping a file is unsafe by nature; this module is the only place in the crate

use crate::{Error, Result};
use std::fs::File;
use std::path::Path;

/// The bytes of a file, mapped.
///
/// A mapped file is input from outside: whoever reads it validates lengths and offsets first. If another program
/// changes the file underneath, reads give the new bytes (never anything outside the map); if it is shortened, the
/// operating system ends this process with SIGBUS. The files of this workspace are renamed into place and never
/// changed afterwards.
pub(crate) struct MappedFile(Option<memmap2::Mmap>);

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        if file.metadata().map_err(Error::io(path))?.len() == 0 {
            // An empty file cannot be mapped everywhere; a dataset may well hold no token.
            return Ok(Self(None));
        }
        // SAFETY: the map is private to this value, read-only and dropped with it; its bytes are only handed out
        // as `&[u8]`, for which every bit pattern is valid. Concurrent change of the file is the documented risk.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok(Self(Some(map)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}
