//! What the flags of a program mean beside a checkpoint: its model, the device it computes on, its tokenizer. Training,
//! inference and evaluation read them here, so that a flag means one thing.
//!
//! A flag that describes the model wins over the checkpoint, as upstream's do; one that contradicts a weight's shape is an
//! error that names both ([`model::beside`]).

mod compute;
pub mod model;
mod tokenizer;

pub use compute::{arithmetic, device, load};
pub use tokenizer::tokenizer;
