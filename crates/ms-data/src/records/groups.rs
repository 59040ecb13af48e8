//! The row groups of a Parquet file, one after another, in bounded memory.

use super::pages::Chunk;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Rows of a batch at most, the bytes that it is meant to refer to, and the values of lists in it.
const BATCH_ROWS: u64 = 1024;
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_VALUES: u64 = 4 << 20;
/// What a single row may refer to, in longest records.
const ROW_RECORDS: u64 = 16;

/// Batches of rows.
pub(super) trait ParquetBatches: Send {
    fn next(&mut self) -> Result<Option<RecordBatch>>;
}

/// A file whose parts can be read again and again.
pub(super) trait Input: ChunkReader + Sized + 'static {
    fn again(&self) -> Result<Self>;
}

impl Input for std::fs::File {
    fn again(&self) -> Result<Self> {
        self.try_clone()
    }
}

impl Input for bytes::Bytes {
    fn again(&self) -> Result<Self> {
        Ok(self.clone())
    }
}

/// Reads group by group. Texts are views into the pages they stand in, so a value of a dictionary stays one value in memory
/// however many rows have it, and columns that no object can hold are not read at all.
pub(super) struct Groups<R> {
    input: Arc<R>,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    /// Which leaves are read.
    leaves: Vec<bool>,
    next: usize,
    open: Option<ParquetRecordBatchReader>,
    most: u64,
}

impl<R: Input> Groups<R> {
    /// `most` is the longest record in bytes.
    pub(super) fn new(input: R, most: usize) -> Result<Self> {
        let failed = |e: parquet::errors::ParquetError| bad(e.to_string());
        let plain = ArrowReaderMetadata::load(&input, ArrowReaderOptions::default()).map_err(failed)?;
        let count = plain.parquet_schema().num_columns();
        let mut leaves = Vec::new();
        plain.schema().fields().iter().for_each(|field| mark(field.data_type(), true, &mut leaves));
        if leaves.len() != count {
            leaves = vec![true; count];
        }
        let schema = Arc::new(Schema::new_with_metadata(
            views(plain.schema().fields()),
            plain.schema().metadata().clone(),
        ));
        let options = ArrowReaderOptions::new().with_schema(schema);
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(plain.metadata()), options).map_err(failed)?;
        let mask = ProjectionMask::leaves(
            plain.parquet_schema(),
            leaves.iter().enumerate().filter(|(_, taken)| **taken).map(|(leaf, _)| leaf),
        );
        let most = most as u64;
        Ok(Self { input: Arc::new(input), metadata, mask, leaves, next: 0, open: None, most })
    }

    /// A reader of group `group`, whose batches are as long as its pages allow.
    fn open(&self, group: usize) -> Result<ParquetRecordBatchReader> {
        let hint = |reason: String| bad(format!("{reason}\nhint: raise --max-record-bytes"));
        let row_group = self.metadata.metadata().row_group(group);
        let rows = usize::try_from(row_group.num_rows()).unwrap_or(0);
        let columns = row_group.columns().iter().zip(&self.leaves).filter(|(_, taken)| **taken);
        let chunks: Vec<Chunk> = columns
            .map(|(column, _)| Chunk::of(&self.input, column, rows, self.most).map_err(hint))
            .collect::<Result<_>>()?;
        let bytes = |rows: u64| chunks.iter().fold(0u64, |sum, chunk| sum.saturating_add(chunk.bytes(rows)));
        let (single, bound) = (bytes(1), self.most.saturating_mul(ROW_RECORDS));
        if single > bound {
            return Err(hint(format!(
                "the pages of a row unpack to {single} bytes, at most {bound} are taken"
            )));
        }
        let values = chunks.iter().map(Chunk::longest).max().unwrap_or(1);
        let mut at_once = BATCH_ROWS.min(BATCH_VALUES / values.max(1)).max(1);
        // What a single row holds in memory is there anyway.
        while at_once > 1 && bytes(at_once) > BATCH_BYTES.max(single.saturating_mul(2)) {
            at_once /= 2;
        }
        ParquetRecordBatchReaderBuilder::new_with_metadata(self.input.again()?, self.metadata.clone())
            .with_row_groups(vec![group])
            .with_projection(self.mask.clone())
            .with_batch_size(at_once as usize)
            .build()
            .map_err(|e| bad(e.to_string()))
    }
}

impl<R: Input> ParquetBatches for Groups<R> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(reader) = &mut self.open {
                if let Some(batch) = reader.next() {
                    return batch.map(Some).map_err(|e| bad(e.to_string()));
                }
                self.open = None;
            }
            if self.next == self.metadata.metadata().num_row_groups() {
                return Ok(None);
            }
            // Behind a group that cannot be read nothing is.
            let group = std::mem::replace(&mut self.next, self.metadata.metadata().num_row_groups());
            self.open = Some(self.open(group)?);
            self.next = group + 1;
        }
    }
}

/// Texts as views, lists without a length of their own, dictionaries as their values.
fn views(fields: &Fields) -> Fields {
    let view = |field: &Arc<Field>| {
        let data_type = view_of(field.data_type());
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    fields.iter().map(view).collect()
}

fn view_of(data_type: &DataType) -> DataType {
    let item = |item: &Arc<Field>| Arc::new(item.as_ref().clone().with_data_type(view_of(item.data_type())));
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Dictionary(_, values) => view_of(values),
        DataType::List(field) | DataType::FixedSizeList(field, _) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::Struct(fields) => DataType::Struct(views(fields)),
        other => other.clone(),
    }
}

/// Marks the leaves of a column that objects can hold, in the order of the file.
fn mark(data_type: &DataType, taken: bool, leaves: &mut Vec<bool>) {
    let taken = taken && known(data_type);
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => mark(field.data_type(), taken, leaves),
        DataType::Struct(fields) => fields.iter().for_each(|field| mark(field.data_type(), taken, leaves)),
        _ => leaves.push(taken),
    }
}

/// Whether values of this type become JSON.
pub(super) fn known(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::Boolean | DataType::Struct(_) => true,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Float32 | DataType::Float64 => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            known(item.data_type())
        }
        DataType::Dictionary(_, values) => known(values),
        other => other.is_integer(),
    }
}

pub(super) fn bad(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, reason.into())
}
