//! Which files an input refers to.

use super::{Compression, MAX_RECORD_BYTES};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How a file is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON array of objects, or one object per line; distinguished by the first byte.
    Json,
    /// A text per line.
    Lines,
    /// The whole file is one text.
    Whole,
    /// Rows of cells, the first one naming the columns.
    Csv {
        /// What stands between cells.
        separator: u8,
    },
    /// An Apache Parquet file.
    Parquet,
    /// An Apache Arrow IPC file or stream; Feather version 2 is one.
    Arrow,
    /// By the first bytes: Parquet, Arrow, or else JSON. For streams without a name.
    Unknown,
}

/// Extensions, names for `--input-format`, formats.
const FORMATS: [(&str, Format); 9] = [
    ("json", Format::Json),
    ("jsonl", Format::Json),
    ("txt", Format::Lines),
    ("csv", Format::Csv { separator: b',' }),
    ("tsv", Format::Csv { separator: b'\t' }),
    ("parquet", Format::Parquet),
    ("arrow", Format::Arrow),
    ("feather", Format::Arrow),
    ("ipc", Format::Arrow),
];

/// Words that say which split of a set a file belongs to, besides those of names like `train-00000-of-00004`.
const SPLITS: [&str; 6] = ["train", "training", "validation", "valid", "dev", "test"];

