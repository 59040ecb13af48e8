//! Configurations as published describe models of as many parameters as published.

#![allow(clippy::unwrap_used)] // tests

use ms_spec::{hf, params};

/// What the file says of the architecture, and elements of all weights of the decoder: without prediction layers.
const MODELS: &[(&str, usize)] = &[
    (
        r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pretraining_tp": 1, "rope_scaling": null, "vocab_size": 32000}"#,
        6_738_415_616,
    ),
    (
        r#"{"model_type": "llama", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 14336, "mlp_bias": false,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_theta": 500000.0, "vocab_size": 128256,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}, "tie_word_embeddings": false}"#,
        8_030_261_248,
    ),
    (
        r#"{"model_type": "llama", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": true}"#,
        1_235_814_400,
    ),
    (
        r#"{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000}"#,
        7_241_732_096,
    ),
    (
        r#"{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": true,
        "use_sliding_window": false, "vocab_size": 151936}"#,
        494_032_768,
    ),
    (
        r#"{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": false, "vocab_size": 152064}"#,
        7_615_616_512,
    ),
    (
        r#"{"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151936}"#,
        8_190_735_360,
    ),
    (
        r#"{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
        "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936}"#,
        30_532_122_624,
    ),
    (
        r#"{"model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 5632,
        "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "vocab_size": 151936}"#,
        14_315_784_192,
    ),
    (
        r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "sliding_window": null,
        "vocab_size": 32000}"#,
        46_702_792_704,
    ),
    (
        r#"{"model_type": "gemma", "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048,
        "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "vocab_size": 256000}"#,
        2_506_172_416,
    ),
    (
        r#"{"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "intermediate_size": 14336,
        "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "vocab_size": 256000}"#,
        9_241_705_984,
    ),
    (
        r#"{"model_type": "phi3", "attention_bias": false, "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "sliding_window": 2047,
        "vocab_size": 32064}"#,
        3_821_079_552,
    ),
    (
        r#"{"model_type": "phimoe", "attention_bias": true, "hidden_size": 4096, "input_jitter_noise": 0.01, "intermediate_size": 6400,
        "lm_head_bias": true, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 16, "router_jitter_noise": 0.01, "sliding_window": 131072,
        "vocab_size": 32064}"#,
        41_873_153_344,
    ),
    (
        r#"{"model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
        "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
        "vocab_size": 102400}"#,
        15_706_484_224,
    ),
    (
        r#"{"model_type": "deepseek_v3", "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
        "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280}"#,
        671_026_419_200,
    ),
    (
        r#"{"model_type": "bloom", "n_embed": 4096, "n_inner": null, "n_layer": 30, "num_attention_heads": 32, "seq_length": 2048,
        "vocab_size": 250880}"#,
        7_069_016_064,
    ),
    (
        r#"{"model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "vocab_size": 50257}"#,
        124_439_808,
    ),
    (
        r#"{"model_type": "glm", "attention_bias": true, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 13696,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07, "vocab_size": 151552}"#,
        9_399_951_360,
    ),
    (
        r#"{"model_type": "chatglm", "add_bias_linear": false, "add_qkv_bias": true, "ffn_hidden_size": 13696, "hidden_size": 4096,
        "kv_channels": 128, "layernorm_epsilon": 1e-05, "multi_query_attention": true, "multi_query_group_num": 2,
        "num_attention_heads": 32, "num_layers": 28, "original_rope": true, "padded_vocab_size": 65024, "post_layer_norm": true,
        "rmsnorm": true, "seq_length": 8192, "vocab_size": 65024}"#,
        6_243_584_000,
    ),
    (
        r#"{"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_max_length": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "vocab_size": 125696}"#,
        7_505_973_248,
    ),
    (
        r#"{"model_type": "internlm2", "bias": false, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_scaling": {"factor": 2.0, "type": "dynamic"},
        "rope_theta": 1000000, "vocab_size": 92544}"#,
        7_737_708_544,
    ),
    (
        r#"{"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "no_bias": true,
        "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 8192,
        "use_dynamic_ntk": true, "use_logn_attn": true, "vocab_size": 151936}"#,
        7_721_324_544,
    ),
    (
        r#"{"model_type": "olmoe", "clip_qkv": null, "hidden_size": 2048, "intermediate_size": 1024, "norm_topk_prob": false,
        "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
        "vocab_size": 50304}"#,
        6_919_161_856,
    ),
    (
        r#"{"model_type": "minicpm", "dim_model_base": 256, "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36,
        "num_hidden_layers": 40, "num_key_value_heads": 36, "scale_depth": 1.4, "scale_emb": 12, "vocab_size": 122753}"#,
        2_724_880_896,
    ),
    (
        r#"{"model_type": "minicpm3", "dim_model_base": 256, "hidden_size": 2560, "intermediate_size": 6400, "kv_lora_rank": 256,
        "num_attention_heads": 40, "num_hidden_layers": 62, "num_key_value_heads": 40, "q_lora_rank": 768, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "scale_depth": 1.4, "scale_emb": 12, "vocab_size": 73448}"#,
        4_073_875_968,
    ),
    (
        r#"{"model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": false}, "vocab_size": 201088}"#,
        20_914_757_184,
    ),
    (
        r#"{"model_type": "seed_oss", "attention_bias": true, "attention_out_bias": false, "head_dim": 128, "hidden_size": 5120,
        "intermediate_size": 27648, "mlp_bias": false, "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "rope_scaling": {"rope_type": "default"}, "vocab_size": 155136}"#,
        36_151_104_512,
    ),
    (
        r#"{"model_type": "hunyuan_v1_moe", "attention_head_dim": 128, "cla_share_factor": 2, "hidden_size": 4096,
        "intermediate_size": 3072, "moe_intermediate_size": 3072, "moe_layer_num_skipped": 0, "moe_topk": 8,
        "num_attention_heads": 32, "num_experts": 64, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_shared_expert": 1,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}, "tie_word_embeddings": true, "use_cla": false,
        "use_mixed_mlp_moe": true, "use_qk_norm": true, "vocab_size": 128167}"#,
        80_393_183_232,
    ),
    (
        r#"{"model_type": "bailing_moe", "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 5120,
        "moe_intermediate_size": 512, "moe_router_enable_expert_bias": true, "moe_shared_expert_intermediate_size": 512,
        "n_group": 8, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
        "num_hidden_layers": 20, "num_key_value_heads": 4, "num_shared_experts": 1, "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid", "topk_group": 4, "use_bias": false,
        "use_qk_norm": true, "use_qkv_bias": false, "use_rmsnorm": true, "vocab_size": 157184}"#,
        16_255_643_392,
    ),
    (
        r#"{"model_type": "qwen3_next", "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_value_head_dim": 128, "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": true,
        "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 512, "vocab_size": 151936}"#,
        79_674_391_296,
    ),
    (
        r#"{"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
        "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
        "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "routed_scaling_factor": 1.0,
        "topk_group": 1, "use_qk_norm": false, "vocab_size": 151552}"#,
        106_852_251_264,
    ),
    (
        r#"{"model_type": "mamba2", "expand": 2, "head_dim": 64, "hidden_size": 4096, "n_groups": 8, "norm_before_gate": true,
        "num_heads": 128, "num_hidden_layers": 64, "rms_norm": true, "state_size": 128, "time_step_limit": [0.0, Infinity],
        "use_bias": false, "use_conv_bias": true, "vocab_size": 32768}"#,
        7_285_403_648,
    ),
];

#[test]
fn published_configurations_describe_models_of_their_size() {
    let mut others = Vec::new();
    for &(text, elements) in MODELS {
        let c = hf::read_config(&hf::parse_json(text).unwrap()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let c = ms_spec::ModelConfig { mtp: 0, ..c };
        let found: usize = params(&c).iter().map(|p| p.shape.numel()).sum();
        if found != elements {
            others.push(format!("expected {elements}, found {found}: {text}"));
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}
