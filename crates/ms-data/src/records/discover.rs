//! Which files an input names.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How a file is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON array of objects, or an object per line; told apart by the first byte.
    Json,
    /// A text per line.
    Lines,
    /// The whole file is one text.
    Whole,
}

/// What a record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Documents {
    /// As the extension says: an object of `.json`/`.jsonl`, a line of `.txt`.
    #[default]
    Records,
    /// Every file is one text, whatever its extension; folders are walked.
    Files,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Its path; `-` is standard input.
    pub path: PathBuf,
    /// How it is cut.
    pub format: Format,
}

/// The files behind `input`: a file, a folder, or `-` for standard input (JSON).
///
/// In a folder, the known extension with most files is taken, and its files in the order of their names. With
/// [`Documents::Files`] a folder is walked and gives all its files, hidden ones excepted.
///
/// # Errors
/// [`Error::Io`]; [`Error::Input`] for an extension that is not read, or a folder without a known one.
pub fn discover(input: &Path, documents: Documents) -> Result<Vec<InputFile>> {
    if input == Path::new("-") {
        let format = if documents == Documents::Files { Format::Whole } else { Format::Json };
        return Ok(vec![InputFile { path: input.into(), format }]);
    }
    let is_dir = std::fs::metadata(input).map_err(Error::io(input))?.is_dir();
    if documents == Documents::Files {
        let mut files = Vec::new();
        if is_dir {
            walk(input, &mut files)?;
        } else {
            files.push(input.to_path_buf());
        }
        return Ok(files.into_iter().map(|path| InputFile { path, format: Format::Whole }).collect());
    }
    if !is_dir {
        return Ok(vec![InputFile { format: format_of(input)?, path: input.into() }]);
    }
    let mut by_extension: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in entries(input)? {
        if path.is_file() && format_of(&path).is_ok() {
            by_extension.entry(extension(&path)).or_default().push(path);
        }
    }
    let most = by_extension.values().map(Vec::len).max().unwrap_or(0);
    let files = by_extension.into_values().find(|files| files.len() == most).ok_or_else(|| Error::Input {
        path: input.into(),
        reason: "no .json, .jsonl or .txt file in this folder".into(),
    })?;
    files.into_iter().map(|path| Ok(InputFile { format: format_of(&path)?, path })).collect()
}

/// The paths in a file, one per line; blank lines are left out, `-` is standard input.
///
/// # Errors
/// [`Error::Io`].
pub fn file_list(list: &Path) -> Result<Vec<PathBuf>> {
    let text = if list == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(list)
    };
    let text = text.map_err(Error::io(list))?;
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(PathBuf::from).collect())
}

fn extension(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

fn format_of(path: &Path) -> Result<Format> {
    match extension(path).as_str() {
        "json" | "jsonl" => Ok(Format::Json),
        "txt" => Ok(Format::Lines),
        other => Err(Error::Input {
            path: path.into(),
            reason: format!("cannot read records of {other:?} files; known are .json, .jsonl and .txt"),
        }),
    }
}

/// Entries of a folder by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(dir)
        .and_then(|list| list.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(Error::io(dir))?;
    paths.sort();
    Ok(paths)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(dir)? {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        // Links to folders are not followed: they can form a ring.
        let kind = std::fs::symlink_metadata(&path).map_err(Error::io(&path))?;
        if hidden {
            continue;
        }
        if kind.is_dir() {
            walk(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
