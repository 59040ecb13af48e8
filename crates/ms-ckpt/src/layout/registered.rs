//! The order in which upstream's modules register their parameters.
//!
//! A module has its own tensors first, then those of the modules in it, in the order in which these were first set. Rank files
//! list weights in this order, and optimizers hold their state in it without names, so it decides what belongs to what.
//!
//! # Source
//! Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core` and `megatron/legacy/model`; MindSpeed-LLM v2.0.0 and of 2026,
//! `mindspeed_llm/core` and `mindspeed_llm/tasks/models`; MindSpeed of 2026, `mindspeed/te/pytorch/module`.

use super::spelling::{Local, Version};

/// Words of names, those of one module in its order. Numbers count, and other words come last.
const WORDS: [&str; 7] = [
    // A module's own.
    "attn_sink sinks dt_bias A_log D ape hc_base hc_scale gate_weight layer_norm_weight layer_norm_bias weight \
     bias",
    // The model, up to its last layer.
    "language_model embedding word_embeddings position_embeddings encoder decoder layers",
    // Recurrent mixers.
    "mixer in_proj conv1d in_proj_qkvz in_proj_ba wkv wgate norm out_proj",
    // Layers.
    "input_norm input_layernorm self_attention post_attention_norm pre_mlp_layernorm mlp input_layernorm_0 \
     self_attention_0 pre_mlp_layernorm_0 mlps_0 input_layernorm_1 self_attention_1 pre_mlp_layernorm_1 mlps_1 \
     post_attn_norm post_mlp_layernorm attn_mhc mlp_mhc",
    // Attention.
    "query_key_value dense linear_proj linear_qkv linear_q linear_kv q_layernorm k_layernorm linear_qb \
     linear_q_up_proj linear_qk_nope linear_qk_rope kv_layernorm linear_kvb linear_kv_up_proj linear_kv_nope \
     linear_v linear_o_down_proj linear_o_up_proj q_proj k_proj v_proj g_proj dsa_indexer compressor indexer \
     wq_b wk k_norm kv_compressor weights_proj",
    // MLPs and experts.
    "router experts local_experts linear_fc1 linear_fc2 dense_h_to_4h dense_4h_to_h shared_experts \
     shared_expert_gate",
    // Prediction modules, and the end of the model.
    "mtp mtp_layers enorm hnorm eh_proj transformer_layer final_norm final_layernorm final_layernorms hc_head \
     output_layer rm_head word_embeddings_for_head hc_fn",
];

/// Sorts the tensors of a rank. `projects_once`: attention has one projection of the stream.
pub(super) fn sort(tensors: &mut [Local], version: Version, projects_once: bool) {
    tensors.sort_by_cached_key(|t| (t.chunk, places(&t.name, version, projects_once)));
}

