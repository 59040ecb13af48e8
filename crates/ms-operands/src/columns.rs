//! Column maps: which input column each output column of a matrix is taken from.

/// A run of output columns: copies of input columns, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Columns `start..start + len` of the input.
    Copy {
        /// First input column.
        start: usize,
        /// Columns.
        len: usize,
    },
    /// Zeros.
    Zero {
        /// Columns.
        len: usize,
    },
}

impl Columns {
    /// Columns of the run.
    pub fn width(&self) -> usize {
        match *self {
            Columns::Copy { len, .. } | Columns::Zero { len } => len,
        }
    }
}
