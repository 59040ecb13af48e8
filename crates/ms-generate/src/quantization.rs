//! Weight quantization for inference.

use ms_spec::{ModelConfig, ParamSpec, Part, Role, Slot};
use std::str::FromStr;

/// How matrices of linear layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// A byte for an element, a scale for a row; see [`int8_row_bytes`](ms_core::int8_row_bytes).
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
const fn multiplies(what: &Slot) -> bool {
    use Role as R;
    match what.role {
        R::Own => matches!(what.part, Part::Output),
        R::LinearODownProj | R::LinearOUpProj => false,
        role => role.is_linear() || matches!(role, R::QProj | R::KProj | R::VProj | R::InProj | R::OutProj),
    }
}

impl Quantization {
    /// Whether a weight is stored in this way.
    pub fn takes(self, config: &ModelConfig, spec: &ParamSpec) -> bool {
        // Rows that are brought to unit length are wanted as numbers.
        let wanted = spec.slot.part == Part::Output && config.unit_head_rows;
        multiplies(&spec.slot) && !spec.slot.bias && spec.shape.len() == 2 && spec.trained() && !wanted
    }
}
