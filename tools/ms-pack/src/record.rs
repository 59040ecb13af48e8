//! The manifest next to a dataset: the tokenizer of its ids, and the files it was made from.

use anyhow::{Result, bail};
use ms_data::indexed::{bin_path, idx_path};
use ms_data::preprocess::{Manifest, Manifests, OutputRecord};
use std::path::{Path, PathBuf};

fn path_of(prefix: &Path) -> PathBuf {
    let mut name = prefix.as_os_str().to_os_string();
    name.push(".manifest.json");
    name.into()
}

/// Whether a manifest's output is a file of this dataset.
fn is_of(output: &OutputRecord, set: &Path) -> bool {
    [bin_path(set), idx_path(set)].iter().any(|file| file.file_name() == Some(output.name.as_ref()))
}

/// Refuses to write the manifest of the dataset at `prefix` over that of another one, unless `force`.
///
/// # Errors
/// If there is one.
pub(crate) fn check_absent(prefix: &Path, force: bool) -> Result<()> {
    let path = path_of(prefix);
    let outputs = Manifest::read(&path).map(|manifest| manifest.outputs).unwrap_or_default();
    match outputs.into_iter().find(|o| !is_of(o, prefix)) {
        Some(other) if !force => bail!(
            "{}: expected no manifest of another dataset, found that of {}\n\
             hint: choose another --output-prefix, or --force, which replaces it",
            path.display(),
            other.name
        ),
        _ => Ok(()),
    }
}

/// [`Manifest::forget`] of a dataset's manifest.
///
/// # Errors
/// As there.
pub(crate) fn forget(prefix: &Path) -> ms_data::Result<()> {
    Manifest::forget(&path_of(prefix))
}

/// The files of a dataset, its manifest included.
pub(crate) fn files_of(set: &Path) -> [PathBuf; 3] {
    [idx_path(set), bin_path(set), path_of(set)]
}

/// [`write`]; if it cannot be written, the datasets, which are new, go too.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_or_withdraw(prefix: &Path, word: &str, sets: &[PathBuf], tokenizer: &str) -> Result<()> {
    write(prefix, word, sets, tokenizer).inspect_err(|_| withdraw(sets))
}

/// Removes datasets and their manifests after an error: the next run must not find half of its outputs.
pub(crate) fn withdraw(sets: &[PathBuf]) {
    for file in sets.iter().flat_map(|set| files_of(set)) {
        let _ = std::fs::remove_file(file);
    }
}

/// Writes the manifest of the datasets `sets`, made by the command `word` from token streams of `tokenizer`.
///
/// # Errors
/// If a file cannot be read or written.
fn write(prefix: &Path, word: &str, sets: &[PathBuf], tokenizer: &str) -> Result<()> {
    let program = format!("ms-pack {}", env!("CARGO_PKG_VERSION"));
    let settings = serde_json::Map::from_iter([("command".to_owned(), word.into())]);
    let mut manifest = Manifest::new(program, settings, tokenizer.to_owned());
    for set in sets {
        for file in [bin_path(set), idx_path(set)] {
            manifest.outputs.push(OutputRecord::new(&file)?);
        }
    }
    manifest.write(&path_of(prefix))?;
    Ok(())
}

/// Compares a dataset with the checksums in its manifest, if it has one.
///
/// # Errors
/// If its bytes are not those that were written, a file cannot be read, or what stands in the place of the manifest is none.
pub(crate) fn check(set: &Path, manifests: &mut Manifests) -> Result<()> {
    let Some((path, manifest)) = manifests.of_output(&bin_path(set))? else {
        return Ok(manifests.check_beside(&bin_path(set))?);
    };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for output in manifest.outputs.iter().filter(|o| is_of(o, set)) {
        if let Some(what) = output.differs(folder)? {
            bail!(
                "{what}\nhint: {0} says what it was; if it was changed on purpose, remove {0}",
                path.display()
            );
        }
    }
    Ok(())
}

/// The tokenizer that all of these datasets were made with, as their manifests say; `None` if one has none, or another.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn common_tokenizer(sets: &[PathBuf], manifests: &mut Manifests) -> Result<Option<String>> {
    let mut common: Option<String> = None;
    for set in sets {
        let Some((_, manifest)) = manifests.of_output(&bin_path(set))? else { return Ok(None) };
        if common.as_ref().is_some_and(|c| *c != manifest.tokenizer_sha256) {
            return Ok(None);
        }
        common = Some(manifest.tokenizer_sha256.clone());
    }
    Ok(common.filter(|hash| !hash.is_empty()))
}
