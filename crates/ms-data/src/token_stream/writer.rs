//! Writing a stream, with its end marker.

use super::StreamInfo;
use super::seal::seal;
use crate::handler::Row;
use crate::sink::{Output, Sink, Summary};
use crate::{Error, Result};
use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use std::io::Write;
use std::sync::Arc;

/// A batch is written when it holds this many tokens in all columns, or rows.
const BATCH_TOKENS: usize = 1 << 18;
const BATCH_ROWS: usize = 1 << 12;

/// Writes a token stream.
pub struct TokenWriter<W: Write> {
    /// Makes messages, which go out sealed.
    inner: StreamWriter<Vec<u8>>,
    out: W,
    name: String,
    schema: Arc<Schema>,
    columns: Vec<Column>,
    rows: usize,
    tokens: usize,
}

#[derive(Default)]
struct Column {
    values: Vec<i32>,
    ends: Vec<i32>,
    present: Vec<bool>,
}

impl<W: Write> TokenWriter<W> {
    /// Writes the schema. `name` says in errors where the stream goes.
    ///
    /// # Errors
    /// [`Error::Stream`].
    pub fn new(out: W, name: &str, columns: &[String], info: &StreamInfo) -> Result<Self> {
        let item = Arc::new(Field::new("item", DataType::Int32, false));
        let fields: Vec<Field> =
            columns.iter().map(|key| Field::new(key, DataType::List(item.clone()), true)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, info.to_metadata()));
        let inner = StreamWriter::try_new(Vec::new(), &schema).map_err(|e| stream_error(name, e))?;
        let columns = columns.iter().map(|_| Column::default()).collect();
        let mut writer = Self { inner, out, name: name.into(), schema, columns, rows: 0, tokens: 0 };
        writer.send()?;
        Ok(writer)
    }

    /// Sends the message that the inner writer has made.
    fn send(&mut self) -> Result<()> {
        let message = self.inner.get_mut();
        seal(message);
        let sent = self.out.write_all(message);
        message.clear();
        sent.map_err(|source| Error::Stream { name: self.name.clone(), source })
    }

    /// Takes a row; it is written with its batch.
    ///
    /// # Errors
    /// [`Error::Stream`]; [`Error::Options`] if the row has another number of columns.
    pub fn push(&mut self, row: Row) -> Result<()> {
        if row.continues {
            return Err(Error::options(
                "a document of several sequences has no place in a token stream\nhint: pass --output-prefix",
            ));
        }
        if row.columns.len() != self.columns.len() {
            return Err(Error::options(format!(
                "a row of {} columns for a stream of {}",
                row.columns.len(),
                self.columns.len()
            )));
        }
        let tokens: usize = row.columns.iter().flatten().map(Vec::len).sum();
        if self.rows == BATCH_ROWS || (self.rows > 0 && self.tokens + tokens > BATCH_TOKENS) {
            self.flush()?;
        }
        for (column, sequence) in self.columns.iter_mut().zip(row.columns) {
            column.present.push(sequence.is_some());
            column.values.extend_from_slice(sequence.as_deref().unwrap_or_default());
            let end = i32::try_from(column.values.len())
                .map_err(|_| Error::options(format!("{}: a row of more than 2^31 tokens", self.name)))?;
            column.ends.push(end);
        }
        self.rows += 1;
        self.tokens += tokens;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let arrays = self.schema.fields().iter().zip(&mut self.columns).map(|(field, column)| {
            let Column { values, ends, present } = std::mem::take(column);
            let DataType::List(item) = field.data_type() else { unreachable!("every field is a list") };
            let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
            let nulls = present.contains(&false).then(|| NullBuffer::from(present));
            let list = ListArray::new(
                item.clone(),
                OffsetBuffer::new(ScalarBuffer::from(offsets)),
                Arc::new(Int32Array::from(values)),
                nulls,
            );
            Arc::new(list) as ArrayRef
        });
        let batch = RecordBatch::try_new(self.schema.clone(), arrays.collect())
            .and_then(|batch| self.inner.write(&batch));
        self.rows = 0;
        self.tokens = 0;
        batch.map_err(|e| stream_error(&self.name, e))?;
        self.send()
    }

    /// Writes the last batch and the end mark, and flushes.
    ///
    /// # Errors
    /// [`Error::Stream`].
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.inner.finish().map_err(|e| stream_error(&self.name, e))?;
        let end = self.out.write_all(self.inner.get_ref()).and_then(|()| self.out.flush());
        end.map_err(|source| Error::Stream { name: self.name, source })
    }
}

fn stream_error(name: &str, error: ArrowError) -> Error {
    let source = match error {
        ArrowError::IoError(_, source) => source,
        other => std::io::Error::other(other.to_string()),
    };
    Error::Stream { name: name.into(), source }
}

/// Rows into a token stream.
pub struct TokenStreamSink<W: Write> {
    writer: TokenWriter<W>,
    outputs: Vec<Output>,
}

impl<W: Write> TokenStreamSink<W> {
    /// Starts the stream.
    ///
    /// # Errors
    /// [`Error::Stream`].
    pub fn new(out: W, name: &str, columns: &[String], info: &StreamInfo) -> Result<Self> {
        let outputs =
            columns.iter().map(|key| Output { prefix: key.into(), sequences: 0, tokens: 0 }).collect();
        Ok(Self { writer: TokenWriter::new(out, name, columns, info)?, outputs })
    }
}

impl<W: Write + Send> Sink for TokenStreamSink<W> {
    fn row(&mut self, row: Row) -> Result<()> {
        for (output, sequence) in self.outputs.iter_mut().zip(&row.columns) {
            output.sequences += u64::from(sequence.is_some());
            output.tokens += sequence.as_ref().map_or(0, Vec::len) as u64;
        }
        self.writer.push(row)
    }

    fn end_part(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish_after(self: Box<Self>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Summary> {
        ready()?;
        self.writer.finish()?;
        Ok(Summary { outputs: self.outputs, ..Summary::default() })
    }
}
