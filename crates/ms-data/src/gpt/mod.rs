//! Pretraining datasets, ordered like Megatron's `GPTDataset`.
//!
//! Sequences of an indexed dataset are shuffled, repeated over epochs and cut into samples of `seq_length + 1` tokens that
//! overlap by one. Three indices hold the order: documents, samples, shuffle. They are bit-identical to those that numpy and
//! Megatron build from the same seed.
//!
//! Source: Megatron-LM `core_r0.8.0` and `core_v0.12.1`,
//! `megatron/core/datasets/{gpt_dataset,blended_dataset, blended_megatron_dataset_builder,helpers}`.

mod blend;
mod blend_index;
mod cache;
mod dataset;
mod index;
mod md5;
mod source;

pub(crate) use blend::BlendList;
pub use blend::{Blend, DataPaths, GptSet, build};
pub use blend_index::BlendIndex;
pub use cache::IndexCache;
pub use dataset::{GptDataset, GptOptions, PadTokens};
pub use index::GptIndex;
pub use source::{MockSequences, Source};

#[cfg(test)]
mod tests;