/// The place of each word of a name among others of its module.
fn places(name: &str, version: Version, projects_once: bool) -> Vec<usize> {
    let place = |word: &str| {
        let like = match word {
            // v2.0.0 adds prediction modules, and the last norm with them, to a finished model.
            "output_layer" if version == Version::V2_0_0 => "mtp",
            // With two projections of the stream both have their norms next.
            "kv_layernorm" if !projects_once => "k_layernorm",
            other => other,
        };
        let mut known = WORDS.iter().flat_map(|words| words.split_whitespace());
        word.parse().unwrap_or_else(|_| known.position(|known| known == like).unwrap_or(usize::MAX))
    };
    name.split(['.', '/']).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that names are in order.
    fn ordered(version: Version, projects_once: bool, names: &[&str]) {
        for pair in names.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|name| places(name, version, projects_once));
            assert!(a < b, "{version:?}: {} comes before {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn modules_come_in_the_order_in_which_upstream_makes_them() {
        ordered(
            Version::V2_0_0,
            true,
            &[
                "embedding.word_embeddings.weight",
                "decoder.layers.2.input_layernorm.weight",
                "decoder.layers.2.self_attention.linear_proj.weight",
                "decoder.layers.2.self_attention.linear_qkv.weight",
                "decoder.layers.2.self_attention.linear_qkv.bias",
                "decoder.layers.2.self_attention.q_layernorm.weight",
                "decoder.layers.2.self_attention.k_layernorm.weight",
                "decoder.layers.2.self_attention.linear_qb.weight",
                "decoder.layers.2.self_attention.linear_kvb.weight",
                "decoder.layers.2.pre_mlp_layernorm.weight",
                "decoder.layers.2.mlp.router.weight",
                "decoder.layers.2.mlp.experts.local_experts.2.linear_fc1.weight",
                "decoder.layers.2.mlp.experts.local_experts.2.linear_fc2.weight",
                "decoder.layers.2.mlp.experts.local_experts.10.linear_fc1.weight",
                "decoder.layers.2.mlp.shared_experts.linear_fc2.weight",
                "decoder.layers.2.mlp.shared_expert_gate.weight",
                "decoder.layers.2.post_attn_norm.weight",
                "decoder.layers.2.post_mlp_layernorm.weight",
                "decoder.layers.10.input_layernorm.weight",
                "output_layer.weight",
                "mtp_layers.0.embedding.word_embeddings.weight",
                "mtp_layers.0.enorm.weight",
                "mtp_layers.0.transformer_layer.mlp.linear_fc2.weight",
                "mtp_layers.0.final_layernorm.weight",
                "mtp_layers.1.enorm.weight",
                "final_layernorm.weight",
            ],
        );
        ordered(
            Version::Head,
            true,
            &[
                "embedding.word_embeddings.weight",
                "decoder.layers.0.self_attention.linear_proj.weight",
                "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
                "decoder.layers.0.self_attention.linear_qkv.weight",
                "decoder.layers.0.self_attention.q_layernorm.weight",
                "decoder.layers.0.self_attention.linear_q_up_proj.weight",
                "decoder.layers.0.self_attention.kv_layernorm.weight",
                "decoder.layers.0.self_attention.linear_kv_up_proj.weight",
                "decoder.layers.0.self_attention.dsa_indexer.wq_b.weight",
                "decoder.layers.0.self_attention.dsa_indexer.weights_proj.weight",
                "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
                "decoder.layers.0.mlp.linear_fc1.weight",
                "decoder.layers.1.mlp.shared_experts.gate_weight",
                "decoder.layers.1.mlp.shared_experts.linear_fc1.weight",
                "decoder.layers.2.self_attention.q_layernorm.weight",
                "decoder.layers.2.self_attention.linear_qk_rope.weight",
                "decoder.layers.2.self_attention.kv_layernorm.weight",
                "decoder.layers.2.self_attention.linear_kv_nope.weight",
                "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight",
                "mtp.layers.1.enorm.weight",
                "mtp.final_layernorms.0.weight",
                "final_layernorm.weight",
                "output_layer.weight",
            ],
        );
        ordered(
            Version::Head,
            true,
            &[
                "decoder.layers.0.mlp.experts.weight2",
                "decoder.layers.0.input_layernorm_0.weight",
                "decoder.layers.0.self_attention_0.linear_proj.weight",
                "decoder.layers.0.mlps_0.linear_fc1.weight",
                "decoder.layers.0.input_layernorm_1.weight",
                "decoder.layers.1.mixer.dt_bias",
                "decoder.layers.1.mixer.D",
                "decoder.layers.1.mixer.in_proj.weight",
                "decoder.layers.1.mixer.out_proj.weight",
                "decoder.layers.1.norm.weight",
                "decoder.final_norm.weight",
            ],
        );
        ordered(
            Version::Head,
            false,
            &[
                "decoder.layers.0.self_attention.attn_sink",
                "decoder.layers.0.self_attention.linear_q.weight",
                "decoder.layers.0.self_attention.linear_kv.weight",
                "decoder.layers.0.self_attention.q_layernorm.weight",
                "decoder.layers.0.self_attention.kv_layernorm.weight",
                "decoder.layers.0.self_attention.linear_q_up_proj.weight",
                "decoder.layers.0.self_attention.compressor.wkv.weight",
                "decoder.layers.0.self_attention.compressor.wgate.weight",
                "decoder.layers.0.self_attention.compressor.norm.weight",
                "decoder.layers.0.self_attention.indexer.kv_compressor.ape",
                "decoder.layers.0.mlp.router.weight",
                "decoder.layers.0.attn_mhc.hc_base",
                "decoder.layers.0.attn_mhc.hc_fn.weight",
                "final_layernorm.weight",
                "hc_head.hc_scale",
                "output_layer.weight",
            ],
        );
        ordered(
            Version::V2_0_0,
            true,
            &[
                "language_model/embedding/word_embeddings/weight",
                "language_model/embedding/word_embeddings/norm.weight",
                "language_model/encoder/layers.0.input_norm.weight",
                "language_model/encoder/layers.0.self_attention.query_key_value.weight",
                "language_model/encoder/layers.0.self_attention.dense.weight",
                "language_model/encoder/layers.0.post_attention_norm.weight",
                "language_model/encoder/layers.0.mlp.dense_4h_to_h.weight",
                "language_model/encoder/final_norm.weight",
                "language_model/output_layer/weight",
                "word_embeddings_for_head/weight",
            ],
        );
    }
}
