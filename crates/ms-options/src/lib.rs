//! What the flags of a program mean beside a checkpoint: its model, the device it computes on, its tokenizer. Inference and
//! evaluation read them here, and training where the checkpoint describes its model (neither `--num-layers` nor
//! `--hidden-size` is given; otherwise the flags describe it whole, as upstream's do).
//!
//! A flag that describes the model wins over the checkpoint, as upstream's do; one that contradicts a weight's shape is an
//! error that names both ([`ModelFlags::beside`]).

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod compute;
mod flags;
mod given;
mod head;
mod idle;
mod model;
mod tokenizer;

pub use compute::{Compute, Loading, Source};
pub use model::ModelFlags;
pub use tokenizer::TokenizerFolder;
