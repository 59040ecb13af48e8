//! Reading a `.bin`/`.idx` pair.

use super::{HEADER_BYTES, MAGIC, TokenType, VERSION, bin_path, idx_path};
use crate::{Error, Result};
use ms_files::Mapped;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An indexed dataset, memory-mapped and checked: every length and pointer in it is valid.
pub struct IndexedDataset {
    prefix: PathBuf,
    idx: Mapped,
    bin: Mapped,
    token_type: TokenType,
    sequences: usize,
    document_entries: usize,
    tokens: u64,
}

impl std::fmt::Debug for IndexedDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexedDataset")
            .field("prefix", &self.prefix)
            .field("token_type", &self.token_type)
            .field("sequences", &self.sequences)
            .field("documents", &self.documents())
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl IndexedDataset {
    /// Opens `PREFIX.bin` and `PREFIX.idx` (as [`resolve`](super::resolve) finds them) and checks the whole index: magic,
    /// version, sizes, lengths not negative, pointers gapless and inside `.bin`, documents in order and complete. Reads the
    /// index once, no token.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Index`], [`Error::OutOfFile`]; [`Error::Options`] if several datasets match.
    pub fn open(prefix: impl AsRef<Path>) -> Result<Self> {
        let prefix = super::resolve(prefix.as_ref())?;
        let (idx_name, bin_name) = (idx_path(&prefix), bin_path(&prefix));
        let idx = Mapped::open(&idx_name)?;
        let bin = Mapped::open(&bin_name)?;
        let facts = check(idx.bytes(), bin.bytes().len() as u64, &idx_name, &bin_name)?;
        let IndexFacts { token_type, sequences, document_entries, tokens } = facts;
        Ok(Self { prefix, idx, bin, token_type, sequences, document_entries, tokens })
    }

    /// The prefix of its files.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Type of the stored tokens.
    pub fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.sequences
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences == 0
    }

    /// Number of documents; some may hold no sequence.
    pub fn documents(&self) -> usize {
        self.document_entries - 1
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens of sequence `i`.
    ///
    /// # Panics
    /// If `i` is not below [`IndexedDataset::len`].
    pub fn length(&self, i: usize) -> usize {
        assert!(i < self.sequences, "sequence {i} of {}", self.sequences);
        self.raw_length(i) as usize
    }

    /// The sequences of document `d`.
    ///
    /// # Panics
    /// If `d` is not below [`IndexedDataset::documents`].
    pub fn document(&self, d: usize) -> Range<usize> {
        assert!(d < self.documents(), "document {d} of {}", self.documents());
        self.raw_document(d) as usize..self.raw_document(d + 1) as usize
    }

    /// Appends the tokens of sequence `i` to `out`.
    ///
    /// # Errors
    /// [`Error::TokenRange`] if a 64-bit token does not fit 32 bits.
    ///
    /// # Panics
    /// If `i` is not below [`IndexedDataset::len`].
    pub fn read(&self, i: usize, out: &mut Vec<i32>) -> Result<()> {
        self.read_range(i, 0..self.length(i), out)
    }

    /// Appends the tokens `range` of sequence `i` to `out`.
    ///
    /// # Errors
    /// [`Error::TokenRange`] if a 64-bit token does not fit 32 bits.
    ///
    /// # Panics
    /// If `i` or `range` is outside the dataset.
    pub fn read_range(&self, i: usize, range: Range<usize>, out: &mut Vec<i32>) -> Result<()> {
        assert!(
            range.end <= self.length(i),
            "tokens {range:?} of sequence {i}, which has {}",
            self.length(i)
        );
        let bytes = self.raw_bytes(i);
        let size = self.token_type.bytes();
        let bytes = &bytes[range.start * size..range.end * size];
        match self.token_type {
            TokenType::U8 => out.extend(bytes.iter().map(|&b| i32::from(b))),
            TokenType::I8 => out.extend(bytes.iter().map(|&b| i32::from(b as i8))),
            TokenType::U16 => {
                out.extend(bytes.chunks_exact(2).map(|b| i32::from(u16::from_le_bytes([b[0], b[1]]))));
            }
            TokenType::I16 => {
                out.extend(bytes.chunks_exact(2).map(|b| i32::from(i16::from_le_bytes([b[0], b[1]]))));
            }
            TokenType::I32 => {
                out.extend(bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            }
            TokenType::I64 => {
                for b in bytes.chunks_exact(8) {
                    let value = i64::from_le_bytes(b.try_into().expect("chunks of eight"));
                    out.push(i32::try_from(value).map_err(|_| Error::TokenRange {
                        path: bin_path(&self.prefix),
                        value,
                        dtype: "int32",
                    })?);
                }
            }
        }
        Ok(())
    }

    /// The least and the greatest token among the first `most_bytes` bytes of tokens; `None` if there are none.
    ///
    /// Reads at the speed of memory, or of the disk where the file is not in memory.
    pub fn extremes(&self, most_bytes: u64) -> Option<(i64, i64)> {
        let size = self.token_type.bytes();
        let bytes = self.bin.bytes();
        let bytes = &bytes[..bytes.len().min(most_bytes as usize) / size * size];
        fn of<T: Copy + Ord, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> Option<(T, T)> {
            let mut values = bytes.chunks_exact(N).map(|b| read(b.try_into().expect("chunks of N")));
            let first = values.next()?;
            Some(values.fold((first, first), |(least, most), v| (least.min(v), most.max(v))))
        }
        fn wide<T: Into<i64>>(pair: (T, T)) -> (i64, i64) {
            (pair.0.into(), pair.1.into())
        }
        match self.token_type {
            TokenType::U8 => of(bytes, u8::from_le_bytes).map(wide),
            TokenType::I8 => of(bytes, i8::from_le_bytes).map(wide),
            TokenType::U16 => of(bytes, u16::from_le_bytes).map(wide),
            TokenType::I16 => of(bytes, i16::from_le_bytes).map(wide),
            TokenType::I32 => of(bytes, i32::from_le_bytes).map(wide),
            TokenType::I64 => of(bytes, i64::from_le_bytes),
        }
    }

    /// The stored bytes of sequence `i`, in the set's own token type.
    pub(crate) fn raw_bytes(&self, i: usize) -> &[u8] {
        let start = self.raw_pointer(i) as usize;
        &self.bin.bytes()[start..start + self.length(i) * self.token_type.bytes()]
    }

    /// Where sequences `range` lie in `.bin`.
    pub(crate) fn byte_range(&self, range: Range<usize>) -> Range<u64> {
        let start = |i: usize| {
            if i < self.sequences { self.raw_pointer(i) as u64 } else { self.bin.bytes().len() as u64 }
        };
        start(range.start)..start(range.end)
    }

    fn raw_length(&self, i: usize) -> i32 {
        let at = HEADER_BYTES + 4 * i;
        i32::from_le_bytes(self.idx.bytes()[at..at + 4].try_into().expect("four bytes"))
    }

    fn raw_pointer(&self, i: usize) -> i64 {
        read_u64(self.idx.bytes(), HEADER_BYTES + 4 * self.sequences + 8 * i) as i64
    }

    fn raw_document(&self, d: usize) -> i64 {
        read_u64(self.idx.bytes(), HEADER_BYTES + 12 * self.sequences + 8 * d) as i64
    }
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What an index says about its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFacts {
    /// Type of the stored tokens.
    pub token_type: TokenType,
    /// Number of sequences.
    pub sequences: usize,
    /// Length of the document index: one more than documents.
    pub document_entries: usize,
    /// Tokens of all sequences.
    pub tokens: u64,
}

/// Checks the bytes of an index against the length of its token file, as [`IndexedDataset::open`] does.
///
/// # Errors
/// [`Error::Index`], [`Error::OutOfFile`].
pub fn check_index(idx: &[u8], bin_bytes: u64) -> Result<IndexFacts> {
    check(idx, bin_bytes, Path::new("index"), Path::new("tokens"))
}

fn check(bytes: &[u8], bin_len: u64, idx_name: &Path, bin_name: &Path) -> Result<IndexFacts> {
    let bad = |reason: String| Error::Index { path: idx_name.into(), reason };
    if bytes.len() < HEADER_BYTES {
        return Err(bad(format!("expected at least {HEADER_BYTES} bytes, found {}", bytes.len())));
    }
    if &bytes[..9] != MAGIC {
        return Err(bad("expected the magic MMIDIDX at the start".into()));
    }
    let version = read_u64(bytes, 9);
    if version != VERSION {
        return Err(bad(format!("expected version {VERSION}, found {version}")));
    }
    let token_type = TokenType::from_code(bytes[17]).ok_or_else(|| {
        bad(format!("expected an integer token type (1 to 5, or 8), found code {}", bytes[17]))
    })?;
    let (sequences, entries) = (read_u64(bytes, 18), read_u64(bytes, 26));
    let want = sequences
        .checked_mul(12)
        .and_then(|n| n.checked_add(entries.checked_mul(8)?))
        .and_then(|n| n.checked_add(HEADER_BYTES as u64));
    if want != Some(bytes.len() as u64) {
        return Err(bad(format!(
            "{sequences} sequences and {entries} document entries need {} bytes, found {}",
            want.map_or("more than 2^64".into(), |n| n.to_string()),
            bytes.len()
        )));
    }
    // The product above equals the number of bytes at hand, so both fit usize.
    let (sequences, entries) = (sequences as usize, entries as usize);
    let (lengths, rest) = bytes[HEADER_BYTES..].split_at(4 * sequences);
    let (pointers, documents) = rest.split_at(8 * sequences);
    let size = token_type.bytes() as u64;
    let mut end = 0u64;
    for (i, (length, pointer)) in lengths.chunks_exact(4).zip(pointers.chunks_exact(8)).enumerate() {
        let length = i32::from_le_bytes(length.try_into().expect("four bytes"));
        let pointer = read_u64(pointer, 0) as i64;
        let length = u64::try_from(length).map_err(|_| bad(format!("sequence {i} has length {length}")))?;
        if pointer != end as i64 {
            return Err(bad(format!("sequence {i} should start at byte {end}, its pointer says {pointer}")));
        }
        end += length * size;
        if end > bin_len {
            return Err(Error::OutOfFile { path: bin_name.into(), index: i as u64, end, len: bin_len });
        }
    }
    if end != bin_len {
        return Err(bad(format!("its sequences cover {end} bytes, the token file has {bin_len}")));
    }
    let mut last = 0;
    for (d, entry) in documents.chunks_exact(8).enumerate() {
        let entry = read_u64(entry, 0) as i64;
        if (d == 0 && entry != 0) || entry < last {
            return Err(bad(format!("document entry {d} is {entry}, after {last}")));
        }
        last = entry;
    }
    if entries == 0 || last != sequences as i64 {
        return Err(bad(format!(
            "the last document should end at sequence {sequences}, it ends at {last} ({entries} entries)"
        )));
    }
    Ok(IndexFacts { token_type, sequences, document_entries: entries, tokens: end / size })
}
