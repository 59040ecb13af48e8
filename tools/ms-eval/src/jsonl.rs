//! Benchmarks stored as JSON lines: which files of a folder, and their rows.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// The rows of a file, or of the `.jsonl` files of a folder in the order of their names. Where a folder has none but has the
/// folder `split`, that one is read; where names of files hold `split`, only those are (`dev.jsonl`, not `train.jsonl`),
/// unless `every` file is requested; at most `most` rows of each. Each row comes with its place, for messages.
///
/// # Errors
/// If there is no file, or a row is not a JSON object.
pub(crate) fn read(path: &Path, split: &str, every: bool, most: usize) -> Result<Vec<(String, Value)>> {
    let mut rows = Vec::new();
    for file in files(path, split, every)? {
        let name = file.display().to_string();
        let reader = std::fs::File::open(&file).with_context(|| name.clone())?;
        let before = rows.len();
        for (number, line) in std::io::BufReader::new(reader).lines().enumerate() {
            if rows.len() - before == most {
                break;
            }
            let line = line.with_context(|| name.clone())?;
            let line = line.trim_start_matches('\u{feff}');
            if line.trim().is_empty() {
                continue;
            }
            let place = format!("{name}: line {}", number + 1);
            let row: Value = serde_json::from_str(line).with_context(|| place.clone())?;
            ensure!(row.is_object(), "{place}: expected an object, found {}", kind(&row));
            rows.push((place, row));
        }
    }
    ensure!(!rows.is_empty(), "{}: expected questions, found none", path.display());
    Ok(rows)
}

fn files(path: &Path, split: &str, every: bool) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    for dir in [path.to_owned(), path.join(split)] {
        if dir != path && !dir.is_dir() {
            continue;
        }
        let entries = std::fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
        let mut found: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        let hidden = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        found.retain(|p| p.extension().is_some_and(|e| e == "jsonl") && p.is_file() && !hidden(p));
        let named = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().contains(split));
        if !every && found.iter().any(named) {
            found.retain(named);
        }
        if !found.is_empty() {
            found.sort();
            return Ok(found);
        }
    }
    bail!("{}: expected files of JSON lines (*.jsonl), found none", path.display())
}

/// The text under `key`.
///
/// # Errors
/// If there is none.
pub(crate) fn text<'a>(row: &'a Value, key: &str, place: &str) -> Result<&'a str> {
    row[key]
        .as_str()
        .with_context(|| format!("{place}: expected text under {key:?}, found {}", kind(&row[key])))
}

/// What a value is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
