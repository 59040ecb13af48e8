//! A model small enough to answer at once.

use ms_testing::workspace_root;
use std::path::Path;

/// A model folder of random weights with a byte-level tokenizer, made by the programs' own crates.
pub(crate) fn tiny_model(dir: &Path) {
    let json = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 300,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    });
    model_of(dir, &json);
}

/// As [`tiny_model`], of any configuration with a vocabulary of 300 tokens.
pub(crate) fn model_of(dir: &Path, json: &serde_json::Value) {
    let text = std::fs::read_to_string(workspace_root().join("README.md")).unwrap();
    let options = ms_text::bpe::Options { vocab_size: 300, ..Default::default() };
    let config = ms_spec::hf::read_config(json).unwrap();
    let mut weights = |spec: &ms_spec::ParamSpec| {
        let mut values = vec![1f32; spec.shape.numel()];
        if spec.shape.len() == 2 {
            ms_core::Rng::named(5, &spec.name).fill_normal(&mut values, 0.3);
        }
        Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    };
    ms_ckpt::write_hf(dir, &config, ms_core::DType::F32, true, &mut weights).unwrap();
    // After the weights: writing a model replaces its folder.
    ms_text::bpe::train(&options, [text]).unwrap().write(dir).unwrap();
}
