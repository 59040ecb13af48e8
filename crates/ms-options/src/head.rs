//! What newer upstreams make of flags in another way than v2.0.0.

use crate::given::Given;
use ms_cli::megatron::Upstream;
use ms_spec::ModelConfig;
use serde_json::Value;

/// Flags beside a checkpoint's model, with yarn's factor as newer upstreams form it: by the lengths, unless attention is latent.
///
/// # Source
/// MindSpeed-LLM (2026), `core/models/common/embeddings/rotary_pos_embedding.py`, `apply_yarn_scaling`.
pub(crate) fn given(upstream: Upstream, all: &[Given], config: &ModelConfig) -> Vec<Given> {
    const FACTOR: &str = "rope_scaling_factor";
    let mut given = all.to_vec();
    let of = |dest: &str| all.iter().find(|given| given.dest == dest).map(|given| &given.value);
    let yarn = of("rope_scaling_type").and_then(Value::as_str) == Some("yarn");
    if upstream == Upstream::V2_0_0 || !yarn || config.rotates_by_itself() {
        return given;
    }
    given.retain(|given| given.dest != FACTOR);
    let reach = of("max_position_embeddings").and_then(Value::as_f64).unwrap_or(config.max_positions as f64);
    let original = of("rope_scaling_original_max_position_embeddings").and_then(Value::as_f64);
    given.extend(original.map(|original| Given::new(FACTOR, None, &(reach / original).into())));
    given
}
