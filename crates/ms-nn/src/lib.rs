//! The config-driven transformer.
//!
//! - [`Gpt`] is structure: shapes and parameter ids, no numbers. Weights live in an [`ms_core::ParamStore`], one forward pass
//!   in an [`ms_core::Graph`]. So a reference model is a second store under the same `Gpt`, and inference is a graph that
//!   records nothing.
//! - A micro-batch is a sequence of packed tokens ([`Batch`]): padded batches, packed samples, prefill and decode are the
//!   same pass.
//! - [`KvCache`] holds the keys and values of tokens that were processed before.

mod attention;
mod batch;
mod cache;
mod error;
mod feed;
mod gpt;
mod init;
mod layer;
mod mixer;
mod params;
mod pass;
mod predict;
mod residual;
mod rotary;

pub use attention::{IndexerLoss, IndexerLosses, IndexerObjective, head_exchange, shared_kv_columns};
pub use batch::{Batch, TrainingNoise};
pub use cache::KvCache;
pub use error::{Error, Result};
pub use feed::{AuxiliaryLoss, Capacity, LayerLoad, RouterLoad};
pub use gpt::{Gpt, RankPosition};
pub use init::init_params;
pub use ms_spec::{Recompute, SavePolicy, Swapped};
pub use pass::{Carry, OverlappedPass};
pub use predict::Inputs;
