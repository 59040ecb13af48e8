//! Folders that appear complete or not at all: written under a temporary name next to the target, synced, renamed.

use crate::unfinished::{ENDING, folder_of, sync_folder, write_file};
use crate::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder that is written as `.NAME.partial` next to its final name and renamed in [`AtomicFolder::commit`].
///
/// Dropped without a commit, it leaves nothing behind, unless a later run may resume it ([`AtomicFolder::resume`]).
#[derive(Debug)]
pub struct AtomicFolder {
    target: PathBuf,
    temporary: PathBuf,
    done: bool,
    /// Held as long as the folder is written.
    lock: Option<File>,
    /// Leftovers of a failure are kept for the next run.
    resumable: bool,
    /// Whether what is at the target goes.
    replaces: bool,
}

/// Name of the file that says what is being written.
const NOTE: &str = ".conversion";

/// Name of the file that is locked as long as somebody writes the folder.
const LOCK: &str = ".lock";

impl AtomicFolder {
    /// Starts a folder that will appear as `target`; leftovers of an interrupted run are removed.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if `target` is there and not empty, unless `replace`; [`ErrorKind::ResourceBusy`] if
    /// another process writes it now.
    pub fn create(target: &Path, replace: bool) -> Result<Self> {
        let folder = Self::begin(target, replace)?;
        folder.clear()?;
        Ok(folder)
    }

    /// The name under which a folder that will be `target` is written.
    pub fn temporary_of(target: &Path) -> PathBuf {
        let name = target.file_name().map_or_else(|| "out".into(), |n| n.to_string_lossy().into_owned());
        target.with_file_name(format!(".{name}.partial"))
    }

    /// Whether a process writes the folder at `temporary` now, as far as the file system has locks.
    pub fn is_written(temporary: &Path) -> bool {
        File::open(temporary.join(LOCK)).is_ok_and(|lock| is_held(&lock))
    }

    /// Takes hold of the temporary folder, whatever is in it.
    fn begin(target: &Path, replace: bool) -> Result<Self> {
        let temporary = Self::temporary_of(target);
        let path = temporary.join(LOCK);
        if !replace && target.exists() && !is_empty_folder(target) {
            return Err(Error::io(target, "replace")(ErrorKind::AlreadyExists.into()));
        }
        loop {
            fs::create_dir_all(&temporary).map_err(Error::io(&temporary, "create"))?;
            let lock = match File::options().create(true).truncate(false).write(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                lock => lock.map_err(Error::io(&path, "create"))?,
            };
            // A file system without locks is written without.
            if is_held(&lock) {
                let busy = io::Error::new(ErrorKind::ResourceBusy, "another process is writing it now");
                return Err(Error::io(target, "lock")(busy));
            }
            // The one before may have finished meanwhile: then the lock is in its folder, or the folder is another one.
            if !is_at(&lock, &path) {
                continue;
            }
            let folder = Self {
                target: target.to_owned(),
                temporary,
                done: false,
                lock: Some(lock),
                resumable: false,
                replaces: replace,
            };
            folder.check_target()?;
            return Ok(folder);
        }
    }

