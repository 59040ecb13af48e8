//! Files written under a temporary name.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How the temporary names of files end.
pub(crate) const ENDING: &str = ".part";

/// The temporary name of a file, `NAME.PID-N.part` in the folder of the last one. Dropped unpublished, it leaves nothing behind;
/// killed, it leaves a file that nobody reads and that the next writer of the same file removes.
pub struct Unfinished {
    /// Empty when it has its last name.
    temporary: PathBuf,
    path: PathBuf,
    /// Locked until the file has its name, so that others see that somebody writes it.
    _lock: Option<File>,
    folders: MadeFolders,
}

/// Folders that were made for a file, the outermost first. Dropped, it removes those that are empty.
struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    /// Makes a folder and those around it that are missing.
    fn make(folder: &Path) -> Result<Self> {
        let missing: Vec<&Path> = folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        let mut made = Self(Vec::new());
        for folder in missing.into_iter().rev() {
            // Another process may have been faster, and `new/../there` is there once `new` is.
            if std::fs::create_dir(folder).is_ok() {
                made.0.push(folder.to_owned());
            }
        }
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "make"))?;
        Ok(made)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // Best effort, and what others have written into stays.
        while self.0.pop().is_some_and(|folder| std::fs::remove_dir(folder).is_ok()) {}
    }
}

impl Unfinished {
    /// Makes the file that is to be `path`, in a folder that is made if missing. What killed writers of `path` left is removed.
    ///
    /// # Errors
    /// [`Error`] if the folder or the file cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<(Self, File)> {
        let path = path.into();
        // Known now, not when everything is written. A file would take the name of a device, or of what leads to an open file.
        let leads_to_open = std::fs::read_link(&path).is_ok_and(|to| to.starts_with("/proc"));
        let is_file = |there: &std::fs::Metadata| there.is_file() && !leads_to_open;
        if let Some(other) = std::fs::metadata(&path).ok().filter(|there| !is_file(there)) {
            let device = || std::io::Error::other("expected a file or nothing, found a pipe or device");
            let source = if other.is_dir() { ErrorKind::IsADirectory.into() } else { device() };
            return Err(Error { path, action: "create", source });
        }
        let folders = MadeFolders::make(folder_of(&path))?;
        remove_abandoned(&path);
        // Threads of this process may write the same file; the last one to finish wins.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        for _ in 0..1000 {
            let mut name = path.file_name().unwrap_or_default().to_os_string();
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            name.push(format!(".{}-{number}{ENDING}", std::process::id()));
            let temporary = path.with_file_name(name);
            match File::create_new(&temporary) {
                Ok(file) => {
                    // A file system without locks is written without.
                    let lock = file.try_clone().ok();
                    let lost = lock.as_ref().is_some_and(is_locked);
                    // Between the two steps another writer may have taken it for abandoned.
                    if !lost && temporary.exists() {
                        return Ok((Self { temporary, path, _lock: lock, folders }, file));
                    }
                }
                // Another machine has a process of this number.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error { path, action: "create", source }),
            }
        }
        Err(Error { path, action: "create", source: ErrorKind::ResourceBusy.into() })
    }

    /// The name it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name it has.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives the file its name; with `sync` the name lasts when this returns, as what was synced of the file does.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be renamed.
    pub fn publish(mut self, sync: bool) -> Result<()> {
        std::fs::rename(&self.temporary, &self.path).map_err(Error::io(&self.path, "rename"))?;
        // Another thread may take the temporary name again.
        self.temporary = PathBuf::new();
        self.folders.0.clear();
        if sync { sync_folder(folder_of(&self.path)) } else { Ok(()) }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            // Best effort: the error that matters is the one being returned.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Whether somebody else holds the lock of a file; it is held from here on otherwise, where the file system knows locks.
fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Removes the temporary files of `path` that nobody writes any more. Best effort: they harm nobody.
fn remove_abandoned(path: &Path) {
    let (Some(name), Ok(entries)) = (path.file_name(), std::fs::read_dir(folder_of(path))) else { return };
    let start = format!("{}.", name.to_string_lossy());
    for entry in entries.flatten() {
        let found = entry.file_name();
        let found = found.to_string_lossy();
        let number = found.strip_prefix(&start).and_then(|rest| rest.strip_suffix(ENDING));
        if number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
            && File::options().write(true).open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The folder that a path stands in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the entries of a folder last.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io(path, "sync"))
}

/// Writes a file whole; an existing one is replaced.
///
/// # Errors
/// [`Error`] for what the system refuses; nothing is left behind then.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_files(&[(path, bytes)])
}

