//! Outputs that appear whole or not at all: written under a temporary name beside the final one, synced, renamed.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The temporary name of an output.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().map_or_else(|| "out".into(), |n| n.to_string_lossy().into_owned());
    path.with_file_name(format!(".{name}.partial"))
}

/// Makes the entries of a folder lasting.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::io(path, "sync"))
}

/// Writes a small file whole.
///
/// # Errors
/// What the operating system refuses.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = partial(path);
    let mut file = File::create(&temporary).map_err(Error::io(&temporary, "create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(&temporary, "write"))?;
    fs::rename(&temporary, path).map_err(Error::io(path, "rename to"))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// A folder under construction.
#[derive(Debug)]
pub(crate) struct Folder {
    target: PathBuf,
    temporary: PathBuf,
    done: bool,
    /// Held as long as the folder is written.
    lock: Option<File>,
    /// Leftovers of a failure are kept for the next run.
    resumable: bool,
}

/// Name of the file that says what is being written.
const NOTE: &str = ".conversion";

/// Name of the file that is locked as long as somebody writes the folder.
const LOCK: &str = ".lock";

impl Folder {
    /// Starts a folder that will appear as `target`; leftovers of an interrupted run are removed.
    ///
    /// # Errors
    /// [`Error::Exists`] if `target` is there and not empty, unless `replace`; [`Error::Folder`] if another process
    /// writes it now.
    pub(crate) fn create(target: &Path, replace: bool) -> Result<Self> {
        let folder = Self::begin(target, replace)?;
        folder.clear()?;
        Ok(folder)
    }

    /// Takes hold of the temporary folder, whatever is in it.
    fn begin(target: &Path, replace: bool) -> Result<Self> {
        if !replace && target.exists() && !is_empty_folder(target) {
            return Err(Error::Exists { path: target.to_owned() });
        }
        let temporary = partial(target);
        fs::create_dir_all(&temporary).map_err(Error::io(&temporary, "create"))?;
        let path = temporary.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(Error::io(&path, "create"))?;
        // A file system without locks is written without.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(Error::folder(target, "another process is writing it now"));
        }
        Ok(Self { target: target.to_owned(), temporary, done: false, lock: Some(lock), resumable: false })
    }

    /// Removes everything but the lock.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.temporary).map_err(Error::io(&self.temporary, "list"))? {
            let entry = entry.map_err(Error::io(&self.temporary, "list"))?;
            let path = entry.path();
            if entry.file_name() == LOCK {
                continue;
            }
            match entry.file_type().map_err(Error::io(&path, "list"))?.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            }
            .map_err(Error::io(&path, "remove"))?;
        }
        Ok(())
    }

    /// As [`Folder::create`], but goes on with the leftovers of a run that `fingerprint` describes. Whether there were
    /// some: then the files that have their final names are complete.
    ///
    /// # Errors
    /// As [`Folder::create`].
    pub(crate) fn resume(target: &Path, replace: bool, fingerprint: &str) -> Result<(Self, bool)> {
        let mut folder = Self::begin(target, replace)?;
        let note = folder.temporary.join(NOTE);
        if fs::read(&note).is_ok_and(|text| text == fingerprint.as_bytes()) {
            tracing::info!("{}: going on with what an interrupted run has left", target.display());
            folder.resumable = true;
            return Ok((folder, true));
        }
        folder.clear()?;
        write_file(&note, fingerprint.as_bytes())?;
        folder.resumable = true;
        Ok((folder, false))
    }

    /// Where to write.
    pub(crate) fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives the folder its final name. Files in it must be synced already if they are to last.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub(crate) fn commit(mut self, sync: bool) -> Result<()> {
        if self.resumable {
            let note = self.temporary.join(NOTE);
            fs::remove_file(&note).map_err(Error::io(&note, "remove"))?;
        }
        if sync {
            sync_tree(&self.temporary)?;
        }
        let lock = self.temporary.join(LOCK);
        drop(self.lock.take());
        fs::remove_file(&lock).map_err(Error::io(&lock, "remove"))?;
        if self.target.exists() {
            replace(&self.temporary, &self.target)?;
        } else {
            fs::rename(&self.temporary, &self.target).map_err(Error::io(&self.target, "rename to"))?;
        }
        self.done = true;
        if sync {
            sync_folder(self.target.parent().unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let kept = self.resumable && has_complete_files(&self.temporary);
        if !self.done && !kept {
            // Best effort: a leftover is removed by the next run.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Whether a folder or one below it holds a file under its final name.
fn has_complete_files(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|e| {
        let path = e.path();
        let hidden = e.file_name().to_string_lossy().starts_with('.');
        !hidden && (path.is_file() || has_complete_files(&path))
    })
}

/// Puts the folder `new` where the folder `target` is, and removes the old one.
///
/// The two change places in one step where the file system can do that, so that `target` is whole at every moment;
/// elsewhere the old one steps aside first, and a process killed between the two steps leaves it under
/// `.NAME.replaced`.
fn replace(new: &Path, target: &Path) -> Result<()> {
    if exchange(new, target) {
        return fs::remove_dir_all(new).map_err(Error::io(new, "remove"));
    }
    let name = target.file_name().map_or_else(|| "out".into(), |n| n.to_string_lossy().into_owned());
    let aside = target.with_file_name(format!(".{name}.replaced"));
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(Error::io(&aside, "remove"))?;
    }
    fs::rename(target, &aside).map_err(Error::io(target, "move aside"))?;
    fs::rename(new, target).map_err(Error::io(target, "rename to"))?;
    fs::remove_dir_all(&aside).map_err(Error::io(&aside, "remove"))
}

/// Whether the two names could be exchanged in one step.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn exchange(_: &Path, _: &Path) -> bool {
    false
}

fn is_empty_folder(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn sync_tree(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(Error::io(path, "list"))? {
        let entry = entry.map_err(Error::io(path, "list"))?;
        if entry.file_type().map_err(Error::io(path, "list"))?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_folder(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_appears_at_the_end_and_not_before() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let folder = Folder::create(&target, false).unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        assert!(!target.exists());
        folder.commit(true).unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
        assert!(matches!(Folder::create(&target, false), Err(Error::Exists { .. })));
        let folder = Folder::create(&target, true).unwrap();
        fs::write(folder.path().join("b"), b"2").unwrap();
        folder.commit(true).unwrap();
        assert!(target.join("b").exists() && !target.join("a").exists());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing temporary is left");
    }

    #[test]
    fn a_folder_that_is_being_written_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let (folder, _) = Folder::resume(&target, false, "a").unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        for fingerprint in ["a", "b"] {
            let error = Folder::resume(&target, true, fingerprint).unwrap_err().to_string();
            assert!(error.contains("another process is writing it now"), "{error}");
        }
        assert!(Folder::create(&target, true).is_err());
        drop(folder);
        let (folder, begun) = Folder::resume(&target, false, "a").unwrap();
        assert!(begun && folder.path().join("a").exists());
        drop(folder);
        let (folder, begun) = Folder::resume(&target, false, "b").unwrap();
        assert!(!begun && !folder.path().join("a").exists());
        folder.commit(true).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "neither note nor lock is left");
    }

    #[test]
    fn an_abandoned_folder_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        drop(Folder::create(&root.path().join("out"), false).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
