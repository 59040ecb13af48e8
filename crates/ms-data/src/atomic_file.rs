//! Files that appear whole or not at all.

use crate::{Error, Result};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file that is written under a temporary name in its own folder and gets its name in [`AtomicFile::commit`].
///
/// Dropped without a commit, it leaves nothing behind; killed, it leaves a `.part` file that nobody reads.
pub struct AtomicFile {
    writer: Option<BufWriter<File>>,
    temporary: PathBuf,
    path: PathBuf,
}

impl AtomicFile {
    /// Opens the temporary file beside `path`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        // Threads of this process may write the same file; the last one to finish wins.
        let mut number = 0u32;
        let (file, temporary) = loop {
            let mut name = path.file_name().unwrap_or_default().to_os_string();
            name.push(format!(".{}-{number}.part", std::process::id()));
            let temporary = path.with_file_name(name);
            match File::create_new(&temporary) {
                Ok(file) => break (file, temporary),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
                Err(e) => return Err(Error::Io { path, source: e }),
            }
        };
        Ok(Self { writer: Some(BufWriter::with_capacity(1 << 20, file)), temporary, path })
    }

    /// The name it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes `range` of another file; the system copies them.
    ///
    /// # Errors
    /// [`Error::Io`] of either file; also if the other one ends before.
    pub fn copy_from(&mut self, source: &Path, range: Range<u64>) -> Result<()> {
        let writer = self.writer.as_mut().expect("the writer is there until commit");
        writer.flush().map_err(Error::io(&self.path))?;
        let mut from = File::open(source).map_err(Error::io(source))?;
        from.seek(SeekFrom::Start(range.start)).map_err(Error::io(source))?;
        let length = range.end.saturating_sub(range.start);
        let copied = std::io::copy(&mut from.take(length), writer.get_mut()).map_err(Error::io(source))?;
        if copied == length {
            return Ok(());
        }
        Err(Error::Io { path: source.into(), source: std::io::ErrorKind::UnexpectedEof.into() })
    }

    /// Writes out what is buffered, syncs, and gives the file its name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn commit(mut self) -> Result<()> {
        let writer = self.writer.take().expect("the writer is there until commit");
        let file =
            writer.into_inner().map_err(|e| Error::Io { path: self.path.clone(), source: e.into_error() })?;
        file.sync_all().map_err(Error::io(&self.path))?;
        std::fs::rename(&self.temporary, &self.path).map_err(Error::io(&self.path))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.as_mut().expect("the writer is there until commit").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().expect("the writer is there until commit").flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // After a commit the temporary name is gone and this does nothing.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
