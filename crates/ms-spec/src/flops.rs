//! Floating-point operations of one iteration, as the two upstream versions count them, summed over the parts of a model.
//!
//! Both versions count each product once forward and twice backward. Neither counts routers, indexers and hyper-connections,
//! nor recurrent mixers other than Mamba2 at head; all other layers of a model with attention count as attention, whatever
//! mixer they have. Neither version knows which layers are dense under `--first-k-dense-replace`; here the model's actual
//! layers count. `GeGLU`, whose gate upstream leaves out, counts like `SwiGLU`. Slots without a layer (`--noop-layers`) count
//! as layers, of a transformer like the last one: MindSpeed's own count leaves them out, and neither version takes it over.

use crate::ModelConfig;
use crate::parts::{dense, ends, experts, grouped, prediction};
use crate::sizes::{Feed, Mixer};

/// FLOPs of forward and backward over `batch` samples of `seq` tokens, as MindSpeed-LLM v2.0.0 counts them.
///
/// `12 B s L h^2 ((1 + G/N + s/h) D N / h + K F/h * gating + V / (2 L h))` with `K` experts per token, 1 without experts.
/// With experts, every layer has them, each as wide as a dense MLP (`ffn_hidden_size`). Shared experts, the specifics of
/// latent attention and multi-token prediction are left out; causality is not taken into account.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/training/training.py`, `num_floating_point_operations`.
pub fn v2_0_0(config: &ModelConfig, batch: usize, seq: usize) -> f64 {
    let c = config;
    let networks = c.moe.as_ref().map_or(1, |m| m.top_k);
    let layer = grouped::flops(c, seq as f64) + dense::flops(c, networks * c.ffn);
    (batch * seq) as f64 * ((c.layers + c.empty_slots) as f64 * layer + ends::flops(c))
}

/// FLOPs of forward and backward over `batch` samples of `seq` tokens, as the newest version of MindSpeed-LLM counts them.
///
/// Attention is causal. Dense layers, layers of experts (`K` routed ones of a token, and the shared) and multi-token
/// prediction modules, which are layers like the last one, are counted separately; latent attention is counted by its own
/// projections and the norms of its latents. Models with Mamba2 layers are counted part by part, without experts and
/// prediction modules.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/training.py`, `num_floating_point_operations`: `transformer_flops` and
/// `hybrid_flops`; MindSpeed-LLM (2026), `mindspeed_llm/training/training.py`, which repeats it.
pub fn head(config: &ModelConfig, batch: usize, seq: usize) -> f64 {
    let tokens = (batch * seq) as f64;
    let counted = (0..config.layers).any(|l| of_state(config, l).is_some());
    tokens * if counted { of_hybrid(config, seq) } else { of_transformer(config, seq) }
}

/// FLOPs per token in a model of transformer layers and empty slots, with any mixer.
fn of_transformer(c: &ModelConfig, seq: usize) -> f64 {
    let attention = c.attention.kind().flops(c, seq as f64 / 2.0);
    let network = |l: usize| match (&c.moe, c.layer(l).feed) {
        (Some(moe), Feed::Moe) => experts::flops(c, moe),
        _ => dense::flops(c, c.ffn),
    };
    let layers = c.layers + c.empty_slots + c.mtp;
    let networks: f64 = (0..layers).map(network).sum();
    let modules = c.mtp as f64;
    networks + layers as f64 * attention + modules * prediction::flops(c) + (modules + 1.0) * ends::flops(c)
}

/// FLOPs of a token in the mixer of layer `l`, if it has a state and upstream counts it.
fn of_state(c: &ModelConfig, l: usize) -> Option<f64> {
    c.recurrent(c.layer(l).mixer)?.flops(c)
}

