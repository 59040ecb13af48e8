//! Iteration folders, and the tracker file that names the last complete one.

use std::path::Path;

use crate::{Error, Result};

/// Checks that the folder exists. A name in the form of a model hub is not looked up there, and the error says so.
///
/// # Errors
/// [`Error::Folder`].
pub fn check_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if path.exists() {
        return Err(Error::folder(path, "expected a folder"));
    }
    let name = path.to_string_lossy();
    let word = |text: &str| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        plain && !text.is_empty() && !text.starts_with('.')
    };
    let of_a_hub = name.split_once('/').is_some_and(|(owner, model)| word(owner) && word(model));
    let hint = if of_a_hub {
        format!("\nhint: names of a hub are not looked up: hf download {name} --local-dir DIR, and pass DIR")
    } else {
        String::new()
    };
    Err(Error::folder(path, format!("no such folder{hint}")))
}

/// Name of the file that names the last complete iteration.
pub const TRACKER: &str = "latest_checkpointed_iteration.txt";

/// Name of the file that describes a sharded checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// Whether there is something in `folder` that [`crate::open`] takes for a checkpoint, whole or damaged.
pub fn present(folder: &Path) -> bool {
    let ranks = || {
        let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.any(|e| e.file_name().to_string_lossy().starts_with("mp_rank_"))
    };
    [TRACKER, "config.json", MANIFEST, ".metadata"].iter().any(|name| folder.join(name).is_file()) || ranks()
}

/// Folder name of an iteration: `iter_0000010`.
pub fn iteration_name(iteration: u64) -> String {
    format!("iter_{iteration:07}")
}

/// The iteration that a folder is named for.
pub(crate) fn iteration_of(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("iter_")?.parse().ok()
}

/// The last complete iteration of a checkpoint folder; `None` if it has no tracker file.
///
/// # Errors
/// A tracker that holds neither a positive number nor `release`.
pub fn latest_iteration(path: &Path) -> Result<Option<u64>> {
    if !path.join(TRACKER).is_file() {
        return Ok(None);
    }
    let name = read_tracker(path)?;
    Ok(Some(name.strip_prefix("iter_").and_then(|n| n.parse().ok()).unwrap_or(0)))
}

pub(crate) fn read_tracker(path: &Path) -> Result<String> {
    let tracker = path.join(TRACKER);
    let text = std::fs::read_to_string(&tracker).map_err(Error::io(&tracker, "read"))?;
    let text = text.trim();
    if text == "release" {
        return Ok(text.to_owned());
    }
    match text.parse::<u64>() {
        Ok(n) if n > 0 => Ok(iteration_name(n)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(Error::malformed(&tracker, format!("expected a positive number or `release`, got `{shown}`")))
        }
    }
}

/// Writes the tracker file: from now on `iteration` is the last complete one.
///
/// # Errors
/// I/O errors.
pub(crate) fn write_tracker(path: &Path, iteration: u64) -> Result<()> {
    Ok(ms_files::write_file(&path.join(TRACKER), iteration.to_string().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_says_a_positive_number_or_release() {
        let dir = tempfile::tempdir().unwrap();
        let said = |text: &str| {
            std::fs::write(dir.path().join(TRACKER), text).unwrap();
            read_tracker(dir.path()).map_err(|e| e.to_string())
        };
        for (text, folder) in
            [("7", "iter_0000007"), (" 12345678 \n", "iter_12345678"), ("release\n", "release")]
        {
            assert_eq!(said(text).as_deref(), Ok(folder));
        }
        for text in ["0", "-1", "", "released"] {
            let refused = said(text).unwrap_err();
            assert!(
                refused.contains(&format!("expected a positive number or `release`, got `{text}`")),
                "{refused}"
            );
        }
    }
}
