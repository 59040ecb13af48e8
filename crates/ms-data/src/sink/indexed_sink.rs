//! Rows into indexed datasets, document by document.

use super::{Output, Sink, Summary};
use crate::Result;
use crate::handler::Row;
use crate::indexed::{IndexedWriter, TokenType};
use std::path::PathBuf;

/// Rows that upstream looks at together.
const BATCH: usize = 50;

/// Writes one indexed dataset per column, with upstream's rules.
///
/// Rows are taken in batches of 50. Per column, rows without a sequence are left out of the batch; a sequence of
/// `--seq-length` tokens or more marks its place *among those that are left* as skipped, for all columns; then every
/// column writes what is not skipped and closes a document for each place, also where nothing was written. So skipped
/// samples leave empty documents, and columns with gaps may skip a neighbour's place: files must match.
pub struct IndexedSink {
    writers: Vec<IndexedWriter>,
    limit: Option<usize>,
    batch: Vec<Row>,
    documents: usize,
    too_long: u64,
}

impl IndexedSink {
    /// Starts one file pair per prefix; `limit` is `--seq-length`.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn create(prefixes: &[PathBuf], limit: Option<usize>) -> Result<Self> {
        let writers = prefixes
            .iter()
            .map(|prefix| IndexedWriter::create(prefix, TokenType::I32))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { writers, limit, batch: Vec::with_capacity(BATCH), documents: 0, too_long: 0 })
    }

    fn flush(&mut self) -> Result<()> {
        let mut skipped = vec![false; self.batch.len()];
        if let Some(limit) = self.limit {
            for column in 0..self.writers.len() {
                for (place, (sequence, _)) in column_of(&self.batch, column).enumerate() {
                    skipped[place] |= sequence.len() >= limit;
                }
            }
            self.too_long += skipped.iter().filter(|&&s| s).count() as u64;
        }
        for (column, writer) in self.writers.iter_mut().enumerate() {
            for (place, (sequence, continues)) in column_of(&self.batch, column).enumerate() {
                if !skipped[place] {
                    writer.sequence(sequence)?;
                }
                if !continues {
                    writer.end_document()?;
                }
            }
        }
        self.batch.clear();
        self.documents = 0;
        Ok(())
    }
}

/// Sequences of a column, and whether the document goes on after them.
fn column_of(batch: &[Row], column: usize) -> impl Iterator<Item = (&Vec<i32>, bool)> {
    batch.iter().filter_map(move |row| row.columns[column].as_ref().map(|column| (column, row.continues)))
}

impl Sink for IndexedSink {
    fn row(&mut self, row: Row) -> Result<()> {
        self.documents += usize::from(!row.continues);
        self.batch.push(row);
        if self.documents == BATCH { self.flush() } else { Ok(()) }
    }

    fn end_part(&mut self) -> Result<()> {
        self.flush()
    }

    fn finish(mut self: Box<Self>) -> Result<Summary> {
        self.flush()?;
        let mut outputs = Vec::with_capacity(self.writers.len());
        for writer in self.writers {
            outputs.push(Output {
                prefix: writer.prefix().into(),
                sequences: writer.sequences() as u64,
                tokens: writer.tokens(),
            });
            writer.finish()?;
        }
        Ok(Summary { outputs, too_long: self.too_long, ..Summary::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indexed::IndexedDataset;

    #[test]
    fn a_long_sample_leaves_an_empty_document_in_every_column() {
        let dir = tempfile::tempdir().unwrap();
        let prefixes = [dir.path().join("a"), dir.path().join("b")];
        let mut sink = Box::new(IndexedSink::create(&prefixes, Some(3)).unwrap());
        for (a, b) in [(vec![1], vec![2]), (vec![1, 2, 3], vec![4]), (vec![5], vec![6])] {
            sink.row(Row::new(vec![Some(a), Some(b)])).unwrap();
        }
        sink.row(Row::new(vec![None, Some(vec![7])])).unwrap();
        let summary = sink.finish().unwrap();
        assert_eq!(summary.too_long, 1);
        let [a, b] = prefixes.map(|p| IndexedDataset::open(p).unwrap());
        assert_eq!((a.len(), a.documents(), b.len(), b.documents()), (2, 3, 3, 4));
        assert_eq!((a.document(1), b.document(1)), (1..1, 1..1));
    }
}
