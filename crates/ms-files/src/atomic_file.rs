//! Large files that appear complete or not at all.

use crate::{Error, Result, Unfinished};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Bytes after which the system is asked to bring what was written to the disk.
const SYNC_BYTES: u64 = 1 << 24;

/// A file that is written under a temporary name in its own folder and gets its name in [`AtomicFile::commit`].
///
/// Dropped without a commit, it leaves nothing behind; killed, it leaves a `.part` file that nobody reads and that the next
/// writer of it removes.
///
/// A commit waits until everything is on disk. To keep that wait short, a background thread syncs a large file while it is
/// still being written.
pub struct AtomicFile {
    writer: Option<BufWriter<File>>,
    /// Bytes since the disk was asked last.
    unsynced: u64,
    syncer: Option<Syncer>,
    name: Unfinished,
}

impl AtomicFile {
    /// Opens the temporary file next to `path`, in a folder that is created if missing.
    ///
    /// # Errors
    /// [`Error`] if the folder or the temporary file cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let (name, file) = Unfinished::create(path)?;
        let writer = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { writer, unsynced: 0, syncer: None, name })
    }

    /// The name it will have.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Appends bytes `range` of another file; the system copies them.
    ///
    /// # Errors
    /// [`Error`] of either file; also if the other one ends before.
    pub fn copy_from(&mut self, source: &Path, range: Range<u64>) -> Result<()> {
        let writer = self.writer.as_mut().expect("the writer is there until commit");
        writer.flush().map_err(Error::io(self.name.path(), "write"))?;
        let mut from = File::open(source).map_err(Error::io(source, "read"))?;
        from.seek(SeekFrom::Start(range.start)).map_err(Error::io(source, "read"))?;
        let mut left = range.end.saturating_sub(range.start);
        while left > 0 {
            let piece = left.min(SYNC_BYTES);
            let writer = self.writer.as_mut().expect("the writer is there until commit");
            let copied = std::io::copy(&mut (&mut from).take(piece), writer.get_mut());
            // The system does not say which of the two files it speaks of; a full disk is that of the output.
            let copied = copied.map_err(|e| match e.kind() {
                ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::WriteZero => Error::io(self.name.path(), "write")(e),
                _ => Error::io(source, "read")(e),
            })?;
            if copied < piece {
                return Err(Error::io(source, "read")(ErrorKind::UnexpectedEof.into()));
            }
            left -= piece;
            self.wrote(piece).map_err(Error::io(self.name.path(), "write"))?;
        }
        Ok(())
    }

    /// Counts bytes, and asks for a sync when they are many.
    fn wrote(&mut self, bytes: u64) -> std::io::Result<()> {
        self.unsynced += bytes;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            let writer = self.writer.as_ref().expect("the writer is there until commit");
            if self.syncer.is_none() {
                self.syncer = Some(Syncer::start(writer.get_ref().try_clone()?)?);
            }
            if let Some(syncer) = &self.syncer {
                syncer.ask();
            }
        }
        Ok(())
    }

    /// Writes out what is buffered, syncs, and gives the file its name.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be written, synced or renamed.
    pub fn commit(self) -> Result<()> {
        self.settle()?.publish()
    }

    /// Writes out what is buffered and syncs: after this only giving the name can fail. Of files that belong together, all
    /// are settled before the first gets its name.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be written or synced.
    pub fn settle(mut self) -> Result<SyncedFile> {
        let writer = self.writer.take().expect("the writer is there until commit");
        let file = writer.into_inner().map_err(|e| Error::io(self.name.path(), "write")(e.into_error()))?;
        if let Some(syncer) = self.syncer.take() {
            syncer.finish().map_err(Error::io(self.name.path(), "write"))?;
        }
        file.sync_all().map_err(Error::io(self.name.path(), "write"))?;
        Ok(SyncedFile(self))
    }
}

/// A file that is on disk but does not have its final name yet. If dropped, it leaves nothing behind.
pub struct SyncedFile(AtomicFile);

impl SyncedFile {
    /// Gives the file its name.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be renamed.
    pub fn publish(self) -> Result<()> {
        self.0.name.publish(true)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.writer.as_mut().expect("the writer is there until commit").write(bytes)?;
        self.wrote(count as u64)?;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().expect("the writer is there until commit").flush()
    }
}

/// A thread that brings a file to the disk whenever it is asked.
struct Syncer {
    ask: SyncSender<()>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Syncer {
    fn start(file: File) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let work = move || {
            // The system reports an error of the disk once, so it is kept.
            asked.iter().try_for_each(|()| file.sync_data())
        };
        let thread = std::thread::Builder::new().name("sync".into()).spawn(work)?;
        Ok(Self { ask, thread })
    }

    /// Asks for a sync; while one is waited for, another is enough.
    fn ask(&self) {
        match self.ask.try_send(()) {
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }

    /// Waits for the thread; gives its error.
    fn finish(self) -> std::io::Result<()> {
        drop(self.ask);
        self.thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that syncs panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_synced_on_the_way_and_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let piece: Vec<u8> = (0..1u32 << 20).map(|i| (i % 251) as u8).collect();
        let mut file = AtomicFile::create(&path).unwrap();
        for _ in 0..40 {
            file.write_all(&piece).unwrap();
        }
        assert!(file.syncer.is_some() && !path.exists());
        file.commit().unwrap();
        let mut copy = AtomicFile::create(dir.path().join("copy")).unwrap();
        copy.write_all(b"head").unwrap();
        copy.copy_from(&path, 7..(40 << 20)).unwrap();
        let error = copy.copy_from(&path, 0..(40 << 20) + 1).unwrap_err().to_string();
        assert!(error.contains("large"), "{error}");
        drop(copy);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() == 40 << 20 && bytes.chunks(1 << 20).all(|part| part == piece));
        // What was not committed leaves nothing.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
