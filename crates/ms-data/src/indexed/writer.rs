//! Writing a `.bin`/`.idx` pair.

use super::{IndexedDataset, MAGIC, TokenType, VERSION, bin_path, idx_path};
use crate::{AtomicFile, Error, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes an indexed dataset. Nothing is visible under its name before [`IndexedWriter::finish`].
///
/// Memory: 12 bytes per sequence and 8 per document.
pub struct IndexedWriter {
    prefix: PathBuf,
    token_type: TokenType,
    bin: AtomicFile,
    lengths: Vec<i32>,
    documents: Vec<i64>,
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
            lengths: Vec::new(),
            documents: vec![0],
            buffer: Vec::new(),
        })
    }

    /// The prefix it writes to.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Sequences so far.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|&n| n as u64).sum()
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
                self.buffer.extend_from_slice(bytemuck::cast_slice(tokens));
            }
            TokenType::I32 => narrow!(i32),
            TokenType::I64 => narrow!(i64),
            TokenType::U8 => narrow!(u8),
            TokenType::I8 => narrow!(i8),
            TokenType::U16 => narrow!(u16),
            TokenType::I16 => narrow!(i16),
        }
        self.bin.write_all(&self.buffer).map_err(Error::io(bin_path(&self.prefix)))?;
        self.lengths.push(length);
        Ok(())
    }

    /// Closes the open document; it may hold no sequence.
    pub fn end_document(&mut self) {
        self.documents.push(self.lengths.len() as i64);
    }

    /// Appends all documents of another set, as Megatron's `add_index` does.
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
        let offset = self.lengths.len() as i64;
        self.bin.write_all(other.all_bytes()).map_err(Error::io(bin_path(&self.prefix)))?;
        self.lengths.extend((0..other.len()).map(|i| other.length(i) as i32));
        self.documents.extend((0..other.documents()).map(|d| other.document(d).end as i64 + offset));
        Ok(())
    }

    /// Writes the index, syncs both files and gives them their names, `.bin` first: a set is there once its
    /// index is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<()> {
        let path = idx_path(&self.prefix);
        let mut idx = AtomicFile::create(&path)?;
        let mut write = |bytes: &[u8]| idx.write_all(bytes).map_err(Error::io(&path));
        write(MAGIC)?;
        write(&VERSION.to_le_bytes())?;
        write(&[self.token_type.code()])?;
        write(&(self.lengths.len() as u64).to_le_bytes())?;
        write(&(self.documents.len() as u64).to_le_bytes())?;
        for length in &self.lengths {
            write(&length.to_le_bytes())?;
        }
        let mut pointer = 0i64;
        for &length in &self.lengths {
            write(&pointer.to_le_bytes())?;
            pointer += i64::from(length) * self.token_type.bytes() as i64;
        }
        for document in &self.documents {
            write(&document.to_le_bytes())?;
        }
        self.bin.commit()?;
        idx.commit()
    }
}
