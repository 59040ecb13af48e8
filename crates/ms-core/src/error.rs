//! Errors below the model layer.

use crate::{DType, Shape};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand has another shape than the operation needs.
    #[error("{op}: expected {name} of shape {want}, got {got}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// What the operation needs.
        want: Shape,
        /// What it was given.
        got: Shape,
    },
    /// An operand has another element type than the operation needs.
    #[error("{op}: expected {name} of type {want}, got {got}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The operand.
        name: &'static str,
        /// What the operation needs.
        want: DType,
        /// What it was given.
        got: DType,
    },
    /// Not supported with this element type, or on this device.
    #[error("{op}: not done with element type {dtype}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// A tensor was to be modified in place while another value still refers to its storage.
    #[error("{what} is still in use by a graph or another tensor and cannot be changed in place")]
    Shared {
        /// What was to be changed.
        what: &'static str,
    },
    /// A range lies outside a tensor or buffer.
    #[error("{what}: range {start}..{end} is outside 0..{len}")]
    Range {
        /// What was indexed.
        what: &'static str,
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Elements there are.
        len: usize,
    },
    /// A grid of ranks that cannot be built.
    #[error("topology: {0}")]
    Topology(String),
    /// A tensor cannot be sharded as requested.
    #[error("partition of {name}: dimension {dim} of size {size} cannot be cut into {parts} equal parts")]
    Partition {
        /// The tensor.
        name: String,
        /// The sharded dimension.
        dim: usize,
        /// Its size.
        size: usize,
        /// Number of parts (ranks times blocks).
        parts: usize,
    },
    /// A communicator failed inside an operation.
    #[error(transparent)]
    Communication(Box<dyn std::error::Error + Send + Sync>),
    /// Host memory outside the arena cannot be created, written or read.
    #[error("swap file in {}: {source}", folder.display())]
    Host {
        /// The folder of the file.
        folder: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An invalid operand, or operands that do not fit together.
    #[error(transparent)]
    Operand(#[from] ms_operands::Error),
    /// A device failed, or could not be created.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
