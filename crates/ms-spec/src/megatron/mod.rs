//! Megatron's arguments: those of a command line, and those stored in a checkpoint.

mod hybrid;
mod read;
mod write;

pub use read::from_args;
use serde_json::{Map, Value};
pub use write::to_args;

use crate::hf::Fields;
use crate::{Error, Result};

const SOURCE: &str = "megatron arguments";

/// Slots of `--noop-layers`: indices into the list of layers with the empty ones in it.
///
/// # Errors
/// [`Error::Field`] for text that is no comma-separated list of numbers.
pub fn noop_layers(args: &Map<String, Value>) -> Result<Vec<usize>> {
    let wrong = |v: &Value| Error::Field {
        source_name: SOURCE,
        field: "noop_layers",
        want: "numbers with commas between them",
        got: v.to_string(),
    };
    match args.get("noop_layers") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(v @ Value::String(text)) => {
            text.split(',').map(|n| n.trim().parse().map_err(|_| wrong(v))).collect()
        }
        // Megatron turns the text into a set of integers, which a checkpoint may hold as a list.
        Some(v @ Value::Array(items)) => {
            items.iter().map(|n| n.as_u64().map(|n| n as usize).ok_or_else(|| wrong(v))).collect()
        }
        Some(v) => Err(wrong(v)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Family, hf};

    #[test]
    fn a_configuration_survives_the_way_through_arguments() {
        for (family, extra) in [
            (
                "llama",
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
            ),
            ("qwen2", json!({"tie_word_embeddings": true, "num_key_value_heads": 2})),
            ("qwen3", json!({"head_dim": 32, "rope_theta": 1e6, "torch_dtype": "bfloat16"})),
        ] {
            let mut json = json!({
                "model_type": family, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-6
            });
            for (key, value) in extra.as_object().unwrap() {
                json[key] = value.clone();
            }
            let config = hf::read_config(&json).unwrap();
            assert_eq!(from_args(&to_args(&config)).unwrap(), config, "{family}");
        }
    }

    #[test]
    fn empty_slots_are_not_layers() {
        let json = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
            "num_attention_heads": 4, "vocab_size": 100
        });
        let mut args = to_args(&hf::read_config(&json).unwrap());
        args.insert("noop_layers".into(), json!("1,5"));
        assert_eq!(from_args(&args).unwrap().layers, 4);
        args.insert("noop_layers".into(), json!("1;5"));
        assert!(from_args(&args).is_err());
    }

    #[test]
    fn sizes_beyond_all_bounds_are_refused() {
        let json = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100
        });
        let args = to_args(&hf::read_config(&json).unwrap());
        let mut wide = args.clone();
        wide.insert("hidden_size".into(), json!(1_u64 << 62));
        assert!(from_args(&wide).is_err());
        wide.insert("ffn_hidden_size".into(), json!(null));
        assert!(from_args(&wide).is_err());
        let mut shared = args;
        shared.insert("num_experts".into(), json!(4));
        shared.insert("n_shared_experts".into(), json!(1_u64 << 62));
        assert!(from_args(&shared).is_err());
    }

    #[test]
    fn what_is_not_supported_says_which_flag_would_do() {
        let mut args = to_args(
            &hf::read_config(&json!({
                "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 100
            }))
            .unwrap(),
        );
        args.insert("normalization".into(), json!("ScaleNorm"));
        assert_eq!(
            from_args(&args).unwrap_err().to_string(),
            "megatron arguments: normalization ScaleNorm is not supported; pass --normalization RMSNorm"
        );
    }

    #[test]
    fn scripts_of_upstream_describe_their_models() {
        // The flags of v2.0.0's DeepSeek-V3 script, as far as they describe the model.
        let args = json!({
            "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128,
            "vocab_size": 129_280, "multi_head_latent_attention": true, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128, "qk_layernorm": true, "num_experts": 256,
            "moe_router_topk": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "moe_layer_freq": 1, "moe_router_load_balancing_type": "noaux_tc", "n_group": 8, "topk_group": 4,
            "routed_scaling_factor": 2.5, "norm_topk_prob": true, "moe_router_score_function": "sigmoid",
            "swiglu": true, "normalization": "RMSNorm", "position_embedding_type": "rope",
            "untie_embeddings_and_output_weights": true, "num_nextn_predict_layers": 1
        });
        let c = from_args(args.as_object().unwrap()).unwrap();
        assert_eq!(c.family, Family::DeepseekV3);
        let total: usize = crate::params(&c).iter().map(|p| p.shape.numel()).sum();
        // 671 billion, and 11.5 of the prediction layer, whose embedding and output layer are the model's.
        assert_eq!(total / 1_000_000_000, 682);
        assert!(c.rope.interleaved && c.moe.unwrap().router.bias);
    }
}
