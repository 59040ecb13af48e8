//! What columns of a matrix are made of.

/// A run of output columns: copies of input columns, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
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

impl Run {
    /// Columns of the run.
    pub fn width(&self) -> usize {
        match *self {
            Run::Copy { len, .. } | Run::Zero { len } => len,
        }
    }
}
