//! Communication errors.

use ms_core::{DType, Shape};

fn described((dtype, shape): &(DType, Shape)) -> String {
    format!("{dtype} {shape}")
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank failed; this one stops because it would wait forever.
    #[error("rank {rank} failed: {reason}")]
    PeerFailed {
        /// The rank that failed first.
        rank: usize,
        /// Its own message.
        reason: String,
    },
    /// Ranks of one group called different collectives.
    #[error(
        "collective {sequence} of ranks {group:?} does not match: rank {rank} called {mine}, rank {other} called {theirs}"
    )]
    Mismatch {
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// The ranks of the group, by their numbers in the run.
        group: Vec<usize>,
        /// This rank.
        rank: usize,
        /// What it called.
        mine: String,
        /// Another rank of the group.
        other: usize,
        /// What that one called.
        theirs: String,
    },
    /// A deadlock: ranks wait for each other, because one of them omitted an operation that the others wait for, or runs it
    /// in another order.
    #[error("deadlock: {waits}")]
    Deadlock {
        /// Where each of them waits.
        waits: String,
    },
    /// A rank has waited longer than it may.
    #[error("rank {rank} has waited for {seconds} s, the longest that a run may wait: {at}")]
    TimedOut {
        /// Which rank of the run.
        rank: usize,
        /// The limit.
        seconds: u64,
        /// What it waits for.
        at: String,
    },
    /// A message has another name than the one that was waited for.
    #[error("message {tag} from rank {from}: expected {expected}, found {found}")]
    Unexpected {
        /// Which message.
        tag: u64,
        /// Who sent it, inside the group.
        from: usize,
        /// What was waited for.
        expected: &'static str,
        /// What arrived.
        found: String,
    },
    /// A message has the name that was waited for, and another element type or shape.
    #[error(
        "message {tag} from rank {from}: expected {name} of {}, found {}",
        described(.expected),
        described(.found)
    )]
    Unlike {
        /// Which message.
        tag: u64,
        /// Who sent it, inside the group.
        from: usize,
        /// What it is.
        name: &'static str,
        /// The type and shape that were waited for.
        expected: (DType, Shape),
        /// Those that arrived.
        found: (DType, Shape),
    },
    /// A tensor cannot be evenly sharded over the group.
    #[error("{name}: {numel} elements cannot be divided among {size} ranks")]
    Indivisible {
        /// What was to be sharded.
        name: &'static str,
        /// Its elements.
        numel: usize,
        /// Ranks of the group.
        size: usize,
    },
    /// A group that does not contain its caller, or names a rank that does not exist.
    #[error("rank {rank} of {world} asked for the group {group:?}")]
    Group {
        /// The caller.
        rank: usize,
        /// Ranks there are.
        world: usize,
        /// The group.
        group: Vec<usize>,
    },
    /// The library that carries tensors between ranks failed.
    #[error("{what}: {source}")]
    Transport {
        /// The operation in progress.
        what: String,
        /// Its own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Error> for ms_core::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Core(e) => e,
            other => Self::Communication(Box::new(other)),
        }
    }
}
