//! What the pages of a Parquet file claim to hold, checked before a library allocates memory for them.
//!
//! A page says how many bytes it decompresses to and how many values it has; the rows of a list are in its levels. From these
//! follow how many rows can be read at once, and what is refused: a few bytes may claim any number of values, and values
//! stored once in a dictionary, or sharing prefixes, any number of bytes.
//!
//! # Source
//! Apache Parquet format 2.12, `parquet.thrift`, `PageHeader`, and its hybrid of runs and packed bits; Apache Thrift's
//! compact protocol.

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, SerializedPageReader};
use std::sync::Arc;

/// Bytes that are read of a header at first, and at most: statistics in it may hold whole values.
const READ: [usize; 2] = [4 << 10, 64 << 20];
/// The number of the encoding whose values share beginnings.
const DELTA_BYTE_ARRAY: i64 = 7;

/// The data pages of a column chunk.
pub(super) struct Chunk {
    /// Bytes of its dictionary, which all its values share.
    dictionary: u64,
    pages: Vec<DataPage>,
    /// Values of the longest row.
    longest: u64,
}

struct DataPage {
    /// Rows that begin in it.
    rows: u64,
    values: u64,
    bytes: u64,
    /// Whether a value may be as long as the page and hold nothing of its own.
    shares: bool,
}

impl Chunk {
    /// Looks through the pages of a column chunk of a group of `rows` rows; `most` is the longest record in bytes.
    ///
    /// # Errors
    /// If a page unpacks to more than four times `most` bytes, or a row holds more than a quarter of `most` values.
    pub(super) fn of<R: ChunkReader + 'static>(
        input: &Arc<R>,
        metadata: &ColumnChunkMetaData,
        rows: usize,
        most: u64,
    ) -> Result<Self, String> {
        let mut out = Self { dictionary: 0, pages: Vec::new(), longest: 1 };
        let (start, length) = metadata.byte_range();
        let (mut at, end) = (start, start.saturating_add(length).min(input.len()));
        while at < end {
            // What is no header the library says better.
            let Some(header) = header(input.as_ref(), at, end) else { break };
            let bytes = header.unpacked;
            if bytes > most.saturating_mul(4) {
                return Err(format!(
                    "a page of it unpacks to {bytes} bytes, at most {} are taken",
                    most.saturating_mul(4)
                ));
            }
            match header.data {
                None => out.dictionary = out.dictionary.saturating_add(bytes),
                Some((values, encoding)) => {
                    let shares = encoding == DELTA_BYTE_ARRAY;
                    out.pages.push(DataPage { rows: values, values, bytes, shares });
                }
            }
            at = at.saturating_add(header.length).saturating_add(header.packed).max(at + 1);
        }
        let levels = metadata.column_descr().max_rep_level();
        if levels > 0 {
            let width = (i16::BITS - levels.leading_zeros()) as usize;
            out.count_rows(input, metadata, rows, width).map_err(|e| e.to_string())?;
            if out.longest > most / 4 {
                let (name, values) = (metadata.column_path().string(), out.longest);
                return Err(format!("a row of {name} holds {values} values, at most {} are taken", most / 4));
            }
        }
        Ok(out)
    }

    /// Counts rows by the levels of lists.
    fn count_rows<R: ChunkReader + 'static>(
        &mut self,
        input: &Arc<R>,
        metadata: &ColumnChunkMetaData,
        rows: usize,
        width: usize,
    ) -> parquet::errors::Result<()> {
        let mut row = Row { values: 0, longest: 1 };
        let mut pages = self.pages.iter_mut();
        for page in SerializedPageReader::new(Arc::clone(input), metadata, rows, None)? {
            let page = page?;
            let levels = match &page {
                Page::DictionaryPage { .. } => continue,
                Page::DataPage { buf, rep_level_encoding: Encoding::RLE, .. } => {
                    let length = buf.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                    buf.get(4..).and_then(|rest| rest.get(..length as usize))
                }
                Page::DataPage { .. } => None,
                Page::DataPageV2 { buf, rep_levels_byte_len, .. } => buf.get(..*rep_levels_byte_len as usize),
            };
            let begun = row.page(levels.unwrap_or_default(), width, u64::from(page.num_values()));
            if let Some(page) = pages.next() {
                page.rows = begun;
            }
        }
        self.longest = row.longest.max(row.values);
        Ok(())
    }

    /// Bytes, at most, that `rows` rows which follow each other refer to: the pages that they touch, and the dictionary.
    pub(super) fn bytes(&self, rows: u64) -> u64 {
        let values = rows.saturating_mul(self.longest);
        let bytes = |page: &DataPage| {
            u128::from(page.bytes) * u128::from(if page.shares { page.values.min(values).max(1) } else { 1 })
        };
        let (mut first, mut inside, mut held, mut most) = (0, 0u64, 0u128, 0u128);
        for (last, page) in self.pages.iter().enumerate() {
            held += bytes(page);
            // All rows of the pages between the first and the last are inside.
            if last > first + 1 {
                inside += self.pages[last - 1].rows;
            }
            while last > first + 1 && inside >= rows {
                held -= bytes(&self.pages[first]);
                first += 1;
                inside -= self.pages[first].rows;
            }
            most = most.max(held);
        }
        u64::try_from(most).unwrap_or(u64::MAX).saturating_add(self.dictionary)
    }

    /// Values of the longest row.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }
}

