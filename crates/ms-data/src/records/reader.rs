//! Records of a file, one after another.

use super::array::{ArrayScanner, peek};
use super::columns::{Table, object, row_bytes};
use super::csv::{Header, next_row};
use super::{Compression, Format, InputFile, MAX_HELD_BYTES, flat};
use crate::{Error, Reason, Result};
use arrow_array::RecordBatch;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// A record as it stands in its file.
#[derive(Clone, Debug)]
pub struct RawRecord {
    /// The file.
    pub path: Arc<Path>,
    /// Number of the file among the inputs, from 0.
    pub file: u32,
    /// Its number in the file, from 1.
    pub number: u64,
    /// The line of the file at which it begins, from 1; 0 in files without lines.
    pub line: u64,
    /// How it is read.
    pub format: Format,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// Bytes of one JSON object, one line or one whole file.
    Bytes(Vec<u8>),
    /// Bytes of a row of cells.
    Cells(Vec<u8>, Arc<Header>),
    /// A row of a table.
    Row(Arc<RecordBatch>, usize),
    /// What cannot be read, and why.
    Broken(Reason),
}

impl RawRecord {
    /// The record as an object; a text becomes `{"text": …}`. Bytes of a whole file that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Record`] if the bytes are not a JSON object, a row of the file's columns, or not UTF-8.
    pub fn parse(&self) -> Result<Map<String, Value>> {
        let text = |text: String| Map::from_iter([("text".to_owned(), Value::String(text))]);
        match (&self.content, self.format) {
            (Content::Broken(reason), _) => Err(self.error(reason.clone())),
            (Content::Cells(row, header), _) => header.object(row).map_err(|reason| self.error(reason)),
            (Content::Row(batch, row), _) => object(batch, *row).map_err(|reason| self.error(reason)),
            (Content::Bytes(bytes), Format::Lines) => std::str::from_utf8(bytes)
                .map(|line| text(line.to_owned()))
                .map_err(|e| self.error(format!("not UTF-8: {e}"))),
            (Content::Bytes(bytes), Format::Whole) => Ok(text(String::from_utf8_lossy(bytes).into_owned())),
            (Content::Bytes(bytes), _) => match flat::object(bytes) {
                Some(object) => Ok(object),
                None => {
                    // A record is counted as one line, wherever its file has it.
                    let said =
                        |e: serde_json::Error| e.to_string().replace(" at line 1 column ", " at column ");
                    serde_json::from_slice(bytes)
                        .map_err(|e| self.error(format!("not a JSON object: {}", said(e))))
                }
            },
        }
    }

    /// The text of a field, if it can be determined without building the object; for `None`, [`RawRecord::parse`] must be
    /// used.
    pub(crate) fn text(&self, field: &str) -> Option<Cow<'_, str>> {
        match (&self.content, self.format) {
            (Content::Bytes(bytes), Format::Lines) if field == "text" => {
                std::str::from_utf8(bytes).ok().map(Cow::Borrowed)
            }
            (Content::Bytes(_), Format::Lines | Format::Whole) => None,
            (Content::Bytes(bytes), _) => flat::field(bytes, field),
            _ => None,
        }
    }

    /// Bytes that it takes in memory, about.
    pub fn size(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) | Content::Cells(bytes, _) => bytes.len(),
            Content::Row(batch, row) => row_bytes(batch, *row, usize::MAX),
            Content::Broken(_) => 0,
        }
    }

    /// Kind and bytes of the content, in a form that does not need the file: a row of a table becomes JSON.
    pub(crate) fn portable(&self) -> (u8, Cow<'_, [u8]>) {
        match (&self.content, self.format) {
            (Content::Bytes(bytes), Format::Lines) => (1, bytes.into()),
            (Content::Bytes(bytes), Format::Whole) => (2, bytes.into()),
            (Content::Bytes(bytes), _) => (0, bytes.into()),
            (Content::Broken(reason), _) => {
                let kind = if matches!(reason, Reason::TooLong(_)) { 4 } else { 3 };
                (kind, reason.to_string().into_bytes().into())
            }
            (Content::Cells(row, header), _) => portable_object(header.object(row)),
            (Content::Row(batch, row), _) => portable_object(object(batch, *row)),
        }
    }

    /// The record with this number of the file, number and line, from its portable form.
    pub(crate) fn of_portable(path: Arc<Path>, place: (u32, u64, u64), kind: u8, bytes: Vec<u8>) -> Self {
        let (file, number, line) = place;
        let (format, content) = match kind {
            1 => (Format::Lines, Content::Bytes(bytes)),
            2 => (Format::Whole, Content::Bytes(bytes)),
            3 => (Format::Json, Content::Broken(Reason::Other(String::from_utf8_lossy(&bytes).into_owned()))),
            4 => {
                (Format::Json, Content::Broken(Reason::TooLong(String::from_utf8_lossy(&bytes).into_owned())))
            }
            _ => (Format::Json, Content::Bytes(bytes)),
        };
        Self { path, file, number, line, format, content }
    }

    #[cfg(test)]
    pub(crate) fn of_json(path: Arc<Path>, file: u32, number: u64, line: u64, json: Vec<u8>) -> Self {
        Self { path, file, number, line, format: Format::Json, content: Content::Bytes(json) }
    }

    /// An error about this record.
    pub fn error(&self, reason: impl Into<Reason>) -> Error {
        let line = (self.line > 0 && self.line != self.number).then_some(self.line);
        Error::Record { path: self.path.to_path_buf(), record: self.number, line, reason: reason.into() }
    }
}

