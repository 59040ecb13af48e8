//! Megatron's indexed dataset: `PREFIX.bin` holds tokens, `PREFIX.idx` says where each sequence lies.
//!
//! Little-endian, no padding, no checksum. `.idx`, with `S` sequences and `D - 1` documents:
//!
//! | offset    | type    | content                                                       |
//! |-----------|---------|---------------------------------------------------------------|
//! | 0         | 9 bytes | `MMIDIDX\0\0`                                                 |
//! | 9         | u64     | version, 1                                                    |
//! | 17        | u8      | [`TokenType`] of `.bin`                                       |
//! | 18        | u64     | `S`                                                           |
//! | 26        | u64     | `D`                                                           |
//! | 34        | i32 × S | sequence lengths, in tokens                                   |
//! | 34 + 4S   | i64 × S | sequence pointers, in bytes of `.bin`                         |
//! | 34 + 12S  | i64 × D | document index: 0, then the sequences up to each document's end |
//!
//! A multimodal set has one more byte per sequence, which nothing in the file announces; such files are refused.
//!
//! Source: Megatron-LM `core_r0.8.0` `megatron/core/datasets/indexed_dataset.py`.

mod reader;
mod writer;

pub use reader::{IndexFacts, IndexedDataset, check_index};
pub use writer::IndexedWriter;

use crate::{Error, Result};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 34;

/// Type of the numbers in `.bin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Code 1.
    U8,
    /// Code 2.
    I8,
    /// Code 3.
    I16,
    /// Code 4: everything MindSpeed-LLM writes, because labels hold -100.
    I32,
    /// Code 5.
    I64,
    /// Code 8: Megatron's own preprocessing for vocabularies below 65500.
    U16,
}

impl TokenType {
    /// The code in the file. 6 and 7 are floating point types, which hold no tokens.
    pub fn code(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::I8 => 2,
            Self::I16 => 3,
            Self::I32 => 4,
            Self::I64 => 5,
            Self::U16 => 8,
        }
    }

    /// The type with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::U8, Self::I8, Self::I16, Self::I32, Self::I64, Self::U16]
            .into_iter()
            .find(|t| t.code() == code)
    }

    /// Bytes of one token.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Its name, as numpy spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U16 => "uint16",
        }
    }
}

/// `PREFIX.bin`; the prefix may contain dots.
pub fn bin_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".bin")
}

/// `PREFIX.idx`; the prefix may contain dots.
pub fn idx_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".idx")
}

/// The dataset that `name` refers to: the one with this name, also with the extension of one of its files, or the only one
/// whose name starts with it (`data/corpus` for `data/corpus_text_document`). If there is none, `name` itself.
///
/// # Errors
/// [`Error::Options`] with the names, if there are several.
pub fn resolve(name: &Path) -> Result<PathBuf> {
    if name.as_os_str().is_empty() {
        return Err(Error::options(
            "a dataset: expected the beginning of its files' names, found nothing".to_owned(),
        ));
    }
    let ending = name.extension().is_some_and(|e| e == "bin" || e == "idx");
    let stem = if ending { name.with_extension("") } else { name.to_owned() };
    for exact in [name, &stem] {
        if idx_path(exact).exists() {
            return Ok(exact.to_owned());
        }
    }
    let mut longer = sets_that_begin(name);
    match longer.len() {
        0 => Ok(stem),
        1 => {
            tracing::debug!("{}: taken for {}", name.display(), longer[0].display());
            Ok(longer.swap_remove(0))
        }
        _ => {
            let names: Vec<String> = longer.iter().map(|path| path.display().to_string()).collect();
            Err(Error::options(format!(
                "{}: there is no set of this name\nhint: pass one of {}",
                name.display(),
                names.join(", ")
            )))
        }
    }
}

/// The sets of a folder, also those of which one file is missing, by name. Hidden files that are no set are left out, such as
/// `._a.bin`, which some systems put beside others.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be read.
pub fn sets_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut sets = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_some_and(|e| e == "bin" || e == "idx") {
            sets.push(path.with_extension(""));
        }
    }
    sets.sort();
    sets.dedup();
    let is_hidden = |set: &Path| set.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    sets.retain(|set| !is_hidden(set) || IndexedDataset::open(set).is_ok());
    Ok(sets)
}

/// Sets whose names begin with `name` and an underscore, sorted.
fn sets_that_begin(name: &Path) -> Vec<PathBuf> {
    let Some(stem) = name.file_name().map(|n| n.to_string_lossy().into_owned()) else { return Vec::new() };
    let folder = name.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let sets = names.filter_map(|file| {
        let set = file.strip_suffix(".idx")?;
        let more = set.strip_prefix(&stem)?.strip_prefix('_')?;
        (!more.is_empty()).then(|| name.with_file_name(set))
    });
    let mut sets: Vec<PathBuf> = sets.filter(|set| bin_path(set).exists()).collect();
    sets.sort();
    sets
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
