//! Shards: the rows of every input file are kept separate until all are complete.
//!
//! Every input file becomes a token stream in a work folder, with a note next to it once it is complete. Noted files are not
//! processed again, so an interrupted run resumes where it was, and several processes with one file system can share the
//! files. [`Shards::merge`] then passes all rows, in the order of the inputs, through the same output as a single run: the
//! same bytes.

use super::manifest::{hex, size_and_time};
use super::selection::{RecordSelection, Reject};
use super::workers::encode_all;
use super::{Encoding, Output, Report};
use crate::handler::{Handler, Row};
use crate::records::{FileDigest, InputFile, RecordReader};
use crate::select::DedupKey;
use crate::token_stream::{StreamInfo, TokenReader, TokenWriter};
use crate::{AtomicFile, Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Columns after those of the rows: a list where the document continues and null where it ends, and the keys for
/// deduplication.
const CONTINUES_COLUMN: &str = "continues";
const KEY_COLUMN: &str = "dedup key";

/// The shards of one run.
pub struct Shards<'a> {
    folder: PathBuf,
    files: Vec<InputFile>,
    /// Everything but the files that decides what a shard holds.
    settings: String,
    handler: &'a Handler,
    selection: &'a RecordSelection,
    info: StreamInfo,
}

/// The note written next to a complete shard.
#[derive(Serialize, Deserialize)]
struct ShardRecord {
    fingerprint: String,
    report: Report,
    rejects: Vec<Reject>,
    bytes: u64,
    sha256: String,
}

impl<'a> Shards<'a> {
    /// Shards of `files` in `folder`, which is made. `settings` are all flags that decide the rows.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Options`] for standard input, which cannot be read again.
    pub fn new(
        folder: &Path,
        files: Vec<InputFile>,
        settings: String,
        handler: &'a Handler,
        selection: &'a RecordSelection,
        info: StreamInfo,
    ) -> Result<Self> {
        if files.iter().any(|file| file.path == Path::new("-")) {
            return Err(Error::options("standard input cannot be read again, nor shared"));
        }
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        Ok(Self { folder: folder.into(), files, settings, handler, selection, info })
    }

    fn path(&self, shard: usize, suffix: &str) -> PathBuf {
        self.folder.join(format!("{shard:06}.{suffix}"))
    }

    /// Depends on everything that decides a shard's rows.
    fn fingerprint(&self, shard: usize) -> Result<String> {
        let path = &self.files[shard].path;
        let (bytes, modified) = size_and_time(path)?;
        let text = format!("{}\n{shard}\n{}\n{bytes}\n{modified}", self.settings, path.display());
        Ok(hex(&Sha256::digest(text.as_bytes())))
    }

    /// The note of a shard that is complete and still right.
    fn note(&self, shard: usize) -> Result<Option<ShardRecord>> {
        let Ok(bytes) = std::fs::read(self.path(shard, "json")) else { return Ok(None) };
        let note: Option<ShardRecord> = serde_json::from_slice(&bytes).ok();
        let fingerprint = self.fingerprint(shard)?;
        Ok(note.filter(|note| note.fingerprint == fingerprint && self.path(shard, "tokens").is_file()))
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is no input.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The shards that process `rank` of `size` still has to do, in order. The largest files are dealt first, each to the
    /// process with the least bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn pending(&self, rank: usize, size: usize) -> Result<Vec<usize>> {
        let mut sizes = Vec::with_capacity(self.files.len());
        for (shard, file) in self.files.iter().enumerate() {
            sizes.push((size_and_time(&file.path)?.0, shard));
        }
        sizes.sort_by_key(|&(bytes, shard)| (std::cmp::Reverse(bytes), shard));
        let mut load = vec![0u64; size.max(1)];
        let mut mine = Vec::new();
        for (bytes, shard) in sizes {
            let least = (0..load.len()).min_by_key(|&r| (load[r], r)).expect("at least one process");
            load[least] += bytes.max(1);
            if least == rank {
                mine.push(shard);
            }
        }
        mine.sort_unstable();
        let mut pending = Vec::new();
        for shard in mine {
            if self.note(shard)?.is_none() {
                pending.push(shard);
            }
        }
        Ok(pending)
    }

    /// Columns of a shard's stream.
    fn columns(&self) -> Vec<String> {
        let key = self.selection.dedup.map(|_| KEY_COLUMN.to_owned());
        self.handler.columns().iter().cloned().chain([CONTINUES_COLUMN.to_owned()]).chain(key).collect()
    }

