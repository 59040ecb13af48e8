//! What flags mean: the model beside a checkpoint, the device it computes on, its tokenizer, and the whole of a training run.
//! Programs that compute read their flags here, and are a command line and a call.
//!
//! A flag that describes the model wins over the checkpoint, as upstream's do; one that contradicts a weight's shape is an
//! error that names both ([`ModelFlags::beside`]). In training that is so where the checkpoint describes the model (neither
//! `--num-layers` nor `--hidden-size` is given); otherwise the flags describe it whole, as upstream's do.
//!
//! - [`Loading`] makes a loaded model of flags, for inference and evaluation; [`TokenizerFolder`] finds its tokenizer.
//! - [`training::resolve`] makes a run of flags, [`training::Resolved::train`] is what each of its ranks does.
//! - [`plan`] says what the ranks of such a run would hold, take and send, and which layouts of them fit.

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod compute;
mod flags;
mod given;
mod idle;
mod model;
pub mod plan;
mod resolve;
mod tokenizer;
pub mod training;
mod versions;

pub use compute::{Compute, Loading, Source};
pub use model::ModelFlags;
pub use tokenizer::TokenizerFolder;
