//! Errors of operands.

/// An invalid operand, or operands of an operation that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It has the wrong number of elements.
    #[error("{op}: {name} has {got} elements, expected {want}")]
    Shape {
        /// The operation, or what was to be made.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// Elements that others imply.
        want: usize,
        /// Elements that were given.
        got: usize,
    },
    /// A size or stride is impossible.
    #[error("{op}: {name} is {got}, expected {want}")]
    Size {
        /// The operation.
        op: &'static str,
        /// The size.
        name: &'static str,
        /// What is allowed.
        want: &'static str,
        /// What was given.
        got: usize,
    },
    /// An index points outside what it indexes.
    #[error("{op}: {name}[{index}] is {value}, expected 0 to {limit} exclusive")]
    Range {
        /// The operation, or what was to be made.
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
    /// Two segments of attention claim the same token, or are not in rising order.
    #[error("{op}: segment {index} starts at {name} token {start}, before the previous segment's end {end}")]
    Segments {
        /// The operation.
        op: &'static str,
        /// `query` or `key`.
        name: &'static str,
        /// Position of the segment.
        index: usize,
        /// Its first token.
        start: usize,
        /// One past the previous segment's last token.
        end: usize,
    },
}

/// Result of making an operand, or of an operation on some.
pub type Result<T, E = Error> = std::result::Result<T, E>;
