//! A row: a record as tokens.

/// One record as tokens: a sequence per column, or none where the record has no text for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// In the order of [`Handler::columns`](crate::handler::Handler::columns).
    pub columns: Vec<Option<Vec<i32>>>,
    /// The next row belongs to the same document.
    pub continues: bool,
}

impl Row {
    /// A document of one sequence per column.
    pub fn new(columns: Vec<Option<Vec<i32>>>) -> Self {
        Self { columns, continues: false }
    }
}
