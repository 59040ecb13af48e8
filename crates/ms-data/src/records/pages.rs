//! How large the pages of a Parquet file claim to be, before a library takes memory for one.
//!
//! # Source
//! Apache Parquet format 2.12, `parquet.thrift`, `PageHeader`; Apache Thrift's compact protocol.

use bytes::Bytes;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;

/// Bytes that are read of a header at first, and at most: statistics in it may hold whole values.
const READ: [usize; 2] = [4 << 10, 64 << 20];

/// The first page of a file that unpacks to more than `most` bytes: how many it claims.
pub(super) fn too_large<R: ChunkReader>(input: &R, metadata: &ParquetMetaData, most: u64) -> Option<u64> {
    for column in metadata.row_groups().iter().flat_map(parquet::file::metadata::RowGroupMetaData::columns) {
        let (start, length) = column.byte_range();
        let (mut at, end) = (start, start.saturating_add(length).min(input.len()));
        while at < end {
            // What is no header the library says better.
            let Some(header) = header(input, at, end) else { break };
            if header.unpacked > most {
                return Some(header.unpacked);
            }
            at = at.saturating_add(header.length).saturating_add(header.packed).max(at + 1);
        }
    }
    None
}

struct Header {
    length: u64,
    packed: u64,
    unpacked: u64,
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
    let (mut sizes, mut field) = ([None; 2], 0);
    while let Some((id, kind)) = thrift.field(field)? {
        field = id;
        match id {
            2 | 3 if kind == 5 => sizes[id as usize - 2] = Some(thrift.zigzag()?),
            _ => thrift.skip(kind, 0)?,
        }
    }
    let size = |n: Option<i64>| u64::try_from(n?).ok();
    let length = (bytes.len() - thrift.rest.len()) as u64;
    Some(Header { length, packed: size(sizes[1])?, unpacked: size(sizes[0])? })
}

/// A reader of the compact protocol that only skips.
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
