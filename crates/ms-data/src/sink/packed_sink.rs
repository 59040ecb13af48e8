//! Rows into packs, and packs into indexed datasets.

use super::{Output, Sink, Summary};
use crate::indexed::{IndexedWriter, TokenType};
use crate::pack::{PackOptions, PackedRow, Packer};
use crate::row::Row;
use crate::token_stream::{TokenMap, TokenReader};
use crate::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Packs rows of input ids, attention mask and labels; every packed row is a sequence and a document of its own.
pub struct PackedSink {
    packer: Packer,
    /// Input ids, attention mask, labels.
    writers: [IndexedWriter; 3],
    /// Columns of the incoming rows that hold input ids and labels.
    columns: (usize, usize),
    row_tokens: usize,
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
        options.check()?;
        let create = |at: usize| IndexedWriter::create(&prefixes[at], TokenType::I32);
        let writers = [create(ids)?, create(mask)?, create(labels)?];
        let mut spill = prefixes[ids].as_os_str().to_os_string();
        spill.push(format!(".samples.{}.part", std::process::id()));
        let packer = Packer::new(options, spill.into());
        Ok(Self { packer, writers, columns: (ids, labels), row_tokens: options.row_tokens })
    }

    /// Packs all rows of a stream, faster than row by row and with the same result; returns their number.
    ///
    /// # Errors
    /// What reading and writing give.
    ///
    /// # Panics
    /// If the columns of the stream are not those that the sink was made for.
    pub fn pack_stream(&mut self, mut reader: TokenReader<impl Read>) -> Result<u64> {
        let (writers, (ids, labels)) = (&mut self.writers, self.columns);
        let mut count = 0;
        while let Some(rows) = reader.next_rows()? {
            for row in 0..rows.len() {
                if let (Some(ids), Some(labels)) = (rows.sequence(row, ids), rows.sequence(row, labels)) {
                    self.packer.add(&ids, &labels, |row| write(writers, row))?;
                }
            }
            count += rows.len() as u64;
        }
        Ok(count)
    }

    /// Packs all rows of streams that are files, faster than row by row and with the same result.
    ///
    /// # Errors
    /// What writing gives.
    ///
    /// # Panics
    /// If the columns of a stream are not those that the sink was made for.
    pub fn pack_maps(&mut self, maps: &[TokenMap]) -> Result<()> {
        let writers = &mut self.writers;
        self.packer.pack_maps(maps, self.columns, |row| write(writers, row))
    }
}

impl Sink for PackedSink {
    fn row(&mut self, row: Row) -> Result<()> {
        let (Some(ids), Some(labels)) = (&row.columns[self.columns.0], &row.columns[self.columns.1]) else {
            return Ok(());
        };
        let writers = &mut self.writers;
        self.packer.add(ids, labels, |row| write(writers, row))
    }

    fn end_part(&mut self) -> Result<()> {
        let writers = &mut self.writers;
        self.packer.finish(|row| write(writers, row))
    }

    fn finish_after(mut self: Box<Self>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Summary> {
        self.end_part()?;
        let mut outputs = Vec::new();
        for writer in &self.writers {
            outputs.push(Output {
                prefix: Path::new(writer.prefix()).into(),
                sequences: writer.sequences() as u64,
                tokens: writer.tokens(),
            });
        }
        IndexedWriter::finish_all(self.writers, ready)?;
        let counts = self.packer.counts();
        Ok(Summary {
            outputs,
            too_long: counts.dropped,
            packed: counts.samples,
            fill: Some(counts.fill(self.row_tokens)),
        })
    }
}

fn write(writers: &mut [IndexedWriter; 3], row: &PackedRow) -> Result<()> {
    for (writer, column) in writers.iter_mut().zip([&row.input_ids, &row.attention_mask, &row.labels]) {
        writer.sequence(column)?;
        writer.end_document()?;
    }
    Ok(())
}
