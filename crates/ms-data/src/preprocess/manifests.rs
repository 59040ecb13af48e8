//! The manifests that stand beside datasets.

use super::Manifest;
use crate::indexed::{bin_path, idx_path};
use crate::{Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

/// How names of manifests end.
const ENDING: &str = ".manifest.json";

/// The manifests in the folders that were asked for, each read once: at the first question about its folder.
#[derive(Debug, Default)]
pub struct Manifests {
    folders: HashMap<PathBuf, Folder>,
}

/// The manifests of a folder.
#[derive(Debug, Default)]
struct Folder {
    /// By name; `None`: another format, or another file with that extension.
    manifests: Vec<(PathBuf, Option<Manifest>)>,
    /// Which of them name an output.
    naming: HashMap<String, Vec<usize>>,
}

impl Manifests {
    /// The manifest in the folder of `output` that names it among its outputs, and its path; of several the first by name.
    ///
    /// A manifest in another format, or another file with that extension, is ignored.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be read.
    pub fn of_output(&mut self, output: &Path) -> Result<Option<(&Path, &Manifest)>> {
        let folder = self.folder(output)?;
        let first = folder.naming.get(&name_of(output)).and_then(|naming| naming.first());
        Ok(first.and_then(|&at| {
            let (path, manifest) = &folder.manifests[at];
            Some((path.as_path(), manifest.as_ref()?))
        }))
    }

    /// Checks that the manifests next to `output` that are called by a beginning of its name can be read and are JSON, as that
    /// of its dataset is.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] for another form.
    pub fn check_beside(&mut self, output: &Path) -> Result<()> {
        let name = name_of(output);
        for (path, manifest) in &self.folder(output)?.manifests {
            let own = name_of(path);
            let begins = own.strip_suffix(ENDING).is_some_and(|own| !own.is_empty() && name.starts_with(own));
            if manifest.is_none() && begins {
                let bytes = std::fs::read(path).map_err(Error::io(path))?;
                serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).map_err(|e| Error::Input {
                    path: path.clone(),
                    reason: format!("expected the manifest of a dataset, found no JSON: {e}"),
                })?;
            }
        }
        Ok(())
    }

    /// What manifests say of the dataset at `prefix`, which is replaced, goes: a manifest of nothing else whole. One that names
    /// others stays theirs, and says that it no longer holds for what it was made for.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn forget(&mut self, prefix: &Path) -> Result<()> {
        let files = [bin_path(prefix), idx_path(prefix)].map(|file| name_of(&file));
        let folder = self.folder(&bin_path(prefix))?;
        for &at in files.iter().filter_map(|file| folder.naming.get(file)).flatten() {
            let (path, _) = &folder.manifests[at];
            // As it is now, after what was written since the folder was read.
            let Some(mut made) = Manifest::read(path) else { continue };
            let before = made.outputs.len();
            made.outputs.retain(|o| !files.contains(&o.name));
            if made.outputs.is_empty() && before > 0 {
                Manifest::forget(path)?;
            } else if made.outputs.len() < before {
                let name = prefix.file_name().unwrap_or_default().to_string_lossy();
                made.settings.insert("replaced since".into(), name.into());
                made.write(path)?;
            }
        }
        Ok(())
    }

    /// The manifests in the folder of a file; none if there is no such folder.
    fn folder(&mut self, file: &Path) -> Result<&Folder> {
        let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(match self.folders.entry(folder.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Folder::read(folder)?),
        })
    }
}

impl Folder {
    fn read(folder: &Path) -> Result<Self> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(Error::Io { path: folder.into(), source: e }),
        };
        let paths = entries.map(|entry| Ok(entry.map_err(Error::io(folder))?.path()));
        let mut paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
        paths.retain(|path| path.to_string_lossy().ends_with(ENDING) && path.is_file());
        paths.sort();
        let mut this = Self::default();
        for (at, path) in paths.into_iter().enumerate() {
            let manifest = Manifest::read(&path);
            for output in manifest.iter().flat_map(|manifest| &manifest.outputs) {
                this.naming.entry(output.name.clone()).or_default().push(at);
            }
            this.manifests.push((path, manifest));
        }
        Ok(this)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preprocess::OutputRecord;

    #[test]
    fn each_manifest_of_a_folder_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut made = Manifest::new("p 1".into(), serde_json::Map::new(), "t".into());
        for name in ["a.bin", "b.bin"] {
            std::fs::write(at(name), name).unwrap();
            made.outputs.push(OutputRecord::new(&at(name)).unwrap());
        }
        for name in ["m.manifest.json", "n.manifest.json"] {
            made.write(&at(name)).unwrap();
        }
        std::fs::write(at("c.manifest.json"), "{").unwrap();
        let mut manifests = Manifests::default();
        let first = at("m.manifest.json");
        assert_eq!(manifests.of_output(&at("a.bin")).unwrap(), Some((&*first, &made)));
        // What was read is not read again.
        std::fs::remove_file(&first).unwrap();
        assert_eq!(manifests.of_output(&at("b.bin")).unwrap(), Some((&*first, &made)));
        assert_eq!(manifests.of_output(&at("c.bin")).unwrap(), None);
        manifests.check_beside(&at("a.bin")).unwrap();
        let error = manifests.check_beside(&at("c.bin")).unwrap_err().to_string();
        assert!(error.contains("c.manifest.json: expected the manifest of a dataset"), "{error}");
        assert_eq!(manifests.of_output(&at("no folder/a.bin")).unwrap(), None);
        assert!(manifests.of_output(&at("a.bin/a.bin")).unwrap_err().to_string().contains("a.bin"));
    }
}
