//! Claims: one writer per output.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::{Interrupt, Usage};

/// The right to write an output, for as long as it lives: a locked file next to it, which is removed afterwards.
///
/// The system releases the lock of a process that is killed; its file is then taken over by the next one.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    file: File,
    interrupt: Interrupt,
    _made: Made,
}

/// Folders that were made for an output, the outermost first: those that stay empty go.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes `folder` and those around it that are missing. What this process has made itself goes at a signal, too.
    fn new(folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let mut made = Self(Vec::new());
        let mut around: Vec<&Path> = folder.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        around.retain(|path| !path.exists());
        for path in around.into_iter().rev() {
            // Another process may have been faster, and `new/../there` is there once `new` is.
            if std::fs::create_dir(path).is_ok() {
                interrupt.folder(path);
                made.0.push(path.to_owned());
            }
        }
        if !folder.as_os_str().is_empty() {
            make_folder(folder)?;
        }
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = self.0.iter().rev().try_for_each(std::fs::remove_dir);
    }
}

impl Claim {
    /// Claims `output`, a path or the prefix of paths, by `.NAME.lock` in its folder, which is created if missing; it goes again
    /// if nothing is written.
    ///
    /// # Errors
    /// If another process holds it, or the folder cannot be written; [`Usage`] for `-`.
    pub fn new(output: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        no_stream(output)?;
        let name = output.file_name().with_context(|| format!("{}: not a name", output.display()))?;
        let made = Made::new(output.parent().unwrap_or(Path::new("")), interrupt)?;
        let path = output.with_file_name(format!(".{}.lock", name.to_string_lossy()));
        Self::lock(&path, output, interrupt, made)
    }

    /// Claims a folder, which is created if missing, by `.lock` in it; it goes again if nothing is written.
    ///
    /// # Errors
    /// As [`Claim::new`].
    pub fn folder(folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        no_stream(folder)?;
        let made = Made::new(folder, interrupt)?;
        let path = folder.join(".lock");
        Self::lock(&path, folder, interrupt, made)
    }

    fn lock(path: &Path, output: &Path, interrupt: &Interrupt, made: Made) -> anyhow::Result<Self> {
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(path);
            let file = file.with_context(|| path.display().to_string())?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    anyhow::bail!("{}: another process is writing it now", output.display());
                }
                // A file system without locks is written without.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The one before may have removed the file between the two calls above: then this lock is on nothing.
            if same_file(&file, path) {
                interrupt.file(path);
                return Ok(Self { path: path.to_owned(), file, interrupt: interrupt.clone(), _made: made });
            }
        }
    }
}

/// Checks that an output is not `-`, which elsewhere is stdout.
fn no_stream(output: &Path) -> Result<(), Usage> {
    if output.as_os_str() == "-" {
        crate::refuse!(
            "-: expected the name of an output, which this one does not send to stdout\nhint: ./- names it"
        );
    }
    Ok(())
}

#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Removed while it is locked, so that nobody locks a file that is about to go; afterwards it is the next one's.
        self.interrupt.keep([self.path.clone()]);
        let _ = std::fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// Checks that `--output-prefix` ends with the beginning of file names, not with a folder.
///
/// # Errors
/// [`Usage`] if it is a folder's path.
pub fn check_prefix(prefix: &Path) -> Result<(), Usage> {
    let text = prefix.display().to_string();
    if !text.ends_with('/') && !prefix.as_os_str().is_empty() {
        return Ok(());
    }
    Err(Usage(format!(
        "--output-prefix {text}: expected a path whose last part begins the names of the files, found a folder\n\
         hint: pass {text}NAME"
    )))
}

/// Creates the folder of a file.
///
/// # Errors
/// If the system refuses to.
pub fn make_parent(path: &Path) -> anyhow::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => make_folder(parent),
        None => Ok(()),
    }
}

/// Creates a folder, and those around it, if missing.
///
/// # Errors
/// If a file is in its place or that of one around it; I/O errors.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).or_else(|error| {
        if let Some(file) = folder.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
            anyhow::bail!("{}: expected a folder, found a file", file.display());
        }
        Err(error).with_context(|| folder.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_place_of_a_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for output in ["file/out", "file/new/out"] {
            let refused = make_parent(&dir.path().join(output)).unwrap_err().to_string();
            assert_eq!(refused, format!("{}: expected a folder, found a file", file.display()));
        }
    }

    #[test]
    fn an_output_has_one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (output, none) = (dir.path().join("new/corpus"), Interrupt::default());
        let first = Claim::new(&output, &none).unwrap();
        let refused = Claim::new(&output, &none).unwrap_err().to_string();
        assert!(refused.contains("corpus: another process is writing it now"), "{refused}");
        drop(first);
        assert!(!dir.path().join("new").exists(), "a folder in which nothing was written");
        drop(Claim::new(&output, &none).unwrap());
        let folder = Claim::folder(&dir.path().join("save"), &none).unwrap();
        assert!(Claim::folder(&dir.path().join("save"), &none).is_err());
        std::fs::write(dir.path().join("save/a"), "").unwrap();
        drop(folder);
        assert_eq!(std::fs::read_dir(dir.path().join("save")).unwrap().count(), 1);
    }

    #[test]
    fn folders_that_others_made_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        drop(Claim::new(&dir.path().join("new/../there/out"), &Interrupt::default()).unwrap());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["there"]);
    }
}