/// The row that is being counted.
struct Row {
    values: u64,
    longest: u64,
}

impl Row {
    /// Counts the values of a page by its levels; says how many rows begin in it.
    fn page(&mut self, mut levels: &[u8], width: usize, count: u64) -> u64 {
        let (mut left, mut begun) = (count, 0);
        while left > 0 {
            let mut thrift = Thrift { rest: levels };
            let Some(head) = thrift.varint() else { break };
            levels = thrift.rest;
            let values = (head >> 1).saturating_mul(if head & 1 == 1 { 8 } else { 1 }).min(left);
            left -= values;
            if head & 1 == 0 {
                let Some((level, rest)) = levels.split_at_checked(width.div_ceil(8)) else { break };
                levels = rest;
                begun += self.run(level.iter().all(|byte| *byte == 0), values);
                continue;
            }
            let bytes = ((head >> 1) as usize).saturating_mul(width).min(levels.len());
            let (packed, rest) = levels.split_at(bytes);
            for value in 0..values as usize {
                let bit = |at: usize| packed.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
                begun += self.run(!(value * width..(value + 1) * width).any(bit), 1);
            }
            levels = rest;
        }
        // What no level is given for belongs to the row that is open.
        self.values += left;
        begun
    }

    /// `count` values that each begin a row, or none of them; how many rows begin.
    fn run(&mut self, begins: bool, count: u64) -> u64 {
        if !begins {
            self.values += count;
            return 0;
        }
        self.longest = self.longest.max(self.values);
        self.values = u64::from(count > 0);
        count
    }
}

struct Header {
    length: u64,
    packed: u64,
    unpacked: u64,
    /// Values of a data page, and the number of their encoding.
    data: Option<(u64, i64)>,
}

fn header<R: ChunkReader>(input: &R, at: u64, end: u64) -> Option<Header> {
    let mut read = READ[0];
    loop {
        let have = usize::try_from(end - at).unwrap_or(usize::MAX).min(read);
        let bytes: Bytes = input.get_bytes(at, have).ok()?;
        if let Some(header) = parse(&bytes) {
            return Some(header);
        }
        if have < read || read >= READ[1] {
            return None;
        }
        read *= 16;
    }
}

fn parse(bytes: &[u8]) -> Option<Header> {
    let mut thrift = Thrift { rest: bytes };
    let (mut sizes, mut data, mut field) = ([None; 2], None, 0);
    while let Some((id, kind)) = thrift.field(field)? {
        field = id;
        match (id, kind) {
            (2 | 3, 5) => sizes[id as usize - 2] = Some(thrift.zigzag()?),
            // Of either version of a data page: the count of its values is its first field, their encoding the second or
            // the fourth.
            (5 | 8, 12) => {
                let (mut values, mut encoding, mut field) = (0, 0, 0);
                while let Some((inner, kind)) = thrift.field(field)? {
                    field = inner;
                    match (inner, kind) {
                        (1, 5) => values = thrift.zigzag()?,
                        (2, 5) if id == 5 => encoding = thrift.zigzag()?,
                        (4, 5) if id == 8 => encoding = thrift.zigzag()?,
                        _ => thrift.skip(kind, 1)?,
                    }
                }
                data = Some((u64::try_from(values).ok()?, encoding));
            }
            _ => thrift.skip(kind, 0)?,
        }
    }
    let size = |n: Option<i64>| u64::try_from(n?).ok();
    let length = (bytes.len() - thrift.rest.len()) as u64;
    Some(Header { length, packed: size(sizes[1])?, unpacked: size(sizes[0])?, data })
}

/// A reader of the compact protocol.
struct Thrift<'a> {
    rest: &'a [u8],
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field: its number and kind; `None` inside at the end of the struct.
    fn field(&mut self, before: i64) -> Option<Option<(i64, u8)>> {
        let byte = self.byte()?;
        let (delta, kind) = (i64::from(byte >> 4), byte & 15);
        if kind == 0 {
            return Some(None);
        }
        let id = if delta == 0 { self.zigzag()? } else { before.checked_add(delta)? };
        Some(Some((id, kind)))
    }

    fn skip(&mut self, kind: u8, depth: u8) -> Option<()> {
        if depth > 16 {
            return None;
        }
        match kind {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.rest = self.rest.get(8..)?,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.rest = self.rest.get(length..)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                for _ in 0..count {
                    // An element of a list of truth values is a byte.
                    self.skip(if head & 15 <= 2 { 3 } else { head & 15 }, depth + 1)?;
                }
            }
            12 => {
                let mut field = 0;
                while let Some((id, kind)) = self.field(field)? {
                    field = id;
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }
}
