//! Decoding.
//!
//! [`LoadedModel`] is a checkpoint ready to compute; [`generate`] continues several prompts at once over one
//! key/value cache and hands out each token as it is chosen; [`Sampling`] says how it is chosen. The unit of work
//! of the loop is one pass over the newest token of every unfinished sequence, so a server can later let
//! sequences join and leave between passes.

mod decode;
mod error;
mod model;
mod quantization;
mod room;
mod sampling;
mod session;

pub use decode::{Finish, Generated, Limits, generate, log_softmax};
pub use error::{Error, Result};
pub use model::LoadedModel;
pub use quantization::Quantization;
pub use room::{Needs, Work};
pub use sampling::{Sampler, Sampling, argmax};
pub use session::Session;
