//! Checksums of a converted checkpoint's files, in a file of their own next to them, since the formats have no place for
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Mapped;
use crate::{Error, Result};

/// Name of the file. It stands in the folder of the checkpoint or, below that of an iteration, beside the files that it names.
pub const NAME: &str = "ms-checksums.json";

#[derive(Serialize, Deserialize)]
struct ChecksumFile {
    version: u32,
    files: BTreeMap<String, Checksum>,
}

/// What is known of the bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksum {
    bytes: u64,
    pub(crate) crc32c: u32,
}

impl Checksum {
    /// Of bytes in memory.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let crc32c = bytes.chunks(1 << 20).fold(0, crc32c::crc32c_append);
        Self { bytes: bytes.len() as u64, crc32c }
    }

    /// The checksum of these bytes followed by more.
    pub(crate) fn followed_by(self, next: Self) -> Self {
        let crc32c = crc32c::crc32c_combine(self.crc32c, next.crc32c, next.bytes as usize);
        Self { bytes: self.bytes + next.bytes, crc32c }
    }
}

/// Sums what passes through on its way to a file.
pub(crate) struct ChecksumWriter<W> {
    pub(crate) inner: W,
    pub(crate) sum: Checksum,
}

impl<W> ChecksumWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, sum: Checksum::default() }
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.crc32c = crc32c::crc32c_append(self.sum.crc32c, &bytes[..count]);
        self.sum.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// What is noted in a folder, and where; `None`: nothing.
fn noted(folder: &Path) -> Result<Option<(PathBuf, ChecksumFile)>> {
    let path = folder.join(NAME);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(&path, "read")(e)),
    };
    let noted: ChecksumFile =
        serde_json::from_slice(&text).map_err(|e| Error::malformed(&path, e.to_string()))?;
    let below = |name: &str| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    match noted.files.keys().find(|name| !below(name)) {
        Some(name) => Err(Error::malformed(&path, format!("{name:?}: expected a file below this folder"))),
        None => Ok(Some((path, noted))),
    }
}

/// Writes the checksums of files below `root`; those of an iteration beside each of its files, for another program may replace
/// its folder as a whole, and upstream's converter of 2026 takes any entry of that folder for one of a rank. What is noted there
/// of other files stays.
///
/// # Errors
/// I/O errors.
pub(crate) fn note(root: &Path, sums: &BTreeMap<PathBuf, Checksum>) -> Result<()> {
    let mut folders: BTreeMap<PathBuf, BTreeMap<String, Checksum>> = BTreeMap::new();
    for (path, sum) in sums {
        let iteration =
            path.components().next().is_some_and(|c| c.as_os_str().to_string_lossy().starts_with("iter_"));
        let folder = path.parent().filter(|_| iteration).unwrap_or(Path::new("")).to_owned();
        let name = path.strip_prefix(&folder).unwrap_or(path).to_string_lossy().into_owned();
        folders.entry(folder).or_default().insert(name, *sum);
    }
    for (folder, mut files) in folders {
        if let Some((_, before)) = noted(&root.join(&folder))? {
            for (name, sum) in before.files {
                files.entry(name).or_insert(sum);
            }
        }
        let mut text =
            serde_json::to_vec_pretty(&ChecksumFile { version: 1, files }).expect("texts and numbers");
        text.push(b'\n');
        ms_files::write_file(&root.join(folder).join(NAME), &text)?;
    }
    Ok(())
}

/// The sum of a file that is there.
///
/// # Errors
/// I/O errors.
pub(crate) fn of_file(path: &Path) -> Result<Checksum> {
    Ok(Checksum::of(Mapped::open(path)?.bytes()))
}

/// Compares all files that are noted in a folder with their checksums.
///
/// # Errors
/// [`Error::Malformed`] naming the file whose bytes are not those that were written, or that is not there; I/O errors.
pub(crate) fn check_noted(folder: &Path) -> Result<()> {
    let Some((path, noted)) = noted(folder)? else { return Ok(()) };
    noted.files.iter().try_for_each(|(name, sum)| compare(&path, &folder.join(name), *sum))
}

/// Compares a file with its checksum, noted at `path`.
fn compare(path: &Path, file: &Path, sum: Checksum) -> Result<()> {
    let what = match file.is_file() {
        false => "it was written and is not there",
        true if of_file(file)? != sum => "its bytes are not those that were written (CRC-32C)",
        true => return Ok(()),
    };
    let hint = format!("{what}\nhint: if that was done on purpose, remove {}", path.display());
    Err(Error::malformed(file, hint))
}

/// Compares `files` with the checksums noted in their folders and those above them, `root` at most, at the speed of memory or
/// of the disk. Files that nothing is noted of pass.
///
/// # Errors
/// [`Error::Malformed`] naming the file whose bytes are not those that were written; I/O errors.
pub(crate) fn check<'a>(root: &Path, files: impl Iterator<Item = &'a Path>) -> Result<()> {
    let files: BTreeSet<&Path> = files.collect();
    let above = |file: &'a Path| file.ancestors().skip(1).take_while(move |dir| dir.starts_with(root));
    let folders: BTreeSet<&Path> = files.iter().flat_map(|file| above(file)).collect();
    for folder in folders {
        let Some((path, noted)) = noted(folder)? else { continue };
        for (name, sum) in &noted.files {
            let file = folder.join(name);
            if files.contains(file.as_path()) {
                compare(&path, &file, *sum)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_parts_are_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..5_000u32).map(|n| (n * 31) as u8).collect();
        let whole = Checksum::of(&bytes);
        for at in [0, 1, 777, 5_000] {
            assert_eq!(Checksum::of(&bytes[..at]).followed_by(Checksum::of(&bytes[at..])), whole);
        }
        let mut out = ChecksumWriter::new(Vec::new());
        bytes.chunks(333).for_each(|part| out.write_all(part).unwrap());
        assert_eq!((out.sum, out.inner), (whole, bytes));
    }

    #[test]
    fn files_of_an_iteration_are_noted_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["iter_0000001/mp_rank_00/a.pt", "iter_0000001/b.distcp", "c.safetensors"];
        let mut sums = BTreeMap::new();
        for path in paths {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, path).unwrap();
            sums.insert(PathBuf::from(path), Checksum::of(path.as_bytes()));
        }
        note(dir.path(), &sums).unwrap();
        for folder in ["", "iter_0000001", "iter_0000001/mp_rank_00"] {
            assert!(dir.path().join(folder).join(NAME).is_file(), "{folder}");
        }
        let all: Vec<PathBuf> = paths.iter().map(|path| dir.path().join(path)).collect();
        let check = || check(dir.path(), all.iter().map(PathBuf::as_path));
        check().unwrap();
        for (path, file) in paths.iter().zip(&all) {
            fs::write(file, path.replace('a', "A").replace("b.", "B.").replace("c.", "C.")).unwrap();
            let message = check().unwrap_err().to_string();
            assert!(message.contains(path) && message.contains(NAME), "{message}");
            fs::write(file, path).unwrap();
        }
        check().unwrap();
    }
}