fn portable_object(object: std::result::Result<Map<String, Value>, String>) -> (u8, Cow<'static, [u8]>) {
    match object {
        Ok(object) => (0, serde_json::to_vec(&object).expect("an object of plain values").into()),
        Err(reason) => (3, reason.into_bytes().into()),
    }
}

/// Size and SHA-256 of a file that was read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// The file.
    pub path: PathBuf,
    /// Its bytes on disk.
    pub bytes: u64,
    /// SHA-256 of these, in hexadecimal digits.
    pub sha256: String,
}

impl FileDigest {
    /// Reads a file for its digest alone.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of(path: &Path) -> Result<Self> {
        let hash = File::open(path).and_then(|mut file| Hash::of_file(&mut file)).map_err(Error::io(path))?;
        Ok(hash.digest(path))
    }
}

/// Reads the records of files one after the other, in order.
pub struct RecordReader {
    files: VecDeque<(u32, InputFile)>,
    open: Option<OpenFile>,
    digests: Option<Arc<Mutex<Vec<FileDigest>>>>,
}

impl RecordReader {
    /// A reader over `files`; each is opened when its turn comes.
    pub fn new(files: impl IntoIterator<Item = InputFile>) -> Self {
        Self::numbered((0..).zip(files))
    }

    /// A reader over files that have these numbers among the inputs.
    pub fn numbered(files: impl IntoIterator<Item = (u32, InputFile)>) -> Self {
        Self { files: files.into_iter().collect(), open: None, digests: None }
    }

    /// A reader over bytes, as they would come from standard input.
    #[cfg(test)]
    pub(super) fn of_bytes(format: Format, bytes: Vec<u8>) -> Result<Self> {
        let most_bytes = super::MAX_RECORD_BYTES;
        let input = InputFile { path: "-".into(), format, compression: None, most_bytes, passes_over: false };
        let open = OpenFile::of_stream(0, &input, Box::new(std::io::Cursor::new(bytes)), None)?;
        Ok(Self { files: VecDeque::new(), open: Some(open), digests: None })
    }

    /// Also computes the digest of every file while it is read, and puts it into `digests` when it ends.
    #[must_use]
    pub fn with_digests(mut self, digests: Arc<Mutex<Vec<FileDigest>>>) -> Self {
        self.digests = Some(digests);
        self
    }

    fn advance(&mut self) -> Result<Option<RawRecord>> {
        loop {
            if self.open.is_none() {
                let Some((number, file)) = self.files.pop_front() else { return Ok(None) };
                self.open = Some(OpenFile::open(number, &file, self.digests.is_some())?);
            }
            let open = self.open.as_mut().expect("opened just above");
            if let Some(record) = open.record()? {
                return Ok(Some(record));
            }
            let digest = open.digest()?;
            if let (Some(digest), Some(digests)) = (digest, &self.digests) {
                locked(digests).push(digest);
            }
            self.open = None;
        }
    }
}

