//! Hints: what a caller knows about a checkpoint.

use ms_spec::ModelConfig;
use serde_json::Value;

/// What a caller knows about a checkpoint that its files may not record.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The model's `config.json`, from another folder.
    pub config: Option<Value>,
    /// The model itself, for a checkpoint that only holds adapters of it.
    pub model: Option<ModelConfig>,
    /// Whether experts are also distributed over tensor-parallel ranks, where the files do not say.
    pub extend_ep: Option<bool>,
}
