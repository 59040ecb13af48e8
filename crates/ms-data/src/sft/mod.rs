//! Fine-tuning datasets: `P_packed_KEY_document` file pairs, one per key, addressed by sequence number.
//!
//! Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/tasks/preprocess/{mtf_dataset,decoder_packed_mtf_dataset}.py`.

mod blend;
mod cut;
mod dataset;
mod index_file;
mod order;

pub use blend::build;
pub use cut::{cut_pair, cut_turns};
pub(crate) use dataset::row;
pub use dataset::{Form, SftDataset, SftItem, SftOptions, input_prefixes};
pub use order::{Order, order};

/// Label of a position that is not trained.
pub const IGNORED: i32 = -100;

#[cfg(test)]
mod tests;
