//! Errors of kernels.

use crate::Isa;

/// An error of a kernel call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand has the wrong number of elements.
    #[error("{op}: {name} has {got} elements, expected {want}")]
    Shape {
        /// The kernel.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// Elements that the other operands imply.
        want: usize,
        /// Elements that were given.
        got: usize,
    },
    /// A size or stride is impossible.
    #[error("{op}: {name} is {got}, expected {want}")]
    Size {
        /// The kernel.
        op: &'static str,
        /// The size.
        name: &'static str,
        /// What is allowed.
        want: &'static str,
        /// What was given.
        got: usize,
    },
    /// An index points outside the table it indexes.
    #[error("{op}: {name}[{index}] is {value}, expected 0 to {limit} exclusive")]
    Range {
        /// The kernel.
        op: &'static str,
        /// The index operand.
        name: &'static str,
        /// Position of the bad index.
        index: usize,
        /// The bad index.
        value: i64,
        /// First index past the end.
        limit: usize,
    },
    /// Two segments of an attention call claim the same token, or are not in rising order.
    #[error("{op}: segment {index} starts at {name} token {start}, before the previous segment's end {end}")]
    Segments {
        /// The kernel.
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
    /// The instruction set does not exist on this processor.
    #[error("instruction set {isa} is not available on this processor; it has {}", Isa::available_names())]
    Isa {
        /// The requested one.
        isa: Isa,
    },
    /// No instruction set has this name.
    #[error("unknown instruction set \"{name}\", expected portable, avx2, avx512, avx512bf16 or amx")]
    IsaName {
        /// The name that was given.
        name: String,
    },
    /// No order of sums has this name.
    #[error("unknown arithmetic \"{name}\", expected pair or tile32")]
    ArithmeticName {
        /// The name that was given.
        name: String,
    },
    /// The thread pool could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Requested threads.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}

/// Result of a kernel call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Checks an operand's element count.
pub(crate) fn expect_len(op: &'static str, name: &'static str, want: usize, got: usize) -> Result<()> {
    if want == got { Ok(()) } else { Err(Error::Shape { op, name, want, got }) }
}

/// Checks that `len` is a whole number of rows of `width` and returns how many.
pub(crate) fn expect_rows(op: &'static str, name: &'static str, width: usize, len: usize) -> Result<usize> {
    if width == 0 {
        return expect_len(op, name, 0, len).map(|()| 0);
    }
    if len.is_multiple_of(width) {
        Ok(len / width)
    } else {
        Err(Error::Shape { op, name, want: len.next_multiple_of(width), got: len })
    }
}
