//! Rows into packs, and packs into indexed datasets.

use super::{Output, Sink, Summary};
use crate::handler::Row;
use crate::indexed::{IndexedWriter, TokenType};
use crate::pack::{PackOptions, Packer};
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Packs rows of input ids, attention mask and labels; every packed row is a sequence and a document of its own.
pub struct PackedSink {
    packer: Packer,
    /// Input ids, attention mask, labels.
    writers: [IndexedWriter; 3],
    /// Columns of the incoming rows that hold input ids and labels.
    columns: (usize, usize),
    packed: u64,
}

impl PackedSink {
    /// Starts the three file pairs; `columns` and `prefixes` belong together.
    ///
    /// # Errors
    /// [`Error::Options`] if the columns are not `input_ids`, `attention_mask` and labels, or the row length is below 2.
    pub fn create(prefixes: &[PathBuf], columns: &[String], options: PackOptions) -> Result<Self> {
        let position = |name: &str| columns.iter().position(|column| column == name);
        let all = (position("input_ids"), position("attention_mask"), position("labels"));
        let ((Some(ids), Some(mask), Some(labels)), 3) = (all, columns.len()) else {
            return Err(Error::options(format!(
                "only instruction data can be packed: expected the columns input_ids, attention_mask and labels, found {}",
                columns.join(", ")
            )));
        };
        if options.row_tokens < 2 || u32::try_from(options.row_tokens).is_err() {
            return Err(Error::options(format!("cannot pack into rows of {} tokens", options.row_tokens)));
        }
        let create = |at: usize| IndexedWriter::create(&prefixes[at], TokenType::I32);
        let writers = [create(ids)?, create(mask)?, create(labels)?];
        Ok(Self { packer: Packer::new(options), writers, columns: (ids, labels), packed: 0 })
    }
}

impl Sink for PackedSink {
    fn row(&mut self, row: Row) -> Result<()> {
        if let (Some(ids), Some(labels)) = (&row.columns[self.columns.0], &row.columns[self.columns.1]) {
            self.packer.add(ids, labels);
        }
        Ok(())
    }

    fn end_part(&mut self) -> Result<()> {
        self.packed += self.packer.len() as u64;
        let writers = &mut self.writers;
        self.packer.finish(|row| {
            for (writer, column) in writers.iter_mut().zip([&row.input_ids, &row.attention_mask, &row.labels])
            {
                writer.sequence(column)?;
                writer.end_document();
            }
            Ok(())
        })
    }

    fn finish(mut self: Box<Self>) -> Result<Summary> {
        self.end_part()?;
        let mut outputs = Vec::new();
        for writer in self.writers {
            outputs.push(Output {
                prefix: Path::new(writer.prefix()).into(),
                sequences: writer.sequences() as u64,
                tokens: writer.tokens(),
            });
            writer.finish()?;
        }
        Ok(Summary { outputs, too_long: self.packer.dropped(), packed: self.packed })
    }
}
