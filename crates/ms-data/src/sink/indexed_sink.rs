//! Rows into indexed datasets, document by document.

use super::{Output, Sink, Summary};
use crate::Result;
use crate::indexed::{IndexedWriter, TokenType};
use crate::row::Row;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Rows that upstream processes together.
const BATCH: usize = 50;

/// Writes one indexed dataset per column, with upstream's rules.
///
/// Documents are taken in batches of 50. Per column, documents without a sequence are left out of the batch; a sequence of
/// `--seq-length` tokens or more marks its place (the document's *among those that are left*, and its own in the document)
/// as skipped, for all columns; then every column writes what is not skipped and closes each document, also where nothing
/// was written. So skipped samples leave empty documents, and columns with gaps may skip a neighbour's place: files must
/// match.
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
        let mut skipped = BTreeSet::new();
        if let Some(limit) = self.limit {
            for column in 0..self.writers.len() {
                let long = column_of(&self.batch, column).filter(|(_, sequence, _)| sequence.len() >= limit);
                skipped.extend(long.map(|(place, ..)| place));
            }
            self.too_long += skipped.len() as u64;
        }
        for (column, writer) in self.writers.iter_mut().enumerate() {
            for (place, sequence, continues) in column_of(&self.batch, column) {
                if !skipped.contains(&place) {
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

/// Sequences of a column, their places (document and sequence), and whether the document goes on after them.
fn column_of(batch: &[Row], column: usize) -> impl Iterator<Item = ((usize, usize), &Vec<i32>, bool)> {
    let mut place = (0, 0);
    batch.iter().filter_map(move |row| {
        let sequence = row.columns[column].as_ref()?;
        let here = place;
        place = if row.continues { (here.0, here.1 + 1) } else { (here.0 + 1, 0) };
        Some((here, sequence, row.continues))
    })
}

impl Sink for IndexedSink {
    fn row(&mut self, row: Row) -> Result<()> {
        if self.limit.is_none() {
            // Nothing is skipped, so that no row waits for others.
            for (writer, sequence) in self.writers.iter_mut().zip(&row.columns) {
                if let Some(sequence) = sequence {
                    writer.sequence(sequence)?;
                    if !row.continues {
                        writer.end_document()?;
                    }
                }
            }
            return Ok(());
        }
        self.documents += usize::from(!row.continues);
        self.batch.push(row);
        if self.documents == BATCH { self.flush() } else { Ok(()) }
    }

    fn end_part(&mut self) -> Result<()> {
        self.flush()
    }

    fn finish_after(mut self: Box<Self>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Summary> {
        self.flush()?;
        let mut outputs = Vec::with_capacity(self.writers.len());
        for writer in &self.writers {
            outputs.push(Output {
                prefix: writer.prefix().into(),
                sequences: writer.sequences() as u64,
                tokens: writer.tokens(),
            });
        }
        IndexedWriter::finish_all(self.writers, ready)?;
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

    #[test]
    fn a_long_sequence_is_skipped_at_its_place_in_its_document() {
        let dir = tempfile::tempdir().unwrap();
        let prefixes = [dir.path().join("a"), dir.path().join("b")];
        let mut sink = Box::new(IndexedSink::create(&prefixes, Some(3)).unwrap());
        // Two documents: of 2 and 1 sequences, and of 3 and 3; the second one of the second column is too long.
        let row =
            |a: Option<Vec<i32>>, b: Option<Vec<i32>>, continues| Row { columns: vec![a, b], continues };
        sink.row(row(Some(vec![1]), None, true)).unwrap();
        sink.row(row(Some(vec![2]), Some(vec![3]), false)).unwrap();
        sink.row(row(Some(vec![4]), Some(vec![5]), true)).unwrap();
        sink.row(row(Some(vec![6]), Some(vec![7, 7, 7]), true)).unwrap();
        sink.row(row(Some(vec![8]), Some(vec![9]), false)).unwrap();
        assert_eq!(sink.finish().unwrap().too_long, 1);
        let [a, b] = prefixes.map(|p| IndexedDataset::open(p).unwrap());
        assert_eq!((a.len(), a.document(0), a.document(1)), (4, 0..2, 2..4));
        assert_eq!((b.len(), b.document(0), b.document(1)), (3, 0..1, 1..3));
    }
}
