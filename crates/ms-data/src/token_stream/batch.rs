//! Positions of a record batch's rows in its body, validated.

use super::StreamInfo;
use arrow_ipc::{MessageHeader, RecordBatch, Schema, Type};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

type Result<T> = std::result::Result<T, String>;

/// Names of the columns and what the stream says of itself, from the header of the first message.
pub(super) fn parse_schema(metadata: &[u8]) -> Result<(Vec<String>, StreamInfo)> {
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
    let (mut columns, mut seen) = (Vec::new(), HashSet::new());
    for field in schema.fields().into_iter().flatten() {
        let name = field.name().ok_or("a column has no name")?.to_owned();
        let child = field.children().filter(|list| list.len() == 1).map(|list| list.get(0));
        let number = child.filter(|_| field.type_type() == Type::List).and_then(|child| child.type_as_int());
        if !number.is_some_and(|n| n.bitWidth() == 32 && n.is_signed()) || field.dictionary().is_some() {
            return Err(format!("column {name:?}: expected a list of 32-bit integers"));
        }
        if !seen.insert(name.clone()) {
            return Err(format!("column {name:?} occurs twice"));
        }
        columns.push(name);
    }
    if columns.is_empty() {
        return Err("it has no column".into());
    }
    Ok((columns, info))
}

/// Bytes of the body that follows a message's header, as it claims.
pub(super) fn body_bytes(metadata: &[u8]) -> Result<u64> {
    let message =
        arrow_ipc::root_as_message(metadata).map_err(|e| format!("a broken message header: {e}"))?;
    u64::try_from(message.bodyLength()).map_err(|_| "a message claims an impossible size".into())
}

/// A batch whose buffers and offsets all lie inside its body.
pub(super) struct Batch {
    pub(super) rows: usize,
    columns: Vec<Column>,
}

/// Buffers of a column, as ranges of the body.
struct Column {
    /// A bit per row that says whether it has a sequence; absent if all have.
    present: Option<Range<usize>>,
    offsets: Range<usize>,
    tokens: Range<usize>,
}

impl Batch {
    /// Reads a batch's header and checks it against the body. Per column there are two nodes (list, values) and four
    /// buffers (list validity, offsets, value validity, values).
    pub(super) fn parse(metadata: &[u8], body: &[u8], columns: usize) -> Result<Self> {
        let parsed = arrow_ipc::root_as_message(metadata).map_err(|e| e.to_string())?;
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
        // Each row needs an offset of four bytes in the body, so this cannot be made to allocate more than was sent.
        if rows > body.len() / 4 {
            return Err(format!("{rows} rows in a body of {} bytes", body.len()));
        }
        let buffer = |i: usize| -> Result<Range<usize>> {
            let place = buffers.get(i);
            let start = usize::try_from(place.offset()).ok();
            let range = start.zip(usize::try_from(place.length()).ok());
            let range = range.and_then(|(start, length)| Some(start..start.checked_add(length)?));
            range.filter(|range| range.end <= body.len()).ok_or_else(|| "a buffer outside its message".into())
        };
        // Columns lie one after the other: of what they shared, each row would be as long as all of it, over and over.
        let mut claimed = 0usize;
        let mut out = Self { rows, columns: Vec::with_capacity(columns) };
        for column in 0..columns {
            let (list, values) = (nodes.get(column * 2), nodes.get(column * 2 + 1));
            if list.length() != batch.length() || values.null_count() != 0 {
                return Err("a column disagrees with its batch, or holds null tokens".into());
            }
            let present = if list.null_count() > 0 { Some(buffer(column * 4)?) } else { None };
            if present.as_ref().is_some_and(|bits| bits.len() < rows.div_ceil(8)) {
                return Err("a column's null marks are too short".into());
            }
            let (offsets, tokens) = (buffer(column * 4 + 1)?, buffer(column * 4 + 3)?);
            claimed = claimed.saturating_add(offsets.len()).saturating_add(tokens.len());
            if claimed > body.len() {
                return Err(format!("its columns claim more than the {} bytes of their batch", body.len()));
            }
            if offsets.len() / 4 < rows + 1 {
                return Err("a column's offsets are too short".into());
            }
            let mut before = 0;
            for offset in body[offsets.clone()].chunks_exact(4).take(rows + 1) {
                let offset = i32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
                if offset < before || offset as usize > tokens.len() / 4 {
                    return Err("an offset outside its column".into());
                }
                before = offset;
            }
            out.columns.push(Column { present, offsets, tokens });
        }
        Ok(out)
    }

    /// Bytes of a sequence, four per token, in the body that the batch was checked against.
    pub(super) fn sequence<'a>(&self, body: &'a [u8], column: usize, row: usize) -> Option<&'a [u8]> {
        let Column { present, offsets, tokens } = &self.columns[column];
        if let Some(bits) = present
            && body[bits.start + row / 8] >> (row % 8) & 1 == 0
        {
            return None;
        }
        let offset = |row: usize| {
            let at = offsets.start + row * 4;
            i32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes")) as usize * 4
        };
        Some(&body[tokens.start + offset(row)..tokens.start + offset(row + 1)])
    }

    /// The tokens of a sequence. Arrow aligns its buffers, so this is a view except for streams of others.
    ///
    /// # Panics
    /// If there is no such row.
    pub(super) fn tokens<'a>(&self, body: &'a [u8], column: usize, row: usize) -> Option<Cow<'a, [i32]>> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let bytes = self.sequence(body, column, row)?;
        Some(match bytemuck::try_cast_slice(bytes) {
            Ok(tokens) if cfg!(target_endian = "little") => Cow::Borrowed(tokens),
            _ => {
                let tokens = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Cow::Owned(tokens.collect())
            }
        })
    }
}
