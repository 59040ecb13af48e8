//! Text generation.
//!
//! - [`LoadedModel`] is a checkpoint ready to compute.
//! - A [`Session`] holds several sequences in one KV cache and computes only what a sequence's slot does not hold yet.
//!   Generation, chat and evaluation all use it.
//! - [`generate`] and [`resume`] continue several prompts at once and hand out each token as it is chosen; [`Sampling`] says
//!   how it is chosen.
//!
//! The unit of work is one pass over the newest token of every unfinished sequence, so a server could later let sequences
//! join and leave between passes.

mod decode;
mod error;
mod memory_estimate;
mod model;
mod quantization;
mod sampling;
mod session;

pub use decode::{Finish, Generated, Limits, generate, log_softmax, resume};
pub use error::{Error, Result};
pub use memory_estimate::{MemoryEstimate, MemoryRequest};
pub use model::LoadedModel;
pub use quantization::Quantization;
pub use sampling::{Sampler, Sampling, argmax};
pub use session::Session;