impl Iterator for RecordReader {
    type Item = Result<RawRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.advance().transpose();
        if matches!(record, Some(Err(_))) {
            // Nothing sensible follows an error of the file itself; a record that is broken is a record.
            self.files.clear();
            self.open = None;
        }
        record
    }
}

struct OpenFile {
    path: Arc<Path>,
    file: u32,
    format: Format,
    source: Source,
    hash: Option<Arc<Mutex<Hash>>>,
    /// Longest record, in bytes, and whether a longer line is passed over.
    limit: usize,
    passes_over: bool,
    /// Records so far, and line ends.
    number: u64,
    line: u64,
}

/// What records are taken from.
enum Source {
    Text(Box<dyn BufRead + Send>),
    Array(Box<dyn BufRead + Send>, ArrayScanner),
    Csv(Box<dyn BufRead + Send>, Arc<Header>, u8),
    Table(Box<Table>, Option<(Arc<RecordBatch>, usize)>),
    /// Nothing more comes.
    Ended,
}

impl OpenFile {
    fn open(file: u32, input: &InputFile, hashed: bool) -> Result<Self> {
        let io = |e: std::io::Error| broken(&input.path, 0, e);
        let is_stdin = input.path == Path::new("-");
        let (format, compression) = (input.format, input.compression);
        // The table of contents of a Parquet file stands at its end.
        if format == Format::Parquet && compression.is_none() && !is_stdin {
            let mut plain = File::open(&input.path).map_err(Error::io(&input.path))?;
            let hash = if hashed {
                Some(Arc::new(Mutex::new(Hash::of_file(&mut plain).map_err(io)?)))
            } else {
                None
            };
            let table = Table::parquet_file(plain, input.most_bytes).map_err(io)?;
            return Ok(Self::new(file, input, format, Source::Table(Box::new(table), None), hash));
        }
        let hash = (hashed && !is_stdin).then(Arc::default);
        let mut raw: Box<dyn Read + Send> = if is_stdin {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(&input.path).map_err(Error::io(&input.path))?)
        };
        if let Some(hash) = &hash {
            raw = Box::new(Hashing { inner: raw, hash: Arc::clone(hash) });
        }
        Self::of_stream(file, input, raw, hash)
    }

    /// A file whose bytes come one after the other.
    fn of_stream(
        file: u32,
        input: &InputFile,
        raw: Box<dyn Read + Send>,
        hash: Option<Arc<Mutex<Hash>>>,
    ) -> Result<Self> {
        let io = |e: std::io::Error| broken(&input.path, 0, e);
        let is_stdin = input.path == Path::new("-");
        let (mut format, mut compression) = (input.format, input.compression);
        let mut reader: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(1 << 18, raw));
        if is_stdin && compression.is_none() {
            compression = Compression::of_magic(reader.fill_buf().map_err(io)?);
        }
        if let Some(compression) = compression {
            let plain = compression.reader(reader).map_err(io)?;
            reader = Box::new(BufReader::with_capacity(1 << 18, plain));
        }
        if format == Format::Unknown {
            format = match reader.fill_buf().map_err(io)? {
                [b'P', b'A', b'R', b'1', ..] => Format::Parquet,
                [b'A', b'R', b'R', b'O', b'W', b'1', ..] | [0xff, 0xff, 0xff, 0xff, ..] => Format::Arrow,
                _ => Format::Json,
            };
        }
        let source = match format {
            Format::Parquet => {
                let mut bytes = Vec::new();
                let limit = MAX_HELD_BYTES as u64 + 1;
                let count = reader.take(limit).read_to_end(&mut bytes).map_err(io)?;
                if count as u64 == limit {
                    return Err(Error::Input {
                        path: input.path.clone(),
                        reason: format!(
                            "a Parquet file that is compressed as a whole, or piped, is held in memory; it has more than {MAX_HELD_BYTES} bytes"
                        ),
                    });
                }
                Source::Table(Box::new(Table::parquet_bytes(bytes, input.most_bytes).map_err(io)?), None)
            }
            Format::Arrow => Source::Table(Box::new(Table::arrow(Box::new(reader))), None),
            Format::Lines | Format::Whole | Format::Unknown => Source::Text(reader),
            Format::Json | Format::Csv { .. } => {
                if reader.fill_buf().map_err(io)?.starts_with(b"\xef\xbb\xbf") {
                    reader.consume(3);
                }
                Source::Text(reader)
            }
        };
        let mut open = Self::new(file, input, format, source, hash);
        open.start().map_err(io)?;
        Ok(open)
    }

    fn new(
        file: u32,
        input: &InputFile,
        format: Format,
        source: Source,
        hash: Option<Arc<Mutex<Hash>>>,
    ) -> Self {
        let (path, limit) = (Arc::from(input.path.as_path()), input.most_bytes);
        let passes_over = input.passes_over;
        Self { path, file, format, source, hash, limit, passes_over, number: 0, line: 0 }
    }

    /// Sees whether JSON is an array, and reads the names of columns.
    fn start(&mut self) -> std::io::Result<()> {
        let format = self.format;
        if !matches!(format, Format::Json | Format::Csv { .. }) {
            return Ok(());
        }
        let Source::Text(mut reader) = std::mem::replace(&mut self.source, Source::Ended) else {
            return Ok(());
        };
        self.source = if let Format::Csv { separator } = format {
            let mut row = Vec::new();
            if next_row(reader.as_mut(), separator, &mut row, &mut self.line, self.limit)? {
                let header = Header::parse(&row, separator).map_err(invalid)?;
                Source::Csv(reader, Arc::new(header), separator)
            } else {
                Source::Ended
            }
        } else {
            while let Some(byte @ (b' ' | b'\t' | b'\r' | b'\n')) = peek(reader.as_mut())? {
                self.line += u64::from(byte == b'\n');
                reader.consume(1);
            }
            if peek(reader.as_mut())? == Some(b'[') {
                reader.consume(1);
                Source::Array(reader, ArrayScanner::default())
            } else {
                Source::Text(reader)
            }
        };
        Ok(())
    }

    fn record(&mut self) -> Result<Option<RawRecord>> {
        let format = self.format;
        let mut line = self.line + 1;
        let (limit, passes_over) = (self.limit, self.passes_over);
        let content = match &mut self.source {
            Source::Ended => Ok(None),
            Source::Text(reader) => match format {
                Format::Whole => {
                    let whole = whole(reader.as_mut(), limit);
                    self.source = Source::Ended;
                    whole.map(Some)
                }
                Format::Lines => text_line(reader.as_mut(), true, limit, passes_over),
                _ => loop {
                    match text_line(reader.as_mut(), false, limit, passes_over) {
                        Ok(Some(Content::Bytes(bytes))) if bytes.trim_ascii().is_empty() => {
                            self.line += 1;
                            line += 1;
                        }
                        other => break other,
                    }
                },
            },
            Source::Array(reader, scanner) => {
                let mut bytes = Vec::new();
                let more = scanner.next(reader.as_mut(), &mut bytes, &mut self.line, limit);
                line = scanner.line() + 1;
                more.map(|more| more.then_some(Content::Bytes(bytes)))
            }
            Source::Csv(reader, header, separator) => {
                let mut row = Vec::new();
                let more = next_row(reader.as_mut(), *separator, &mut row, &mut self.line, limit);
                more.map(|more| more.then(|| Content::Cells(row, Arc::clone(header))))
            }
            Source::Table(table, rows) => {
                line = 0;
                table_row(table, rows, limit)
            }
        };
        let content = content.map_err(|e| broken(&self.path, self.number + 1, e))?;
        let Some(content) = content else { return Ok(None) };
        self.number += 1;
        if matches!(self.source, Source::Text(_)) {
            self.line += 1;
        }
        let (path, number) = (Arc::clone(&self.path), self.number);
        let record = RawRecord { path, file: self.file, number, line, format, content };
        match &record.content {
            Content::Broken(reason) if !passes_over => Err(record.error(reason.clone())),
            _ => Ok(Some(record)),
        }
    }

    /// The digest, after the last record.
    fn digest(&mut self) -> Result<Option<FileDigest>> {
        let Some(hash) = self.hash.take() else { return Ok(None) };
        // What follows the last record, such as the table of contents of an Arrow file, belongs to the file.
        self.source = Source::Ended;
        let mut hash = std::mem::take(&mut *locked(&hash));
        if self.format != Format::Parquet {
            let io = Error::io(self.path.as_ref());
            File::open(&self.path)
                .and_then(|mut rest| {
                    rest.seek(std::io::SeekFrom::Start(hash.bytes))?;
                    hash.update_from(&mut rest)
                })
                .map_err(io)?;
        }
        Ok(Some(hash.digest(&self.path)))
    }
}

