//! A model on paper: what it is made of, before there is a single number.
//!
//! [`ModelConfig`] is one description for every family; [`params`] lists every weight with its canonical name,
//! global shape, partition, place and initial distribution. Initialisation, gradient buckets, checkpoints,
//! conversion, FLOP and memory counts all read that one table.
//!
//! Canonical names are Megatron-core's, with layer numbers counted over the whole model; canonical weights are in
//! Megatron's packing (grouped QKV, `[gate; up]`).

mod config;
mod error;
mod params;
pub mod rotary;

pub use config::{Activation, Biases, ModelConfig, NormKind, Rope, RopeScaling};
pub use error::{Error, Result};
pub use params::{Init, ParamSpec, Place, params};
