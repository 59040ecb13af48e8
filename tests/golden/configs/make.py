"""Writes what a release of transformers saves as config.json, for every class that it shares with ms-spec.

    pip install --target DIR transformers==4.57.6   # or 5.23.0
    PYTHONPATH=DIR python make.py

writes transformers-VERSION.json: by model_type the arguments (`given`) and the file (`saved`). No model is built, so no
framework is needed.
"""

import json
import logging
import os
import tempfile

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

logging.disable(logging.WARNING)
DECODER = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=100
)
LATENT = dict(
    DECODER, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8
)
EXPERTS = dict(moe_intermediate_size=32, num_experts_per_tok=2)
LOCAL = dict(DECODER, num_local_experts=4, num_experts_per_tok=2)
QWEN = dict(DECODER, num_experts=4, shared_expert_intermediate_size=48, **EXPERTS)
DEEPSEEK = dict(LATENT, n_routed_experts=8, n_shared_experts=1, **EXPERTS)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
GIVEN = {
    **dict.fromkeys("llama qwen2 qwen3 mistral glm glm4 gemma gemma2 granite olmo2 phi3 seed_oss internlm3".split(), DECODER),
    "mixtral": LOCAL,
    "olmoe": dict(DECODER, num_experts=4, num_experts_per_tok=2),
    "phimoe": LOCAL,
    "gpt_oss": LOCAL,
    "minimax_m2": LOCAL,
    "qwen2_moe": QWEN,
    "qwen3_moe": dict(DECODER, num_experts=4, **EXPERTS),
    "qwen3_next": dict(QWEN, **DELTA),
    "glm4_moe": dict(DECODER, n_routed_experts=4, n_shared_experts=1, **EXPERTS),
    "hunyuan_v1_moe": dict(DECODER, num_experts=4, moe_topk=2, moe_intermediate_size=32),
    "hy_v3": dict(DECODER, num_experts=4, **EXPERTS),
    "minicpm3": LATENT,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "glm_moe_dsa": DEEPSEEK,
    "deepseek_v4": dict(
        {k: v for k, v in DECODER.items() if k != "intermediate_size"},
        num_attention_heads=8, num_key_value_heads=1, n_routed_experts=8, **EXPERTS,
    ),
    "longcat_flash": dict(
        {k: v for k, v in LATENT.items() if k not in ("intermediate_size", "num_hidden_layers")},
        num_layers=4, ffn_hidden_size=96, n_routed_experts=4, moe_topk=2, expert_ffn_hidden_size=32, zero_expert_num=2,
    ),
    "mamba2": dict(hidden_size=64, num_hidden_layers=4, vocab_size=100, num_heads=2, head_dim=64, state_size=16, n_groups=2),
    "gpt2": dict(n_embd=64, n_layer=4, n_head=4, vocab_size=100),
    "bloom": dict(hidden_size=64, n_layer=4, n_head=4, vocab_size=100),
}

saved = {}
for model_type, given in sorted(GIVEN.items()):
    if model_type not in CONFIG_MAPPING:
        continue
    with tempfile.TemporaryDirectory() as folder:
        CONFIG_MAPPING[model_type](**given).save_pretrained(folder)
        with open(os.path.join(folder, "config.json")) as file:
            text = file.read()
    # Bare words for numbers that JSON has none for would make this file none, too.
    saved[model_type] = {"given": {"model_type": model_type, **given}, "saved": json.loads(text, parse_constant=str)}
with open(f"transformers-{transformers.__version__}.json", "w") as file:
    json.dump(saved, file, indent=1)
    file.write("\n")