/// [`write_file`] for files that belong together: none has its name before all of them are on the disk.
///
/// # Errors
/// As [`write_file`].
pub fn write_files(files: &[(&Path, &[u8])]) -> Result<()> {
    let write = |(path, bytes): &(&Path, &[u8])| {
        let (name, mut file) = Unfinished::create(*path)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path, "write"))?;
        Ok(name)
    };
    let mut settled = Vec::with_capacity(files.len());
    for file in files {
        match write(file) {
            Ok(name) => settled.push(name),
            Err(error) => {
                // The last one first: a folder was made for the first of them, and is empty when the others are gone.
                while settled.pop().is_some() {}
                return Err(error);
            }
        }
    }
    settled.into_iter().try_for_each(|name| name.publish(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_failure_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        let below_a_file = path.join("x.json");
        let other = dir.path().join("other");
        let failed = write_files(&[(&other, b"y"), (&below_a_file, b"x")]).unwrap_err();
        assert!(failed.to_string().contains("out.json"), "{failed}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        write_file(&dir.path().join("new/folder/out.json"), b"x").unwrap();
        // Folders that were made for what could not be written go, and no others.
        std::fs::create_dir(dir.path().join("new/other")).unwrap();
        let first = dir.path().join("new/a/b/one");
        write_files(&[(&first, b"x"), (&dir.path().join("new/a/two"), b"y"), (&below_a_file, b"z")])
            .unwrap_err();
        assert!(!dir.path().join("new/a").exists() && dir.path().join("new/other").exists());
        let (unfinished, _file) = Unfinished::create(&first).unwrap();
        drop(unfinished);
        assert!(!dir.path().join("new/a").exists());
        let folder = dir.path().join("new");
        assert_eq!(Unfinished::create(&folder).err().unwrap().source.kind(), ErrorKind::IsADirectory);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let refused = write_file(&link, b"x").unwrap_err().to_string();
        assert!(refused.ends_with("link: expected a file or nothing, found a pipe or device"), "{refused}");
        assert!(link.is_symlink() && std::fs::read_dir(dir.path()).unwrap().count() == 1);
        // As /dev/stdout is, here of a file that is open.
        let file = File::create(dir.path().join("file")).unwrap();
        let standard = dir.path().join("stdout");
        let open = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        if Path::new(&open).exists() {
            std::os::unix::fs::symlink(open, &standard).unwrap();
            let refused = write_file(&standard, b"x").unwrap_err().to_string();
            assert!(
                refused.ends_with("stdout: expected a file or nothing, found a pipe or device"),
                "{refused}"
            );
            assert!(standard.is_symlink());
        }
    }

    #[test]
    fn folders_that_others_made_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        drop(Unfinished::create(dir.path().join("new/../there/out")).unwrap());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["there"]);
    }

    #[test]
    fn what_a_killed_writer_left_goes_and_what_another_one_writes_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let (writing, _file) = Unfinished::create(&path).unwrap();
        let (abandoned, other) =
            (dir.path().join("out.json.17-0.part"), dir.path().join("out.json.idx.17-0.part"));
        std::fs::write(&abandoned, b"half").unwrap();
        std::fs::write(&other, b"of another file").unwrap();
        write_file(&path, b"two").unwrap();
        assert!(!abandoned.exists() && other.exists() && writing.temporary().exists());
        writing.publish(true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
