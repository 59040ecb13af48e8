//! Profiles and metrics of a run.
//!
//! [`Recorder`] is a `tracing` layer: while switched on, it records the spans of operations (`ms_op`), collectives
//! (`ms_comm`) and steps (`ms_step`) as [`Event`]s of a rank; while switched off, it costs one flag test. [`chrome`] writes
//! and reads events as a Chrome trace, which Perfetto opens. [`metrics`] appends the numbers of each iteration to JSON lines,
//! [`tensorboard`] to an event file; [`progress`] records what jobs had done at each checkpoint in a file next to the
//! checkpoints.

pub mod chrome;
mod error;
pub mod metrics;
pub mod progress;
mod recorder;
pub mod tensorboard;

pub use error::{Error, Result};
pub use recorder::{Category, Event, Recorder};
