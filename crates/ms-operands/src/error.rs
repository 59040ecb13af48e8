//! Errors of operands.

/// An invalid operand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It has the wrong number of elements.
    #[error("{op}: {name} has {got} elements, expected {want}")]
    Shape {
        /// What was to be made.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// Elements that others imply.
        want: usize,
        /// Elements that were given.
        got: usize,
    },
    /// An index points outside what it indexes.
    #[error("{op}: {name}[{index}] is {value}, expected 0 to {limit} exclusive")]
    Range {
        /// What was to be made.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// Position of the bad index.
        index: usize,
        /// The bad index.
        value: i64,
        /// First index past the end.
        limit: usize,
    },
}

/// Result of making an operand.
pub type Result<T, E = Error> = std::result::Result<T, E>;
