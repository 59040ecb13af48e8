//! Model configuration and parameter table: everything about a model except the values of its weights.
//!
//! - [`ModelConfig`] describes a transformer of any supported family in one normalised struct. [`hf`] reads and writes
//!   Hugging Face `config.json`, [`megatron`] reads and writes Megatron's arguments.
//! - [`params`] lists every weight with its canonical name, global shape, partition, position and initial value. It is a walk
//!   over the parts of the model; each part has a file with its weights and how ranks share them. Initialisation, gradient
//!   buckets, checkpoints, conversion, and FLOP and memory counts all use this table.
//! - [`Rope`] computes rotary frequencies; [`flops`] and [`memory`] count.
//!
//! ```
//! let json = serde_json::json!({
//!     "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
//!     "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000
//! });
//! let config = ms_spec::hf::read_config(&json)?;
//! let params = ms_spec::params(&config);
//! assert_eq!(params[0].name, "embedding.word_embeddings.weight");
//! assert_eq!(params.iter().map(|p| p.shape.numel()).sum::<usize>(), 222_528);
//! # Ok::<(), ms_spec::Error>(())
//! ```
//!
//! Nothing here reads a file or holds a tensor.

mod activations;
mod attention_kind;
mod config;
mod description;
mod error;
mod expert_bytes;
mod family;
mod field;
mod fields;
pub mod flops;
pub mod hf;
pub mod megatron;
pub mod memory;
mod params;
mod part_flag;
mod parts;
mod placement;
mod rope;
mod rules;
mod save_policy;
mod saved_bytes;
mod sharding_rule;
mod sizes;
mod slot;
mod swapped;
mod validate;

pub use activations::PassBytes;
pub use attention_kind::{Picks, Section};
pub use config::ModelConfig;
pub use error::{ArgNames, Error, PlacementOption, Result};
pub use expert_bytes::{ExpertBytes, ExpertExchange};
pub use family::Family;
pub use params::{Init, ParamSpec, SumGrad, local};
pub use parts::tree::{parameters, params};
pub use placement::{Item, PlacedParam, Placement, Stages};
pub use rope::{Frequencies, Rope, RopeScaling};
pub use rules::{check_context, check_cut, check_expert_cut, check_whole_heads, rules, table as rules_table};
pub use save_policy::{LayerSavePolicy, Recompute, SavePolicy};
pub use saved_bytes::Activations;
pub use sharding_rule::{AxisRule, ShardingRule};
// All sizes, by a glob: a new mixer or part must not need a line in this file (`cargo xtask tidy` counts the files that name it).
pub use sizes::*;
pub use slot::{Part, Place, Role, Slot};
pub use swapped::Swapped;
