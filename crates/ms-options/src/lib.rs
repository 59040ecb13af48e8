//! What flags mean: the model, device and tokenizer of a program that computes, and all of a training run. The programs read
//! their flags here; they themselves are a command line and a call.
//!
//! A flag that describes the model overrides the checkpoint, as upstream's does; one that contradicts a weight's shape is an
//! error that names both ([`ModelFlags::beside`]). In training this applies if the checkpoint describes the model (neither
//! `--num-layers` nor `--hidden-size` is given); otherwise the flags describe it completely, as upstream's do.
//!
//! - [`Loading`] makes a loaded model from flags, for inference and evaluation; [`TokenizerFolder`] finds its tokenizer.
//! - [`training::resolve`] makes a run from flags; [`training::Resolved::train`] is what each of its ranks does.
//! - [`plan`] computes what the ranks of such a run would hold, allocate and send, and which layouts of them fit.

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
