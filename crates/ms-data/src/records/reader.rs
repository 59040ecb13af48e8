//! Records of a file, one after the other.

use super::array::{ArrayScanner, peek};
use super::{Format, InputFile, MAX_RECORD_BYTES};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// A record as it stands in its file.
#[derive(Clone, Debug)]
pub struct RawRecord {
    /// The file.
    pub path: Arc<Path>,
    /// Its number in the file, from 1.
    pub number: u64,
    /// Bytes of one JSON object, or of one text.
    pub bytes: Vec<u8>,
    /// How to read the bytes.
    pub format: Format,
}

impl RawRecord {
    /// The record as an object; a text becomes `{"text": …}`. Bytes of a whole file that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Record`] if the bytes are not a JSON object or not UTF-8.
    pub fn parse(&self) -> Result<Map<String, Value>> {
        let text = |text: String| Map::from_iter([("text".to_owned(), Value::String(text))]);
        match self.format {
            Format::Json => {
                serde_json::from_slice(&self.bytes).map_err(|e| self.error(format!("not a JSON object: {e}")))
            }
            Format::Lines => std::str::from_utf8(&self.bytes)
                .map(|line| text(line.to_owned()))
                .map_err(|e| self.error(format!("not UTF-8: {e}"))),
            Format::Whole => Ok(text(String::from_utf8_lossy(&self.bytes).into_owned())),
        }
    }

    /// An error about this record.
    pub fn error(&self, reason: impl Into<String>) -> Error {
        Error::Record { path: self.path.to_path_buf(), record: self.number, reason: reason.into() }
    }
}

/// Reads the records of files one after the other, in order.
pub struct RecordReader {
    files: VecDeque<InputFile>,
    open: Option<OpenFile>,
    bytes_read: u64,
}

struct OpenFile {
    path: Arc<Path>,
    reader: Box<dyn BufRead + Send>,
    format: Format,
    array: Option<ArrayScanner>,
    number: u64,
    /// Rest of a line that holds several, because a carriage return also ends one.
    lines: VecDeque<Vec<u8>>,
}

impl RecordReader {
    /// A reader over `files`; each is opened when its turn comes.
    pub fn new(files: impl IntoIterator<Item = InputFile>) -> Self {
        Self { files: files.into_iter().collect(), open: None, bytes_read: 0 }
    }

    /// Bytes of the records so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    fn advance(&mut self) -> Result<Option<RawRecord>> {
        loop {
            if self.open.is_none() {
                let Some(file) = self.files.pop_front() else { return Ok(None) };
                self.open = Some(OpenFile::open(&file)?);
            }
            let open = self.open.as_mut().expect("opened just above");
            match open.record()? {
                Some(bytes) => {
                    self.bytes_read += bytes.len() as u64;
                    let (path, number, format) = (open.path.clone(), open.number, open.format);
                    return Ok(Some(RawRecord { path, number, bytes, format }));
                }
                None => self.open = None,
            }
        }
    }
}

impl Iterator for RecordReader {
    type Item = Result<RawRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.advance().transpose();
        if matches!(record, Some(Err(_))) {
            // Nothing sensible follows an error.
            self.files.clear();
            self.open = None;
        }
        record
    }
}

impl OpenFile {
    fn open(file: &InputFile) -> Result<Self> {
        let mut reader: Box<dyn BufRead + Send> = if file.path == Path::new("-") {
            Box::new(BufReader::with_capacity(1 << 20, std::io::stdin()))
        } else {
            let inner = File::open(&file.path).map_err(Error::io(&file.path))?;
            Box::new(BufReader::with_capacity(1 << 20, inner))
        };
        let mut array = None;
        if file.format == Format::Json {
            let first = (|| {
                if reader.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
                    reader.consume(3);
                }
                while let Some(b' ' | b'\t' | b'\r' | b'\n') = peek(reader.as_mut())? {
                    reader.consume(1);
                }
                peek(reader.as_mut())
            })()
            .map_err(Error::io(&file.path))?;
            if first == Some(b'[') {
                reader.consume(1);
                array = Some(ArrayScanner::default());
            }
        }
        let path = Arc::from(file.path.as_path());
        Ok(Self { path, reader, format: file.format, array, number: 0, lines: VecDeque::new() })
    }

    fn record(&mut self) -> Result<Option<Vec<u8>>> {
        let bytes = match self.format {
            Format::Whole => self.whole()?,
            Format::Lines => self.line_of_text()?,
            Format::Json => self.object()?,
        };
        self.number += u64::from(bytes.is_some());
        Ok(bytes)
    }

    fn object(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(array) = &mut self.array {
            let mut out = Vec::new();
            let more = array.next(self.reader.as_mut(), &mut out, MAX_RECORD_BYTES);
            let more = more.map_err(|e| self.error_after(e))?;
            return Ok(more.then_some(out));
        }
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// A line without its `\n`.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let limit = MAX_RECORD_BYTES as u64 + 1;
        let count = self.reader.as_mut().take(limit).read_until(b'\n', &mut line);
        let count = count.map_err(|e| self.error_after(e))?;
        if count as u64 == limit {
            return Err(self.record_error(format!("longer than {MAX_RECORD_BYTES} bytes")));
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        Ok((count > 0).then_some(line))
    }

    /// `\n`, `\r\n` and `\r` end a line of text.
    fn line_of_text(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(line) = self.lines.pop_front() {
            return Ok(Some(line));
        }
        let Some(mut line) = self.line()? else { return Ok(None) };
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if !line.contains(&b'\r') {
            return Ok(Some(line));
        }
        self.lines.extend(line.split(|&b| b == b'\r').map(<[u8]>::to_vec));
        Ok(self.lines.pop_front())
    }

    fn whole(&mut self) -> Result<Option<Vec<u8>>> {
        if self.number > 0 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let limit = MAX_RECORD_BYTES as u64 + 1;
        let count = self.reader.as_mut().take(limit).read_to_end(&mut bytes);
        let count = count.map_err(|e| self.error_after(e))?;
        if count as u64 == limit {
            return Err(self.record_error(format!("longer than {MAX_RECORD_BYTES} bytes")));
        }
        Ok(Some(bytes))
    }

    fn record_error(&self, reason: String) -> Error {
        Error::Record { path: self.path.to_path_buf(), record: self.number + 1, reason }
    }

    fn error_after(&self, error: std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::InvalidData {
            return self.record_error(error.to_string());
        }
        Error::Io { path: self.path.to_path_buf(), source: error }
    }
}
