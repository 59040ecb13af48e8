//! Errors of a training run.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers of the run that do not fit together.
    #[error("{flag}: expected {expected}, found {found}")]
    Config {
        /// The flag.
        flag: &'static str,
        /// What would be legal.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A loss or a gradient is not a number.
    #[error(
        "iteration {iteration}, {rank}: {what} is {value}\n\
         hint: lower --lr, check the data, or pass --no-check-for-nan-in-loss-and-grad to continue regardless"
    )]
    NotFinite {
        /// The iteration, from 1.
        iteration: u64,
        /// Where.
        rank: String,
        /// `the loss` or `the gradient norm`.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// A loss or the norm of gradients is far from what it was in the beginning.
    #[error(
        "iteration {iteration}, {rank}: {what} is {value}, {factor} times or more the {most} that was the most of the first {first}\n\
         hint: look at the data of this iteration, lower --lr, or leave {flag} out"
    )]
    Unusual {
        /// The iteration, from 1.
        iteration: u64,
        /// Where.
        rank: String,
        /// What is too large.
        what: &'static str,
        /// The value.
        value: f64,
        /// The largest of the first ones.
        most: f64,
        /// How many those are.
        first: usize,
        /// How far a value may be from it.
        factor: f64,
        /// The flag that requested the check.
        flag: &'static str,
    },
    /// Ranks that should have the same weights do not.
    #[error(
        "after iteration {iteration}, {rank}: {name} is not the same on all data-parallel ranks\n\
         hint: a rank computes or remembers wrongly; continue from the last checkpoint on other machines"
    )]
    Replicas {
        /// Iterations done.
        iteration: u64,
        /// Where.
        rank: String,
        /// The first parameter that differs.
        name: String,
    },
    /// The data ended before the run did.
    #[error("{split} data ended at iteration {iteration}; {hint}")]
    DataEnded {
        /// `training`, `validation` or `test`.
        split: &'static str,
        /// The iteration that could not be served.
        iteration: u64,
        /// What to do.
        hint: &'static str,
    },
    /// A checkpoint belongs to another run.
    #[error("{path}: {what}: expected {expected}, the checkpoint has {found}")]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: String,
        /// This run's value.
        expected: String,
        /// The checkpoint's value.
        found: String,
    },
    /// What `--load` names is not a checkpoint, but was meant to be one.
    #[error("--load {path}: expected {expected}")]
    NoTracker {
        /// The file or folder.
        path: PathBuf,
        /// What was expected, found, and what to do.
        expected: String,
    },
    /// A checkpoint cannot be read, but there are older ones.
    #[error("{source}\nhint: {hint}")]
    Damaged {
        /// What is wrong with it.
        source: ms_ckpt::Error,
        /// Which of them is whole.
        hint: String,
    },
    /// This rank has done its part of a checkpoint, another has not.
    #[error("rank {rank} could not write its part of the checkpoint: {reason}")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Its own message.
        reason: String,
    },
    /// A model could not be built or run.
    #[error(transparent)]
    Model(#[from] ms_nn::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
    /// A rank failed.
    #[error(transparent)]
    Dist(#[from] ms_dist::Error),
    /// The model's description is invalid.
    #[error(transparent)]
    Spec(#[from] ms_spec::Error),
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Ckpt(#[from] ms_ckpt::Error),
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] ms_data::Error),
    /// A report could not be written.
    #[error(transparent)]
    Trace(#[from] ms_trace::Error),
}

impl Error {
    /// An [`Error::Config`] from anything printable.
    pub fn config(flag: &'static str, expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        Self::Config { flag, expected: expected.into(), found: found.to_string() }
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