/// FLOPs of a token in a model of attention and feed-forward layers, and of layers with a state that upstream counts.
fn of_hybrid(c: &ModelConfig, seq: usize) -> f64 {
    let mixer = |l: usize| match c.layer(l).mixer {
        Mixer::Attention => c.attention.kind().flops(c, seq as f64 / 2.0),
        _ => of_state(c, l).unwrap_or(0.0),
    };
    let network = |l: usize| if c.layer(l).feed == Feed::Dense { dense::flops(c, c.ffn) } else { 0.0 };
    (0..c.layers).map(|l| mixer(l) + network(l)).sum::<f64>() + ends::flops(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf;
    use crate::sizes::{Layer, Mamba2};

    #[test]
    fn the_matrices_of_a_model_are_counted_six_times_per_token() {
        let json = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000
        });
        let config = hf::read_config(&json).unwrap();
        // Weights of q, k, v, o, gate, up, down and head; the attention matrix itself adds 12 s D N per token and layer.
        let matrices = 3 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 192) + 64 * 1000;
        let scores = 3 * 12 * 16 * 64;
        let want = 2.0 * 16.0 * (6.0 * matrices as f64 + scores as f64);
        assert_eq!(v2_0_0(&config, 2, 16), want);
        assert_eq!(head(&config, 2, 16), want - 2.0 * 16.0 * scores as f64 / 2.0);
    }

    #[test]
    fn empty_slots_count_as_layers() {
        let config = |layers, empty_slots| ModelConfig {
            layers,
            empty_slots,
            hidden: 64,
            ffn: 192,
            heads: 4,
            groups: 4,
            head_dim: 16,
            padded_vocab: 1000,
            ..ModelConfig::default()
        };
        assert_eq!(v2_0_0(&config(3, 1), 2, 16), v2_0_0(&config(4, 0), 2, 16));
        assert_eq!(head(&config(3, 1), 2, 16), head(&config(4, 0), 2, 16));
    }

    #[test]
    fn a_model_without_attention_has_a_number() {
        let json = serde_json::json!({
            "model_type": "mamba3", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 1000
        });
        let config = hf::read_config(&json).unwrap();
        let logits = 6.0 * 2.0 * 16.0 * 64.0 * 1000.0;
        assert_eq!((v2_0_0(&config, 2, 16), head(&config, 2, 16)), (logits, logits));
    }

    fn same(found: f64, want: u64) {
        assert!((found / want as f64 - 1.0).abs() < 1e-12, "{found} is not {want}");
    }

    #[test]
    fn of_mixtral_the_experts_of_a_token_are_counted() {
        let json = serde_json::json!({
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000,
            "num_local_experts": 8, "num_experts_per_tok": 2
        });
        let config = hf::read_config(&json).unwrap();
        // q and o are 4096 x 4096, k and v 4096 x 1024, each of two experts has three of 4096 x 14336:
        // 32 * (2.5 * 4096^2 + 6 * 4096 * 14336) + 4096 * 32000 = 12_747_538_432 multiplications forward.
        let matrices = 6 * 12_747_538_432_u64;
        // 12 s D N of scores and their use in each of 32 layers.
        let scores = 32 * 12 * 4096 * 4096;
        same(v2_0_0(&config, 3, 4096), 3 * 4096 * (matrices + scores));
        same(head(&config, 3, 4096), 3 * 4096 * (matrices + scores / 2));
    }

    #[test]
    fn of_deepseek_v3_head_counts_latents_shared_experts_and_prediction() {
        let json = serde_json::json!({
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129_280, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
            "first_k_dense_replace": 3
        });
        let config = ModelConfig { mtp: 1, ..hf::read_config(&json).unwrap() };
        let (h, vocab, seq) = (7168_u64, 129_280, 4096);
        // The prediction module is a 62nd layer, with experts. The two latents' norms are counted, too.
        let attention = h * 1536 + 1536 * 128 * 192 + 1536 // queries
            + h * (512 + 64) + 512 * 128 * (128 + 128) + 512 // keys and values
            + 128 * 128 * h; // output
        let causal = seq / 2 * 128 * (192 + 128);
        let dense = 3 * h * 18_432;
        let experts = 9 * 3 * h * 2048; // eight routed, one shared
        let forward =
            62 * (attention + causal) + 3 * dense + 59 * experts + (2 * h * h + 3 * h) + 2 * h * vocab;
        same(head(&config, 2, seq as usize), 2 * seq * 6 * forward);

        // v2.0.0 knows 61 layers of plain attention with heads of 7168 / 128 = 56 elements, each token's eight experts as wide
        // as dense layers.
        let layer = 4 * h * h + 8 * 3 * h * 18_432;
        let forward = 61 * (layer + 2 * seq * h) + h * vocab;
        same(v2_0_0(&config, 2, seq as usize), 2 * seq * 6 * forward);
    }

    #[test]
    fn a_query_without_a_latent_is_one_matrix() {
        let json = serde_json::json!({
            "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 144, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "q_lora_rank": null,
            "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 16,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 2
        });
        let config = hf::read_config(&json).unwrap();
        let attention = 64 * 4 * 40 + 64 * (32 + 16) + 32 * 4 * (24 + 16) + 32 + 4 * 16 * 64;
        let causal = 8 / 2 * 4 * (40 + 16);
        same(head(&config, 1, 8), 8 * 6 * (2 * (attention + causal + 3 * 64 * 144) + 64 * 1000));
    }

    #[test]
    fn head_counts_a_hybrid_part_by_part() {
        let part = |mixer, feed| Layer { mixer, feed, ..Layer::default() };
        let config = ModelConfig {
            layers: 4,
            hidden: 64,
            ffn: 96,
            heads: 4,
            groups: 2,
            head_dim: 16,
            padded_vocab: 1000,
            pattern: vec![
                part(Mixer::Mamba2, Feed::None),
                part(Mixer::Attention, Feed::None),
                part(Mixer::Mamba2, Feed::None),
                part(Mixer::None, Feed::Dense),
            ],
            mamba2: Some(Mamba2 {
                heads: 8,
                head_dim: 16,
                groups: 2,
                state: 32,
                chunk: 8,
                ..crate::parts::mamba2::USUAL
            }),
            ..ModelConfig::default()
        };
        // A Mamba2 layer: z, x, B, C, dt in, the scan of 7 operations an element of the state, the way out.
        let mamba = 2 * 64 * (128 + 128 + 64 + 64 + 8) + 7 * 128 * 32 + 2 * 128 * 64;
        let attention = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64) + 4 * 64 * (16 / 2);
        let dense = 2 * 3 * 64 * 96;
        same(head(&config, 1, 16), 16 * 3 * (2 * mamba + attention + dense + 2 * 64 * 1000));
    }
}
