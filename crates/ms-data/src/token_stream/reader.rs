//! Reading a stream; the end marker is required.

use super::StreamInfo;
use super::batch::{Batch, body_bytes, parse_schema};
use super::seal;
use crate::handler::Row;
use crate::{Error, Result};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{BufReader, Read};

/// Before every message, instead of a length.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];
/// Longest metadata and body that are read, in bytes; this program writes far smaller ones.
pub(super) const MAX_METADATA: u64 = 1 << 24;
pub(super) const MAX_BODY: u64 = 1 << 31;

/// Reads a token stream row by row; ends without error only after the end mark.
pub struct TokenReader<R: Read> {
    input: BufReader<R>,
    name: String,
    columns: Vec<String>,
    info: StreamInfo,
    rows: VecDeque<Row>,
    ended: bool,
    /// Whether every message has a checksum, as the first one has.
    sealed: bool,
    /// The last message; its memory is used again for the next one.
    message: Message,
}

/// A message's header and body.
#[derive(Default)]
struct Message {
    metadata: Vec<u8>,
    body: Vec<u8>,
}

impl<R: Read> TokenReader<R> {
    /// Reads and checks the schema. `name` says in errors where the stream comes from.
    ///
    /// # Errors
    /// [`Error::Stream`]; [`Error::TokenStream`] if it is not a token stream.
    pub fn new(input: R, name: &str) -> Result<Self> {
        let mut reader = Self {
            input: BufReader::with_capacity(1 << 20, input),
            name: name.into(),
            columns: Vec::new(),
            info: StreamInfo::default(),
            rows: VecDeque::new(),
            ended: false,
            sealed: false,
            message: Message::default(),
        };
        if !reader.next_message()? {
            return Err(reader.bad("it ends before its schema"));
        }
        let parsed = parse_schema(&reader.message.metadata);
        (reader.columns, reader.info) = parsed.map_err(|reason| reader.bad(reason))?;
        Ok(reader)
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// What the stream says about itself.
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    fn bad(&self, reason: impl Into<String>) -> Error {
        Error::TokenStream { name: self.name.clone(), reason: reason.into() }
    }

    fn stream(&self, source: std::io::Error) -> Error {
        Error::Stream { name: self.name.clone(), source }
    }

    /// Exactly `length` bytes into `out`; memory grows with what arrives, not with what is claimed.
    fn fill(&mut self, out: &mut Vec<u8>, length: u64) -> Result<()> {
        out.clear();
        out.reserve(length.min(1 << 20) as usize);
        (&mut self.input).take(length).read_to_end(out).map_err(|e| self.stream(e))?;
        if out.len() as u64 == length { Ok(()) } else { Err(self.bad("it is cut short inside a message")) }
    }

    /// Reads the next message; false at the end mark.
    fn next_message(&mut self) -> Result<bool> {
        let mut start = Vec::new();
        (&mut self.input).take(8).read_to_end(&mut start).map_err(|e| self.stream(e))?;
        if start.is_empty() {
            return Err(self.bad("its end mark is missing; whatever wrote it did not finish"));
        }
        if start.len() < 8 || start[..4] != CONTINUATION {
            return Err(self.bad("expected the start of a message"));
        }
        let length = u32::from_le_bytes(start[4..8].try_into().expect("four bytes"));
        if length == 0 {
            return Ok(false);
        }
        if u64::from(length) > MAX_METADATA {
            return Err(self.bad(format!("a message header of {length} bytes")));
        }
        let Message { mut metadata, mut body } = std::mem::take(&mut self.message);
        self.fill(&mut metadata, length.into())?;
        let claim = body_bytes(&metadata).map_err(|reason| self.bad(reason))?;
        if claim > MAX_BODY {
            return Err(self.bad("a message claims an impossible size"));
        }
        self.fill(&mut body, claim)?;
        let sealed = seal::check(&metadata, &body, self.sealed).map_err(|reason| self.bad(reason))?;
        self.sealed |= sealed;
        self.message = Message { metadata, body };
        Ok(true)
    }

    /// The next rows, as they lie in memory; `None` after the end mark. Not to be mixed with the iterator, which may hold
    /// rows of its own.
    ///
    /// # Errors
    /// [`Error::Stream`]; [`Error::TokenStream`].
    pub fn next_rows(&mut self) -> Result<Option<Rows<'_>>> {
        Ok(self.parsed_batch()?.map(|batch| Rows { batch, body: &self.message.body }))
    }

    fn parsed_batch(&mut self) -> Result<Option<Batch>> {
        if !self.next_message()? {
            let mut rest = [0];
            let more = self.input.read(&mut rest).map_err(|e| self.stream(e))?;
            return if more == 0 { Ok(None) } else { Err(self.bad("something follows its end mark")) };
        }
        let Message { metadata, body } = &self.message;
        Batch::parse(metadata, body, self.columns.len()).map(Some).map_err(|reason| self.bad(reason))
    }

    fn next_batch(&mut self) -> Result<bool> {
        let Some(batch) = self.parsed_batch()? else { return Ok(false) };
        let body = &self.message.body;
        let ids = |bytes: &[u8]| {
            bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        self.rows.extend((0..batch.rows).map(|row| {
            let columns = 0..self.columns.len();
            Row::new(columns.map(|column| batch.sequence(body, column, row).map(ids)).collect())
        }));
        Ok(true)
    }
}

/// Some rows of a stream, without copies.
pub struct Rows<'a> {
    batch: Batch,
    body: &'a [u8],
}

impl Rows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.batch.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.batch.rows == 0
    }

    /// The sequence of a column in a row; `None` where the row has none.
    ///
    /// # Panics
    /// If there is no such row or column.
    pub fn sequence(&self, row: usize, column: usize) -> Option<Cow<'_, [i32]>> {
        self.batch.tokens(self.body, column, row)
    }
}

impl<R: Read> Iterator for TokenReader<R> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.rows.is_empty() && !self.ended {
            match self.next_batch() {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        self.rows.pop_front().map(Ok)
    }
}
