"""Forms of small models that transformers makes at random: kinds and the fields of their configurations."""

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LATENT = dict(q_lora_rank=20, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=8, num_key_value_heads=4, head_dim=8)
DEEPSEEK = dict(**LATENT, moe_intermediate_size=12, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3, first_k_dense_replace=1)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
SHARED = dict(**EXPERTS, shared_expert_intermediate_size=20)
LOCAL = dict(num_local_experts=4, num_experts_per_tok=2)
INDEXER = dict(index_topk=5, index_n_heads=8, index_head_dim=16)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
STATE = dict(num_heads=8, head_dim=8, expand=2, state_size=8)
GPT2 = dict(n_layer=2, n_head=4, n_embd=32, n_positions=64)
SPARSE = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=12)


def yarn(**more):
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, **more}


def longrope(original, **more):
    factors = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": original, **factors, **more}


def window(layers):
    return dict(use_sliding_window=True, sliding_window=5, max_window_layers=layers)


FORMS = [
    ("llama", dict(attention_bias=True)),
    ("llama", dict(mlp_bias=True)),
    ("llama", dict(tie_word_embeddings=True)),
    ("llama", dict(head_dim=12, num_key_value_heads=1)),
    ("llama", dict(rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0})),
    ("llama", dict(rope_parameters={"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}, max_position_embeddings=16)),
    ("llama", dict(rope_parameters=yarn())),
    ("llama", dict(rope_parameters=yarn(attention_factor=1.3))),
    ("llama", dict(rope_parameters=yarn(beta_fast=8.0, beta_slow=2.0))),
    ("llama", dict(rope_parameters=yarn(truncate=False))),
    ("llama", dict(rope_parameters=yarn(mscale=0.8, mscale_all_dim=0.5))),
    ("llama", dict(rope_parameters={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
                                    "original_max_position_embeddings": 16, "rope_theta": 500000.0})),
    ("llama", dict(rope_parameters=longrope(16), max_position_embeddings=64)),
    ("llama", dict(rope_parameters=longrope(32), max_position_embeddings=128)),
    ("llama", dict(rope_parameters=longrope(16, factor=8.0), max_position_embeddings=64)),
    ("llama", dict(rope_parameters=longrope(16, attention_factor=1.1), max_position_embeddings=64)),
    ("mistral", dict(sliding_window=5)),
    ("mistral", dict(sliding_window=None, head_dim=16)),
    ("qwen2", window(1)),
    ("qwen2", window(0)),
    ("qwen2", dict(use_sliding_window=True, sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
    ("qwen2", dict(tie_word_embeddings=True)),
    ("qwen3", dict(attention_bias=True)),
    ("qwen3", window(1)),
    ("qwen3", dict(rope_parameters=yarn())),
    ("qwen2_moe", dict(**SHARED, norm_topk_prob=True)),
    ("qwen2_moe", dict(**SHARED, decoder_sparse_step=2)),
    ("qwen2_moe", dict(**SHARED, mlp_only_layers=[0], qkv_bias=False)),
    ("qwen2_moe", dict(**SHARED, **window(1))),
    ("qwen3_moe", dict(**EXPERTS, norm_topk_prob=True)),
    ("qwen3_moe", dict(**EXPERTS, norm_topk_prob=False, mlp_only_layers=[1])),
    ("qwen3_moe", dict(**EXPERTS, **window(0))),
    ("mixtral", dict(**LOCAL, sliding_window=5)),
    ("mixtral", dict(num_local_experts=4, num_experts_per_tok=1)),
    ("gemma", dict()),
    ("gemma", dict(hidden_act="gelu")),
    ("gemma", dict(num_key_value_heads=1, head_dim=16, attention_bias=True)),
    ("gemma2", dict(sliding_window=5, query_pre_attn_scalar=16, attn_logit_softcapping=3.0, final_logit_softcapping=4.0)),
    ("gemma2", dict(sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=None, final_logit_softcapping=None)),
    ("gemma2", dict(sliding_window=5, layer_types=["full_attention", "sliding_attention"])),
    ("glm", dict(attention_bias=False)),
    ("glm", dict(partial_rotary_factor=1.0)),
    ("glm4", dict()),
    ("glm4", dict(attention_bias=True)),
    ("glm4_moe", dict(**SPARSE, n_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, n_group=1, topk_group=1)),
    ("glm4_moe", dict(**SPARSE, n_shared_experts=2, first_k_dense_replace=0, use_qk_norm=False, n_group=4, topk_group=2, norm_topk_prob=False,
                      routed_scaling_factor=1.7)),
    ("deepseek_v2", dict(**DEEPSEEK | dict(q_lora_rank=None), topk_method="greedy", routed_scaling_factor=2.0)),
    ("deepseek_v2", dict(**DEEPSEEK, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=3.0)),
    ("deepseek_v2", dict(**DEEPSEEK, topk_method="greedy", attention_bias=True)),
    ("deepseek_v2", dict(**DEEPSEEK, topk_method="greedy", rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.7))),
    ("deepseek_v2", dict(**DEEPSEEK, topk_method="greedy", rope_parameters=yarn())),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=4, topk_group=2)),
    ("deepseek_v3", dict(**DEEPSEEK | dict(q_lora_rank=None), n_group=1, topk_group=1)),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=2, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.5)),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=4, topk_group=2, rope_interleave=False)),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=4, topk_group=2, attention_bias=True)),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=4, topk_group=2, rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0))),
    ("deepseek_v3", dict(**DEEPSEEK, n_group=4, topk_group=2, rope_parameters=yarn())),
    ("deepseek_v32", dict(**DEEPSEEK, **INDEXER, n_group=4, topk_group=2)),
    ("glm_moe_dsa", dict(**DEEPSEEK, **INDEXER, n_group=1, topk_group=1)),
    ("minimax_m2", dict(**LOCAL)),
    ("minimax_m2", dict(**LOCAL, rotary_dim=4)),
    ("hy_v3", dict(**EXPERTS)),
    ("hunyuan_v1_moe", dict(num_experts=4, moe_topk=2)),
    ("hunyuan_v1_moe", dict(num_experts=4, moe_topk=1)),
    ("hunyuan_v1_moe", dict(num_experts=4, moe_topk=2, attention_bias=True)),
    ("phi3", dict()),
    ("phi3", dict(sliding_window=5)),
    ("phi3", dict(partial_rotary_factor=0.5)),
    ("phi3", dict(original_max_position_embeddings=32, rope_parameters=longrope(32))),
    ("phi3", dict(original_max_position_embeddings=16, rope_parameters=longrope(16))),
    ("phimoe", dict(**LOCAL)),
    ("phimoe", dict(**LOCAL, attention_bias=True, lm_head_bias=True, sliding_window=5)),
    ("minicpm3", dict(**LATENT)),
    ("minicpm3", dict(**LATENT | dict(q_lora_rank=None), tie_word_embeddings=False, scale_depth=2.0, scale_emb=3)),
    ("bloom", dict(n_layer=2, n_head=4)),
    ("bloom", dict(n_layer=2, n_head=4, tie_word_embeddings=False)),
    ("gpt2", dict(**GPT2)),
    ("gpt2", dict(**GPT2, n_inner=40, activation_function="gelu")),
    ("gpt2", dict(**GPT2, tie_word_embeddings=False)),
    ("gpt_oss", dict(**LOCAL, sliding_window=5)),
    ("gpt_oss", dict(**LOCAL, attention_bias=False, swiglu_limit=1.0, swiglu_alpha=1.2, rope_parameters=PLAIN)),
    ("gpt_oss", dict(**LOCAL, layer_types=["full_attention", "full_attention"], tie_word_embeddings=True)),
    ("internlm3", dict()),
    ("internlm3", dict(attention_bias=True, mlp_bias=True)),
    ("seed_oss", dict()),
    ("seed_oss", dict(attention_bias=False, mlp_bias=True)),
    ("seed_oss", dict(attention_out_bias=True)),
    ("mamba2", dict(**STATE, n_groups=2, chunk_size=4)),
    ("mamba2", dict(**STATE, n_groups=1, chunk_size=16, use_bias=True, use_conv_bias=False, tie_word_embeddings=True)),
    ("mamba2", dict(**STATE, n_groups=2, chunk_size=4, time_step_limit=(0.01, 0.5), residual_in_fp32=False)),
    ("qwen3_next", dict(**SHARED, **DELTA, num_hidden_layers=4)),
    ("qwen3_next", dict(**SHARED, **DELTA, num_hidden_layers=4, full_attention_interval=2, decoder_sparse_step=2, norm_topk_prob=False, attention_bias=True)),
    ("longcat_flash", dict(**LATENT, num_layers=2, ffn_hidden_size=40, expert_ffn_hidden_size=12, n_routed_experts=4, zero_expert_num=2, moe_topk=2)),
]