impl Format {
    /// The format with this name: an extension that is read.
    ///
    /// # Errors
    /// [`Error::Options`] with the known names.
    pub fn named(name: &str) -> Result<Self> {
        FORMATS.iter().find(|row| row.0 == name).map(|row| row.1).ok_or_else(|| {
            let known: Vec<_> = FORMATS.iter().map(|row| row.0).collect();
            Error::options(format!("unknown format {name:?}; known: {}", known.join(", ")))
        })
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Documents {
    /// As the extension says: an object of `.json`/`.jsonl`, a line of `.txt`, a row of a table.
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
    /// How it is compressed as a whole.
    pub compression: Option<Compression>,
    /// Longest record that is taken from it, in bytes.
    pub most_bytes: usize,
    /// Whether a longer line is passed over to its end, as a record that cannot be used; otherwise reading ends there.
    pub passes_over: bool,
}

/// How an input is interpreted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// What a record is.
    pub documents: Documents,
    /// `--input-format`: this format whatever the names say.
    pub format: Option<Format>,
    /// `--input-split`: files of this split alone.
    pub split: Option<String>,
}

/// The files that `input` refers to: a file, a folder, a pattern (`*`, `?`, `[…]`, `**`), or `-` for standard input.
///
/// In a folder, the known extension with most files is taken (compressed ones count with the plain ones), and its files in
/// the order of their names. A folder that has such files only in subfolders is walked, as datasets of a hub are laid out. Of
/// files called `SPLIT-00000-of-00004`, a missing shard is an error. Where files of several splits are named so, or lie in
/// folders of that name, those of [`Discovery::split`] are taken, `train` by default.
///
/// With [`Documents::Files`] a folder is walked and gives all its files. Hidden files are left out, as by upstream
/// and shells, unless a pattern spells their dot.
///
/// # Errors
/// [`Error::Io`]; [`Error::Input`] for an extension that is not read, a folder without a known one, a pattern that matches
/// nothing, or missing shards.
pub fn discover(input: &Path, documents: Documents) -> Result<Vec<InputFile>> {
    Discovery { documents, ..Discovery::default() }.files(input)
}

impl Discovery {
    /// [`discover`] with a requested format or split.
    ///
    /// # Errors
    /// As [`discover`].
    pub fn files(&self, input: &Path) -> Result<Vec<InputFile>> {
        files(input, self)
    }
}

fn files(input: &Path, how: &Discovery) -> Result<Vec<InputFile>> {
    let bad = |reason: String| Error::Input { path: input.into(), reason };
    if input == Path::new("-") {
        let format = if how.documents == Documents::Files { Format::Whole } else { Format::Unknown };
        return Ok(vec![InputFile {
            most_bytes: MAX_RECORD_BYTES,
            passes_over: false,
            path: input.into(),
            format: how.format.unwrap_or(format),
            compression: None,
        }]);
    }
    let name = input.to_string_lossy();
    if !input.exists() && name.contains(['*', '?', '[']) {
        let paths = glob::glob(&name).map_err(|e| bad(format!("not a pattern: {e}")))?;
        let mut files = Vec::new();
        for path in paths {
            let path = path.map_err(|e| Error::Io { path: e.path().into(), source: e.into() })?;
            if !spells_dots(&name, &path) {
                continue;
            }
            // A folder that a pattern matches is read as one that is named.
            files.extend(self::files(&path, how)?);
        }
        if files.is_empty() {
            return Err(bad("no file matches this pattern".into()));
        }
        return Ok(files);
    }
    let metadata = std::fs::metadata(input).map_err(Error::io(input))?;
    #[cfg(unix)]
    if std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type()) {
        return Err(bad(
            "expected a file, found a pipe, which cannot be read twice; - is standard input".into()
        ));
    }
    let is_dir = metadata.is_dir();
    if how.documents == Documents::Files {
        let mut files = Vec::new();
        if is_dir {
            walk(input, &mut files)?;
        } else {
            files.push(input.to_path_buf());
        }
        let whole = |path: PathBuf| InputFile {
            format: Format::Whole,
            compression: Compression::of(&path),
            path,
            most_bytes: MAX_RECORD_BYTES,
            passes_over: false,
        };
        return Ok(files.into_iter().map(whole).collect());
    }
    let describe = |path: PathBuf| -> Result<InputFile> {
        let format = how.format.map_or_else(|| format_of(&path), Ok)?;
        let compression = Compression::of(&path);
        Ok(InputFile { format, compression, path, most_bytes: MAX_RECORD_BYTES, passes_over: false })
    };
    if !is_dir {
        return Ok(vec![describe(input.into())?]);
    }
    let mut nested = false;
    let mut paths = most_frequent(entries(input)?.into_iter().filter(|path| path.is_file()));
    if paths.is_empty() {
        let mut all = Vec::new();
        walk(input, &mut all)?;
        paths = most_frequent(all);
        nested = true;
    }
    if paths.is_empty() {
        let known: Vec<String> = FORMATS.iter().map(|row| format!(".{}", row.0)).collect();
        return Err(bad(format!(
            "no file in this folder with an extension that is read ({})",
            known.join(" ")
        )));
    }
    let paths = of_split(input, paths, nested, how.split.as_deref())?;
    paths.into_iter().map(describe).collect()
}

/// The files of the known extension that occurs most; of several, the first by name.
fn most_frequent(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut by_extension: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        if format_of(&path).is_ok() {
            by_extension.entry(extension(&path)).or_default().push(path);
        }
    }
    let most = by_extension.values().map(Vec::len).max().unwrap_or(0);
    by_extension.into_values().find(|files| files.len() == most).unwrap_or_default()
}

