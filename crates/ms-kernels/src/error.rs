//! Errors of kernels and of creating a [`Cpu`](crate::Cpu).

use crate::Isa;
pub use ms_operands::{Error, Result};

/// Why a [`Cpu`](crate::Cpu) cannot be created as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The instruction set does not exist on this processor.
    #[error("instruction set {isa} is not available on this processor; it has {}", Isa::available_names())]
    Isa {
        /// The requested one.
        isa: Isa,
    },
    /// No instruction set has this name.
    #[error(
        "unknown instruction set \"{name}\", expected portable, neon, neonbf16, avx2, avx512, avx512convert, avx512bf16 or amx"
    )]
    IsaName {
        /// The name that was given.
        name: String,
    },
    /// No order of sums has this name.
    #[error("unknown arithmetic \"{name}\", expected pair, tile32 or bfdot")]
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
