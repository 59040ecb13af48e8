//! Reading a stream, with its end mark demanded.

use super::StreamInfo;
use crate::handler::Row;
use crate::{Error, Result};
use arrow_ipc::{MessageHeader, RecordBatch, Schema, Type};
use std::collections::{HashMap, VecDeque};
use std::io::{BufReader, Read};

/// Before every message, instead of a length.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Longest metadata and body that are read, in bytes; this program writes far smaller ones.
const MAX_METADATA: u64 = 1 << 24;
const MAX_BODY: u64 = 1 << 31;

/// Reads a token stream row by row; ends without error only after the end mark.
pub struct TokenReader<R: Read> {
    input: BufReader<R>,
    name: String,
    columns: Vec<String>,
    info: StreamInfo,
    rows: VecDeque<Row>,
    ended: bool,
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
        let claim = arrow_ipc::root_as_message(&metadata)
            .map_err(|e| e.to_string())
            .map(|message| message.bodyLength());
        let claim = claim.map_err(|e| self.bad(format!("a broken message header: {e}")))?;
        let claim = u64::try_from(claim).ok().filter(|&n| n <= MAX_BODY);
        let claim = claim.ok_or_else(|| self.bad("a message claims an impossible size"))?;
        self.fill(&mut body, claim)?;
        self.message = Message { metadata, body };
        Ok(true)
    }

    fn next_batch(&mut self) -> Result<bool> {
        if !self.next_message()? {
            let mut rest = [0];
            let more = self.input.read(&mut rest).map_err(|e| self.stream(e))?;
            return if more == 0 { Ok(false) } else { Err(self.bad("something follows its end mark")) };
        }
        let rows = parse_batch(&self.message, self.columns.len()).map_err(|reason| self.bad(reason))?;
        self.rows.extend(rows);
        Ok(true)
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

fn parse_schema(metadata: &[u8]) -> std::result::Result<(Vec<String>, StreamInfo), String> {
    let message = arrow_ipc::root_as_message(metadata).map_err(|e| e.to_string())?;
    if message.header_type() != MessageHeader::Schema {
        return Err("expected a schema first".into());
    }
    let schema: Schema<'_> = message.header_as_schema().ok_or("its schema is broken")?;
    if schema.endianness() != arrow_ipc::Endianness::Little {
        return Err("expected little-endian numbers".into());
    }
    let mut pairs = HashMap::new();
    for pair in schema.custom_metadata().into_iter().flatten() {
        if let (Some(key), Some(value)) = (pair.key(), pair.value()) {
            pairs.insert(key.to_owned(), value.to_owned());
        }
    }
    let info = StreamInfo::from_metadata(&pairs)?;
    let mut columns = Vec::new();
    for field in schema.fields().into_iter().flatten() {
        let name = field.name().ok_or("a column has no name")?.to_owned();
        let child = field.children().filter(|list| list.len() == 1).map(|list| list.get(0));
        let number = child.filter(|_| field.type_type() == Type::List).and_then(|child| child.type_as_int());
        if !number.is_some_and(|n| n.bitWidth() == 32 && n.is_signed()) || field.dictionary().is_some() {
            return Err(format!("column {name:?}: expected a list of 32-bit integers"));
        }
        if columns.contains(&name) {
            return Err(format!("column {name:?} occurs twice"));
        }
        columns.push(name);
    }
    if columns.is_empty() {
        return Err("it has no column".into());
    }
    Ok((columns, info))
}

/// Rows of a record batch. Per column there are two nodes (list, values) and four buffers (list validity, offsets,
/// value validity, values).
fn parse_batch(message: &Message, columns: usize) -> std::result::Result<Vec<Row>, String> {
    let parsed = arrow_ipc::root_as_message(&message.metadata).map_err(|e| e.to_string())?;
    let batch: RecordBatch<'_> = parsed.header_as_record_batch().ok_or("expected a batch of rows")?;
    if batch.compression().is_some() {
        return Err("compressed batches are not read".into());
    }
    let rows = usize::try_from(batch.length()).map_err(|_| "a batch of negative length")?;
    let (nodes, buffers) = batch.nodes().zip(batch.buffers()).ok_or("a batch without columns")?;
    if nodes.len() != columns * 2 || buffers.len() != columns * 4 {
        return Err(format!(
            "a batch of {} nodes and {} buffers for {columns} columns",
            nodes.len(),
            buffers.len()
        ));
    }
    let buffer = |i: usize| -> std::result::Result<&[u8], String> {
        let place = buffers.get(i);
        let (start, length) = (usize::try_from(place.offset()).ok(), usize::try_from(place.length()).ok());
        let range = start.zip(length).and_then(|(start, length)| Some(start..start.checked_add(length)?));
        range
            .and_then(|range| message.body.get(range))
            .ok_or_else(|| "a buffer outside its message".to_owned())
    };
    let mut out: Vec<Row> = Vec::new();
    // Each row needs an offset of four bytes in the body, so this cannot be made to allocate more than was sent.
    if rows > message.body.len() / 4 {
        return Err(format!("{rows} rows in a body of {} bytes", message.body.len()));
    }
    out.resize_with(rows, Row::default);
    for column in 0..columns {
        let (list, values) = (nodes.get(column * 2), nodes.get(column * 2 + 1));
        if list.length() != batch.length() || values.null_count() != 0 {
            return Err("a column disagrees with its batch, or holds null tokens".into());
        }
        let validity = if list.null_count() > 0 { Some(buffer(column * 4)?) } else { None };
        if validity.is_some_and(|bits| bits.len() < rows.div_ceil(8)) {
            return Err("a column's null marks are too short".into());
        }
        let offsets = buffer(column * 4 + 1)?;
        let tokens = buffer(column * 4 + 3)?;
        if offsets.len() < (rows + 1) * 4 {
            return Err("a column's offsets are too short".into());
        }
        let offset = |i: usize| {
            let bytes = offsets[i * 4..i * 4 + 4].try_into().expect("four bytes");
            usize::try_from(i32::from_le_bytes(bytes)).map_err(|_| "a negative offset".to_owned())
        };
        for (i, row) in out.iter_mut().enumerate() {
            let (start, end) = (offset(i)?, offset(i + 1)?);
            let bytes = end.checked_mul(4).and_then(|end| tokens.get(start.checked_mul(4)?..end));
            let bytes = bytes.ok_or("an offset outside its column")?;
            let present = validity.is_none_or(|bits| bits[i / 8] >> (i % 8) & 1 == 1);
            let ids = bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")));
            row.columns.push(present.then(|| ids.collect()));
        }
    }
    Ok(out)
}
