//! Weights in fewer bits than they are computed with.

use ms_spec::{ModelConfig, ParamSpec};
use std::str::FromStr;

/// How matrices of linear layers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// A byte for an element, a scale for a row; see `ms_kernels::int8`.
    Int8,
}

impl FromStr for Quantization {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "int8" => Ok(Self::Int8),
            _ => Err(format!("unknown quantization {name:?}, expected int8")),
        }
    }
}

/// Modules whose matrices are multiplied as they are: projections of attention, recurrent mixers and dense feed-forward layers,
/// and the output layer. Embeddings, routers, experts, norms and convolutions stay as they are.
const MODULES: [&str; 14] = [
    "linear_qkv",
    "q_proj",
    "k_proj",
    "v_proj",
    "linear_q_up_proj",
    "linear_kv_up_proj",
    "linear_q",
    "linear_kv",
    "linear_proj",
    "in_proj",
    "out_proj",
    "linear_fc1",
    "linear_fc2",
    "output_layer",
];

impl Quantization {
    /// Whether a weight is kept so.
    pub fn takes(self, config: &ModelConfig, spec: &ParamSpec) -> bool {
        let mut path = spec.name.rsplit('.');
        let (last, module) = (path.next(), path.next().unwrap_or_default());
        // Rows that are brought to unit length are wanted as numbers.
        let wanted = module == "output_layer" && config.unit_head_rows;
        last == Some("weight")
            && spec.shape.len() == 2
            && spec.trained
            && MODULES.contains(&module)
            && !wanted
    }
}