/// Checks shards, and keeps the files of one split.
fn of_split(folder: &Path, paths: Vec<PathBuf>, nested: bool, wanted: Option<&str>) -> Result<Vec<PathBuf>> {
    let bad = |reason: String| Error::Input { path: folder.into(), reason };
    let mut sets: BTreeMap<(PathBuf, String, u32), Vec<u32>> = BTreeMap::new();
    let mut splits: Vec<Option<String>> = Vec::with_capacity(paths.len());
    for path in &paths {
        let stem = stem(path);
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some((set, shard, of)) = shard(&stem) {
            sets.entry((parent.into(), set.to_owned(), of)).or_default().push(shard);
            splits.push(Some(set.to_owned()));
            continue;
        }
        let folder_name =
            parent.file_name().filter(|_| parent != folder).unwrap_or_default().to_string_lossy();
        let word = [stem.as_str(), &folder_name].into_iter().find(|word| SPLITS.contains(word));
        // All files in a plain folder are read, as upstream does.
        splits.push(word.filter(|_| nested || wanted.is_some()).map(str::to_owned));
    }
    let mut names: Vec<&String> = splits.iter().flatten().collect();
    names.sort();
    names.dedup();
    let chosen = match wanted {
        None if names.len() < 2 => None,
        None => Some("train"),
        Some(name) => Some(name),
    };
    if let Some(name) = chosen.filter(|name| !names.iter().any(|known| known == name)) {
        let known: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        return Err(bad(format!(
            "no files of the split {name:?}; it has {}\nhint: pass --input-split, or the files themselves",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )));
    }
    for ((parent, set, of), mut shards) in sets {
        if chosen.is_some_and(|name| name != set) {
            continue;
        }
        shards.sort_unstable();
        if let Some(missing) = (0..of).find(|shard| shards.binary_search(shard).is_err()) {
            let parent = parent.display();
            return Err(bad(format!("{parent}: shard {set}-{missing:05}-of-{of:05} is missing")));
        }
        if shards.len() != of as usize {
            return Err(bad(format!(
                "{}: {} files for the {of} shards of {set}",
                parent.display(),
                shards.len()
            )));
        }
    }
    if let Some(name) = chosen {
        tracing::info!("{}: reading the split {name} of {names:?}", folder.display());
    }
    let keep = |split: &Option<String>| chosen.is_none_or(|name| split.as_deref() == Some(name));
    Ok(paths.into_iter().zip(splits).filter(|(_, split)| keep(split)).map(|(path, _)| path).collect())
}

/// Set, number and count of a name such as `train-00003-of-00016` or `train-00003-of-00016-0123abcd`.
fn shard(stem: &str) -> Option<(&str, u32, u32)> {
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (head, tail) = stem.rsplit_once("-of-")?;
    let (set, shard) = head.rsplit_once('-')?;
    let of = tail.split_once('-').map_or(tail, |(of, _)| of);
    Some((set, number(shard)?, number(of)?))
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

/// The name without the extension of a compression.
fn plain_name(path: &Path) -> PathBuf {
    if Compression::of(path).is_some() { path.with_extension("") } else { path.to_path_buf() }
}

fn extension(path: &Path) -> String {
    plain_name(path).extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

fn stem(path: &Path) -> String {
    plain_name(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn format_of(path: &Path) -> Result<Format> {
    let extension = extension(path);
    FORMATS.iter().find(|row| row.0 == extension).map(|row| row.1).ok_or_else(|| {
        let known: Vec<String> = FORMATS.iter().map(|row| format!(".{}", row.0)).collect();
        Error::Input {
            path: path.into(),
            reason: format!(
                "cannot read records of {extension:?} files; known are {}\nhint: pass --input-format, or --documents files",
                known.join(" ")
            ),
        }
    })
}

/// Whether a pattern has the leading dot of every hidden name in a path that it matches.
fn spells_dots(pattern: &str, path: &Path) -> bool {
    let dotted: Vec<glob::Pattern> =
        pattern.split('/').filter(|part| part.starts_with('.')).flat_map(glob::Pattern::new).collect();
    path.iter().map(|part| part.to_string_lossy()).all(|part| {
        !part.starts_with('.') || part == "." || part == ".." || dotted.iter().any(|d| d.matches(&part))
    })
}

/// Entries of a folder by name, hidden ones excepted.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(dir)
        .and_then(|list| list.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(Error::io(dir))?;
    paths.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')));
    paths.sort();
    Ok(paths)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(dir)? {
        // Links to folders are not followed: they can form a ring.
        let kind = std::fs::symlink_metadata(&path).map_err(Error::io(&path))?;
        if kind.is_dir() {
            walk(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
