//! Output files that appear whole or not at all.

use anyhow::Context as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name in its folder, which is made if missing, syncs it and renames it; an existing
/// file is replaced.
///
/// # Errors
/// What the operating system refuses; nothing is left behind then.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_files(&[(path, bytes)])
}

/// [`write_file`] for files that belong together: none has its name before all of them are on the disk.
///
/// # Errors
/// As [`write_file`].
pub fn write_files(files: &[(&Path, &[u8])]) -> anyhow::Result<()> {
    let mut parts = Vec::with_capacity(files.len());
    let mut write = || -> anyhow::Result<()> {
        for (path, bytes) in files {
            parts.push(write_part(path, bytes)?);
        }
        for ((path, _), part) in files.iter().zip(&parts) {
            std::fs::rename(part, path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    };
    write().inspect_err(|_| parts.iter().for_each(|part| drop(std::fs::remove_file(part))))
}

/// Writes and syncs a file under a temporary name, which is given back.
fn write_part(path: &Path, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("{}: not a file name", path.display()))?;
    let part = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
    crate::make_parent(path)?;
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part))).with_context(|| path.display().to_string())?;
    Ok(part)
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
        assert!(format!("{:#}", write_file(&below_a_file, b"x").unwrap_err()).contains("out.json"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        write_file(&dir.path().join("new/folder/out.json"), b"x").unwrap();
    }
}
