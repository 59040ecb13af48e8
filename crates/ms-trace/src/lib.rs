//! What a run tells about itself.
//!
//! [`Recorder`] is a `tracing` layer: it turns the spans of operations (`ms_op`), collectives (`ms_comm`) and
//! steps (`ms_step`) into [`Event`]s of a rank while it is switched on, and costs a flag test while it is not.
//! [`chrome`] writes and reads them as a Chrome trace, which Perfetto opens. [`metrics`] appends the numbers of each
//! iteration to JSON lines, [`tensorboard`] to an event file, [`progress`] what
//! jobs have done at each checkpoint to a file beside these.

pub mod chrome;
mod error;
pub mod metrics;
pub mod progress;
mod recorder;
pub mod tensorboard;

pub use error::{Error, Result};
pub use recorder::{Category, Event, Recorder};
