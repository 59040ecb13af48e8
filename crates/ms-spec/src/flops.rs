//! Floating-point operations of one iteration, as the two upstream versions count them. Recurrent mixers are not counted.

use crate::ModelConfig;

/// Matrices of a gated feed-forward layer relative to a plain one.
fn gating(config: &ModelConfig) -> f64 {
    if config.activation.gated() { 1.5 } else { 1.0 }
}

/// Key/value heads relative to query heads; 0 without attention.
fn sharing(config: &ModelConfig) -> f64 {
    if config.heads == 0 { 0.0 } else { config.groups as f64 / config.heads as f64 }
}

/// FLOPs of forward and backward over `batch` samples of `seq` tokens, as v2.0.0 counts them.
///
/// `12 B s L h^2 ((1 + G/N + s/h) D N / h + F/h * gating + V / (2 L h))`; causality is not taken into account.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/training/training.py`, `num_floating_point_operations`.
pub fn v2_0_0(config: &ModelConfig, batch: usize, seq: usize) -> f64 {
    let c = config;
    let (b, s, l, h) = (batch as f64, seq as f64, c.layers as f64, c.hidden as f64);
    let query = c.head_dim as f64 * c.heads as f64 / h;
    let attention = (1.0 + sharing(c) + s / h) * query;
    let mlp = c.ffn as f64 / h * gating(c);
    let logits = c.padded_vocab as f64 / (2.0 * l * h);
    12.0 * b * s * l * h * h * (attention + mlp + logits)
}

/// FLOPs of forward and backward over `batch` samples of `seq` tokens, as head counts them: attention is causal.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/training.py`, `num_floating_point_operations`.
pub fn head(config: &ModelConfig, batch: usize, seq: usize) -> f64 {
    let c = config;
    let (b, s, l, h) = (batch as f64, seq as f64, c.layers as f64, c.hidden as f64);
    let query = c.head_dim as f64 * c.heads as f64 / h;
    let mlp = 12.0 * l * h * c.ffn as f64 * gating(c);
    let attention = 12.0 * l * h * h * (1.0 + sharing(c) + s / (2.0 * h)) * query;
    b * s * (mlp + attention + 6.0 * h * c.padded_vocab as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf;

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
    fn a_model_without_attention_has_a_number() {
        let json = serde_json::json!({
            "model_type": "mamba3", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 1000
        });
        let config = hf::read_config(&json).unwrap();
        let logits = 6.0 * 2.0 * 16.0 * 64.0 * 1000.0;
        assert_eq!((v2_0_0(&config, 2, 16), head(&config, 2, 16)), (logits, logits));
    }
}
