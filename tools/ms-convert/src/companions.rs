//! Files that accompany the weights.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ms_ckpt::TRACKER;

/// Endings of the files that travel with the weights: tokenizer, templates, code.
const COMPANIONS: [&str; 6] = ["jinja", "model", "txt", "merges", "py", "tiktoken"];

/// What the JSON files that travel, too, are called or begin with: configuration, tokenizer, templates.
const JSON_COMPANIONS: [&str; 9] = [
    "config.",
    "configuration.",
    "generation_config.",
    "tokenizer",
    "special_tokens_map.",
    "added_tokens.",
    "vocab",
    "chat_template",
    "preprocessor_config.",
];

/// Those of a folder, in the order of names.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn companions(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ending = path.extension().is_some_and(|e| COMPANIONS.iter().any(|c| e == *c));
        let json = name.ends_with(".json") && JSON_COMPANIONS.iter().any(|start| name.starts_with(start));
        if (ending || json) && name != TRACKER && !name.starts_with('.') && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