/// SHA-256 of the bytes so far.
#[derive(Default)]
struct Hash {
    state: Sha256,
    bytes: u64,
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn update_from(&mut self, reader: &mut impl Read) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.update(&buffer[..count]),
            }
        }
    }

    fn digest(self, path: &Path) -> FileDigest {
        let sha256 = self.state.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        FileDigest { path: path.to_path_buf(), bytes: self.bytes, sha256 }
    }

    fn of_file(file: &mut File) -> std::io::Result<Self> {
        let mut hash = Self::default();
        hash.update_from(file)?;
        file.rewind()?;
        Ok(hash)
    }
}

/// Hashes what passes.
struct Hashing<R> {
    inner: R,
    hash: Arc<Mutex<Hash>>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        locked(&self.hash).update(&buffer[..count]);
        Ok(count)
    }
}

/// The value inside a lock whose holders do not panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A line without its end, which is `\n`, and for text also `\r\n` or `\r`. A line beyond the limit is broken, and read to its
/// end if it is to be passed over.
fn text_line(
    reader: &mut dyn BufRead,
    of_text: bool,
    limit: usize,
    passes_over: bool,
) -> std::io::Result<Option<Content>> {
    let mut line = Vec::new();
    let (mut any, mut too_long) = (false, false);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        any = true;
        let end = if of_text { memchr::memchr2(b'\n', b'\r', buffer) } else { memchr::memchr(b'\n', buffer) };
        let used = end.unwrap_or(buffer.len());
        too_long |= line.len() + used > limit;
        if too_long && !passes_over {
            break;
        }
        if !too_long {
            line.extend_from_slice(&buffer[..used]);
        }
        let Some(end) = end else {
            reader.consume(used);
            continue;
        };
        let carriage_return = buffer[end] == b'\r';
        reader.consume(end + 1);
        if carriage_return && reader.fill_buf()?.first() == Some(&b'\n') {
            reader.consume(1);
        }
        break;
    }
    Ok(any.then(|| if too_long { Content::Broken(Reason::too_long(limit)) } else { Content::Bytes(line) }))
}

