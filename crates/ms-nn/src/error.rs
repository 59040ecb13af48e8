//! Errors of models.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sequence is longer than the model's rotary tables.
    #[error("position {position} is beyond the model's {max} positions")]
    Position {
        /// The first position that is too large.
        position: usize,
        /// Positions the model was built for.
        max: usize,
    },
    /// Lengths inside a batch contradict each other.
    #[error("batch: {what}: expected {expected}, found {found}")]
    Batch {
        /// What is wrong.
        what: &'static str,
        /// What would be right.
        expected: usize,
        /// What is there.
        found: usize,
    },
    /// A sequence does not fit into its place of the cache.
    #[error("cache slot {slot} holds {capacity} tokens and has {used}; {more} more do not fit")]
    CacheFull {
        /// The place.
        slot: usize,
        /// Tokens it can hold.
        capacity: usize,
        /// Tokens it holds.
        used: usize,
        /// Tokens that were to be added.
        more: usize,
    },
    /// The model has a part that this crate cannot compute.
    #[error("a model of family {family:?} has {part}, which cannot be computed yet")]
    Unsupported {
        /// The model's family.
        family: ms_spec::Family,
        /// The part.
        part: &'static str,
    },
    /// Another pipeline stage holds what was requested.
    #[error("{what} is on another pipeline stage")]
    Elsewhere {
        /// What was requested.
        what: &'static str,
    },
    /// The model's description is invalid.
    #[error(transparent)]
    Spec(#[from] ms_spec::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
