//! A memory-mapped stream file, whose rows can be taken in any order without copies.

use super::StreamInfo;
use super::batch::{Batch, body_bytes, parse_schema};
use super::reader::{CONTINUATION, MAX_BODY, MAX_METADATA};
use super::seal;
use crate::{Error, Result};
use ms_files::Mapped;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// A token stream in a file. Memory of its own: a few bytes per batch of rows; the rows are the file's pages.
pub struct TokenMap {
    file: Mapped,
    columns: Vec<String>,
    info: StreamInfo,
    batches: Vec<(Range<usize>, Batch)>,
    /// Rows up to the end of each batch.
    ends: Vec<u64>,
}

/// A row of a [`TokenMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    batch: u32,
    row: u32,
}

impl TokenMap {
    /// Maps a stream and checks its form and its checksums; the end mark is required.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::TokenStream`] if it is not a whole token stream.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Mapped::open(path)?;
        let bad = |reason: String| Error::TokenStream { name: path.display().to_string(), reason };
        let bytes = file.bytes();
        let (mut columns, mut info) = (Vec::new(), StreamInfo::default());
        let (mut batches, mut ends) = (Vec::new(), Vec::new());
        let (mut at, mut rows, mut sealed) = (0, 0u64, false);
        while let Some((metadata, body)) = next_message(bytes, &mut at).map_err(&bad)? {
            let metadata = &bytes[metadata];
            sealed |= seal::check(metadata, &bytes[body.clone()], sealed).map_err(&bad)?;
            if columns.is_empty() {
                (columns, info) = parse_schema(metadata).map_err(&bad)?;
                continue;
            }
            let batch = Batch::parse(metadata, &bytes[body.clone()], columns.len()).map_err(&bad)?;
            rows += batch.rows as u64;
            ends.push(rows);
            batches.push((body, batch));
        }
        if columns.is_empty() {
            return Err(bad("it ends before its schema".into()));
        }
        if at < bytes.len() {
            return Err(bad("something follows its end mark".into()));
        }
        Ok(Self { file, columns, info, batches, ends })
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// What the stream says about itself.
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = RowPlace> + '_ {
        (0..)
            .zip(&self.batches)
            .flat_map(|(batch, (_, parsed))| (0..parsed.rows as u32).map(move |row| RowPlace { batch, row }))
    }

    /// The sequence of a column in a row; `None` where the row has none.
    ///
    /// # Panics
    /// If the row is one of another stream, or there is no such column.
    pub fn sequence(&self, place: RowPlace, column: usize) -> Option<Cow<'_, [i32]>> {
        let (body, batch) = &self.batches[place.batch as usize];
        batch.tokens(&self.file.bytes()[body.clone()], column, place.row as usize)
    }
}

/// Where the header and the body of a message lie.
type Message = (Range<usize>, Range<usize>);

/// Header and body of the message at `at`, which is advanced past it; `None` at the end marker.
fn next_message(bytes: &[u8], at: &mut usize) -> std::result::Result<Option<Message>, String> {
    let mut take = |length: u64| -> Option<Range<usize>> {
        let end = at.checked_add(usize::try_from(length).ok()?).filter(|&end| end <= bytes.len())?;
        Some(std::mem::replace(at, end)..end)
    };
    if take(0).is_some_and(|here| here.start == bytes.len()) {
        return Err("its end mark is missing; whatever wrote it did not finish".into());
    }
    let start = take(8).map(|range| &bytes[range]).filter(|start| start[..4] == CONTINUATION);
    let start = start.ok_or("expected the start of a message")?;
    let length = u64::from(u32::from_le_bytes([start[4], start[5], start[6], start[7]]));
    if length == 0 {
        return Ok(None);
    }
    if length > MAX_METADATA {
        return Err(format!("a message header of {length} bytes"));
    }
    let cut = "it is cut short inside a message";
    let metadata = take(length).ok_or(cut)?;
    let claim = body_bytes(&bytes[metadata.clone()])?;
    if claim > MAX_BODY {
        return Err("a message claims an impossible size".into());
    }
    let body = take(claim).ok_or(cut)?;
    Ok(Some((metadata, body)))
}