fn whole(reader: &mut dyn BufRead, most: usize) -> std::io::Result<Content> {
    let mut bytes = Vec::new();
    let limit = (most as u64).saturating_add(1);
    let count = reader.take(limit).read_to_end(&mut bytes)?;
    Ok(if count as u64 == limit { Content::Broken(Reason::too_long(most)) } else { Content::Bytes(bytes) })
}

fn table_row(
    table: &mut Table,
    rows: &mut Option<(Arc<RecordBatch>, usize)>,
    limit: usize,
) -> std::io::Result<Option<Content>> {
    if rows.as_ref().is_none_or(|(batch, row)| *row == batch.num_rows()) {
        *rows = table.next()?.map(|batch| (batch, 0));
    }
    Ok(rows.as_mut().map(|(batch, row)| {
        *row += 1;
        if row_bytes(batch, *row - 1, limit) > limit {
            return Content::Broken(Reason::too_long(limit));
        }
        Content::Row(Arc::clone(batch), *row - 1)
    }))
}

fn invalid(reason: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, reason)
}

/// What the content of a file is wrong about is an error of a record, or of the input before the first one.
fn broken(path: &Path, record: u64, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    if !matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof | Other) {
        return Error::Io { path: path.into(), source: error };
    }
    let reason = if error.kind() == UnexpectedEof { "it is cut short".into() } else { Reason::of(&error) };
    // A first row of names that is too long is the first record as far as anyone can tell.
    if record == 0 && !matches!(reason, Reason::TooLong(_)) {
        Error::Input { path: path.into(), reason: reason.to_string() }
    } else {
        Error::Record { path: path.into(), record: record.max(1), line: None, reason }
    }
}