    /// # Errors
    /// If something is where the folder is to be, and it does not replace it.
    fn check_target(&self) -> Result<()> {
        if !self.replaces && self.target.exists() && !is_empty_folder(&self.target) {
            return Err(Error::io(&self.target, "replace")(ErrorKind::AlreadyExists.into()));
        }
        Ok(())
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

    /// As [`AtomicFolder::create`], but goes on with the leftovers of a run that `fingerprint` describes. Also returns
    /// whether there were any; files that have their final names are then complete.
    ///
    /// # Errors
    /// As [`AtomicFolder::create`].
    pub fn resume(target: &Path, replace: bool, fingerprint: &str) -> Result<(Self, bool)> {
        let mut folder = Self::begin(target, replace)?;
        let note = folder.temporary.join(NOTE);
        if fs::read(&note).is_ok_and(|text| text == fingerprint.as_bytes()) {
            remove_unfinished(&folder.temporary)?;
            folder.resumable = true;
            return Ok((folder, true));
        }
        folder.clear()?;
        write_file(&note, fingerprint.as_bytes())?;
        folder.resumable = true;
        Ok((folder, false))
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives the folder its final name. Files in it must be synced already if they are to last.
    ///
    /// # Errors
    /// I/O errors.
    pub fn commit(mut self, sync: bool) -> Result<()> {
        if self.resumable {
            let note = self.temporary.join(NOTE);
            fs::remove_file(&note).map_err(Error::io(&note, "remove"))?;
        }
        if sync {
            sync_tree(&self.temporary)?;
        }
        self.check_target()?;
        // Held until the folder has its name, where a folder with an open file can be renamed: who waits for it must not find
        // the folder without a lock.
        let _held = self.lock.take().filter(|_| cfg!(unix));
        if self.target.exists() {
            replace(&self.temporary, &self.target)?;
        } else {
            fs::rename(&self.temporary, &self.target).map_err(Error::io(&self.target, "rename to"))?;
        }
        self.done = true;
        let lock = self.target.join(LOCK);
        fs::remove_file(&lock).map_err(Error::io(&lock, "remove"))?;
        if sync {
            sync_folder(&self.target)?;
            sync_folder(folder_of(&self.target))?;
        }
        Ok(())
    }
}

impl Drop for AtomicFolder {
    fn drop(&mut self) {
        let kept = self.resumable && has_complete_files(&self.temporary);
        if !self.done && !kept {
            // Best effort: a leftover is removed by the next run.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// How often a lock is tried, and how long after each.
const TRIES: (usize, Duration) = (20, Duration::from_millis(10));

/// Whether somebody else has the lock, and keeps it: a program that its owner was just starting has it until it has begun.
fn is_held(lock: &File) -> bool {
    (0..TRIES.0).all(|_| {
        let held = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
        if held {
            std::thread::sleep(TRIES.1);
        }
        held
    })
}

/// Whether the open file is the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let place = |of: io::Result<fs::Metadata>| of.ok().map(|of| (of.dev(), of.ino()));
    place(file.metadata()).is_some_and(|here| place(fs::metadata(path)) == Some(here))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Removes files that were being written when a process was killed.
fn remove_unfinished(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let path = entry.map_err(Error::io(folder, "list"))?.path();
        if path.is_dir() {
            remove_unfinished(&path)?;
        } else if is_unfinished(&path) {
            fs::remove_file(&path).map_err(Error::io(&path, "remove"))?;
        }
    }
    Ok(())
}

fn is_unfinished(path: &Path) -> bool {
    path.to_string_lossy().ends_with(ENDING)
}

/// Whether a folder or one below it holds a file under its final name.
fn has_complete_files(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|e| {
        let path = e.path();
        let hidden = e.file_name().to_string_lossy().starts_with('.');
        !hidden && !is_unfinished(&path) && (path.is_file() || has_complete_files(&path))
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
        let folder = AtomicFolder::create(&target, false).unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        assert!(!target.exists());
        folder.commit(true).unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
        let refused = AtomicFolder::create(&target, false).unwrap_err();
        assert_eq!(refused.source.kind(), ErrorKind::AlreadyExists);
        let folder = AtomicFolder::create(&target, true).unwrap();
        fs::write(folder.path().join("b"), b"2").unwrap();
        folder.commit(true).unwrap();
        assert!(target.join("b").exists() && !target.join("a").exists());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing temporary is left");
    }

    #[test]
    fn a_folder_that_is_being_written_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let (folder, _) = AtomicFolder::resume(&target, false, "a").unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        for fingerprint in ["a", "b"] {
            let error = AtomicFolder::resume(&target, true, fingerprint).unwrap_err().to_string();
            assert!(error.contains("another process is writing it now"), "{error}");
        }
        fs::write(folder.path().join("b.1-0.part"), b"half").unwrap();
        assert!(AtomicFolder::create(&target, true).is_err());
        drop(folder);
        let (folder, begun) = AtomicFolder::resume(&target, false, "a").unwrap();
        assert!(begun && folder.path().join("a").exists() && !folder.path().join("b.1-0.part").exists());
        drop(folder);
        let (folder, begun) = AtomicFolder::resume(&target, false, "b").unwrap();
        assert!(!begun && !folder.path().join("a").exists());
        folder.commit(true).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "neither note nor lock is left");
    }

    #[test]
    fn who_waits_for_a_folder_that_is_finished_finds_it() {
        let root = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let target = root.path().join(format!("out{round}"));
            let folder = AtomicFolder::create(&target, false).unwrap();
            fs::write(folder.path().join("a"), b"1").unwrap();
            let refused = std::thread::scope(|scope| {
                let other = scope.spawn(|| AtomicFolder::create(&target, false).unwrap_err());
                folder.commit(false).unwrap();
                other.join().unwrap()
            });
            assert_eq!(refused.source.kind(), ErrorKind::AlreadyExists, "{refused}");
            assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        }
    }

    #[test]
    fn what_another_has_finished_meanwhile_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let folder = AtomicFolder::create(&target, false).unwrap();
        fs::create_dir(&target).unwrap();
        fs::write(target.join("a"), b"1").unwrap();
        let refused = folder.commit(false).unwrap_err();
        assert_eq!(refused.source.kind(), ErrorKind::AlreadyExists, "{refused}");
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_abandoned_folder_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        drop(AtomicFolder::create(&root.path().join("out"), false).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
