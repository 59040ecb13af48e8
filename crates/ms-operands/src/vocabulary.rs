//! Vocabulary shards.

/// Which rows of the vocabulary a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabShare {
    /// Id of the table's first row.
    pub first: usize,
    /// Ids of the whole vocabulary: `0..whole`.
    pub whole: usize,
}

impl VocabShare {
    /// A table that holds all `vocab` ids.
    pub fn all(vocab: usize) -> Self {
        Self { first: 0, whole: vocab }
    }

    /// The row of `id` in a table of `rows` rows, if it is there.
    #[inline]
    pub fn row(self, id: i32, rows: usize) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|&row| row < rows)
    }
}
