//! Writing a `.bin`/`.idx` pair.

use super::{IndexedDataset, MAGIC, TokenType, VERSION, bin_path, idx_path};
use crate::preprocess::Manifests;
use crate::{AtomicFile, Error, Result, SyncedFile};
use ms_files::Spill;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Numbers of each kind that are held before a file is used.
const HELD: usize = 1 << 20;

/// Writes an indexed dataset. Nothing is visible under its name before [`IndexedWriter::finish`].
///
/// Memory: 4 bytes per sequence and 8 per document for the first million of each; more than that waits in files.
pub struct IndexedWriter {
    prefix: PathBuf,
    token_type: TokenType,
    bin: AtomicFile,
    lengths: Spill<i32>,
    /// Sequences up to the end of each document; the 0 in front of them is not held.
    ends: Spill<i64>,
    tokens: u64,
    buffer: Vec<u8>,
}

impl IndexedWriter {
    /// Starts `PREFIX.bin` and `PREFIX.idx`. The folder must exist.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(prefix: impl AsRef<Path>, token_type: TokenType) -> Result<Self> {
        let prefix = prefix.as_ref();
        Ok(Self {
            prefix: prefix.into(),
            token_type,
            bin: AtomicFile::create(bin_path(prefix))?,
            lengths: Spill::new(temporary(prefix, "lengths"), HELD),
            ends: Spill::new(temporary(prefix, "documents"), HELD),
            tokens: 0,
            buffer: Vec::new(),
        })
    }

    /// The prefix it writes to.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Sequences so far.
    pub fn sequences(&self) -> usize {
        self.lengths.len() as usize
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Appends a sequence to the open document.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::TokenRange`] if a token does not fit the set's type.
    pub fn sequence(&mut self, tokens: &[i32]) -> Result<()> {
        let out_of_range = |value: i32, dtype: TokenType| Error::TokenRange {
            path: bin_path(&self.prefix),
            value: value.into(),
            dtype: dtype.name(),
        };
        let length = i32::try_from(tokens.len()).map_err(|_| Error::Index {
            path: idx_path(&self.prefix),
            reason: format!("a sequence of {} tokens is longer than the format allows", tokens.len()),
        })?;
        self.buffer.clear();
        macro_rules! narrow {
            ($t:ty) => {
                for &token in tokens {
                    let value = <$t>::try_from(token).map_err(|_| out_of_range(token, self.token_type))?;
                    self.buffer.extend_from_slice(&value.to_le_bytes());
                }
            };
        }
        match self.token_type {
            TokenType::I32 if cfg!(target_endian = "little") => {
                let bytes = bytemuck::cast_slice(tokens);
                self.bin.write_all(bytes).map_err(|e| Error::io(bin_path(&self.prefix))(e))?;
            }
            TokenType::I32 => narrow!(i32),
            TokenType::I64 => narrow!(i64),
            TokenType::U8 => narrow!(u8),
            TokenType::I8 => narrow!(i8),
            TokenType::U16 => narrow!(u16),
            TokenType::I16 => narrow!(i16),
        }
        self.bin.write_all(&self.buffer).map_err(|e| Error::io(bin_path(&self.prefix))(e))?;
        self.tokens += tokens.len() as u64;
        Ok(self.lengths.push(length)?)
    }

    /// Closes the open document; it may hold no sequence.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end_document(&mut self) -> Result<()> {
        Ok(self.ends.push(self.lengths.len() as i64)?)
    }

    /// Appends all documents of another dataset, as Megatron's `add_index` does.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if its token type differs; [`Error::Io`].
    pub fn append(&mut self, other: &IndexedDataset) -> Result<()> {
        if other.token_type() != self.token_type {
            return Err(Error::Mismatch {
                path: other.prefix().into(),
                what: "token type",
                want: self.token_type.name().into(),
                found: other.token_type().name().into(),
            });
        }
        self.append_documents(other, 0..other.documents())
    }

    /// Appends some documents of another dataset of the same token type.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the other dataset has fewer documents.
    pub fn append_documents(&mut self, other: &IndexedDataset, documents: Range<usize>) -> Result<()> {
        let offset = self.lengths.len() as i64;
        let first = if documents.is_empty() { 0 } else { other.document(documents.start).start };
        let end = if documents.is_empty() { 0 } else { other.document(documents.end - 1).end };
        self.bin.copy_from(&bin_path(other.prefix()), other.byte_range(first..end))?;
        for i in first..end {
            let length = other.length(i);
            self.tokens += length as u64;
            self.lengths.push(length as i32)?;
        }
        for d in documents {
            self.ends.push((other.document(d).end - first) as i64 + offset)?;
        }
        Ok(())
    }

    /// Writes the index, syncs both files and gives them their names.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<()> {
        self.complete()?.publish(&mut Manifests::default())
    }

    /// Gives several datasets that belong together their names, once all of them are on disk and `ready` has been called.
    ///
    /// # Errors
    /// [`Error::Io`]; that of `ready`.
    pub fn finish_all(
        writers: impl IntoIterator<Item = Self>,
        ready: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let complete: Vec<Complete> = writers.into_iter().map(Self::complete).collect::<Result<_>>()?;
        ready()?;
        let mut manifests = Manifests::default();
        complete.into_iter().try_for_each(|set| set.publish(&mut manifests))
    }

    /// Writes the index and syncs both files: after this only giving the names can fail.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn complete(mut self) -> Result<Complete> {
        let path = idx_path(&self.prefix);
        let mut idx = AtomicFile::create(&path)?;
        let mut write = |bytes: &[u8]| idx.write_all(bytes).map_err(Error::io(&path));
        write(MAGIC)?;
        write(&VERSION.to_le_bytes())?;
        write(&[self.token_type.code()])?;
        write(&self.lengths.len().to_le_bytes())?;
        write(&(self.ends.len() + 1).to_le_bytes())?;
        let mut piece = Vec::new();
        self.lengths.for_each(|lengths| {
            piece.clear();
            lengths.iter().for_each(|length| piece.extend_from_slice(&length.to_le_bytes()));
            write(&piece)
        })?;
        let (mut pointer, size) = (0i64, self.token_type.bytes() as i64);
        self.lengths.for_each(|lengths| {
            piece.clear();
            for &length in lengths {
                piece.extend_from_slice(&pointer.to_le_bytes());
                pointer += i64::from(length) * size;
            }
            write(&piece)
        })?;
        write(&0i64.to_le_bytes())?;
        self.ends.for_each(|ends| {
            piece.clear();
            ends.iter().for_each(|end| piece.extend_from_slice(&end.to_le_bytes()));
            write(&piece)
        })?;
        Ok(Complete { prefix: self.prefix, bin: self.bin.settle()?, idx: idx.settle()? })
    }
}

/// A dataset that is on disk but does not have its final names yet. If dropped, it leaves nothing behind.
pub struct Complete {
    prefix: PathBuf,
    bin: SyncedFile,
    idx: SyncedFile,
}

impl Complete {
    /// Gives both files their names, `.bin` first: a dataset exists once its index does. Manifests of a dataset that is replaced
    /// go; `manifests` are those that stand beside it, for all datasets that a command replaces.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn publish(self, manifests: &mut Manifests) -> Result<()> {
        manifests.forget(&self.prefix)?;
        self.bin.publish()?;
        Ok(self.idx.publish()?)
    }
}

/// A temporary name next to the dataset.
fn temporary(prefix: &Path, what: &str) -> PathBuf {
    let mut name = prefix.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{what}.{}.part", std::process::id()));
    prefix.with_file_name(name)
}