    /// Encodes one shard. `progress` gets the report of this shard so far.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn encode(
        &self,
        shard: usize,
        workers: usize,
        mut progress: impl FnMut(&Report) + Send,
    ) -> Result<()> {
        let fingerprint = self.fingerprint(shard)?;
        let path = self.path(shard, "tokens");
        let mut file = AtomicFile::create(&path)?;
        let name = path.display().to_string();
        let mut writer = TokenWriter::new(&mut file, &name, &self.columns(), &self.info)?;
        let digests: Arc<Mutex<Vec<FileDigest>>> = Arc::default();
        let records = RecordReader::numbered([(shard as u32, self.files[shard].clone())])
            .with_digests(Arc::clone(&digests));
        let (mut report, mut rejects) = (Report::default(), Vec::new());
        let encode = |records: &[_]| self.selection.encode(self.handler, records);
        encode_all(records, workers, encode, |chunk| {
            report.add(&chunk.report);
            rejects.extend(chunk.rejects);
            for Encoding { rows, key } in chunk.encodings {
                let key = key.map(|key| key.to_ids());
                for mut row in rows {
                    row.columns.push(std::mem::take(&mut row.continues).then(Vec::new));
                    row.columns.extend(key.clone().map(Some));
                    writer.push(row)?;
                }
            }
            progress(&report);
            Ok(())
        })?;
        writer.finish()?;
        file.commit()?;
        let digest = digests.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (bytes, sha256) = digest.map(|digest| (digest.bytes, digest.sha256)).unwrap_or_default();
        let note = ShardRecord { fingerprint, report, rejects, bytes, sha256 };
        let path = self.path(shard, "json");
        let mut file = AtomicFile::create(&path)?;
        file.write_all(&serde_json::to_vec(&note).expect("texts and numbers")).map_err(Error::io(&path))?;
        Ok(file.commit()?)
    }

    /// Passes the rows of all shards, in order, to `output`. Returns the digests of the inputs.
    ///
    /// # Errors
    /// [`Error::Input`] if a shard is not complete; what reading and writing give.
    pub fn merge(&self, output: &mut Output<'_>, mut progress: impl FnMut(usize)) -> Result<Vec<FileDigest>> {
        output.start(self.selection);
        let mut digests = Vec::with_capacity(self.files.len());
        for (shard, file) in self.files.iter().enumerate() {
            let path = self.path(shard, "tokens");
            let note = self.note(shard)?.ok_or_else(|| Error::Input {
                path: path.clone(),
                reason: "this shard is not complete, or its input has changed meanwhile".into(),
            })?;
            output.add_report(&note.report);
            for reject in &note.rejects {
                output.reject(reject)?;
            }
            digests.push(FileDigest { path: file.path.clone(), bytes: note.bytes, sha256: note.sha256 });
            let stream = File::open(&path).map_err(Error::io(&path))?;
            let name = path.display().to_string();
            let bad = |reason: &str| Error::TokenStream { name: name.clone(), reason: reason.into() };
            let mut encoding = Encoding::default();
            let rows = TokenReader::new(stream, &name)?;
            if rows.columns() != self.columns() {
                let [want, found] = [&self.columns(), rows.columns()].map(|columns| columns.join(", "));
                return Err(bad(&format!("expected the columns {want}, found {found}")));
            }
            for row in rows {
                let mut columns = row?.columns;
                if self.selection.dedup.is_some() {
                    let key = columns.pop().flatten().and_then(|ids| DedupKey::from_ids(&ids));
                    encoding.key =
                        Some(key.ok_or_else(|| bad("a row without what duplicates are compared by"))?);
                }
                let mark = columns.pop().expect("the columns were compared");
                let continues = mark.is_some();
                encoding.rows.push(Row { columns, continues });
                if !continues {
                    output.encoding(std::mem::take(&mut encoding))?;
                }
            }
            progress(shard + 1);
        }
        Ok(digests)
    }

    /// Removes the files of the shards, and the work folder unless it holds anything else.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove(self) -> Result<()> {
        let own = |name: &str| {
            let (number, suffix) = name.split_once('.').unwrap_or_default();
            // A run that was killed leaves `NAME.PID-N.part`.
            let whole = suffix.strip_suffix(".part").and_then(|name| name.split_once('.'));
            let suffix = whole.map_or(suffix, |(suffix, _)| suffix);
            let shard = number.parse::<usize>().is_ok_and(|shard| format!("{shard:06}") == number);
            shard && ["tokens", "json"].contains(&suffix)
        };
        for entry in std::fs::read_dir(&self.folder).map_err(Error::io(&self.folder))? {
            let path = entry.map_err(Error::io(&self.folder))?.path();
            if path.file_name().and_then(|name| name.to_str()).is_some_and(own) {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
            }
        }
        match std::fs::remove_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                tracing::warn!("{}: left there, as it holds other files", self.folder.display());
                Ok(())
            }
            other => other.map_err(Error::io(&self.folder)),
        }
    }
}
