"""Logits of samples of this folder under configurations that say other things.

    python changed.py        # transformers 5.24.0

writes changed.json, a list of cases: the sample, fields of its config.json in place of those that stand there, weights that
are multiplied (by part of their names), modules of every layer that get a bias (of BIAS, repeated), and the last token's logits,
in float32, of TOKENS.
"""

import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = [3 + 7 * i % 89 for i in range(24)]
SMALL = {"q_a_proj": 2**-7, "kv_a_proj": 2**-7}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 10000.0}
SWITCHED = {"use_sliding_window": True, "sliding_window": 4, "layer_types": None, "rope_scaling": None}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 2.5, 3.0],
    "original_max_position_embeddings": 16,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
BIAS = [-0.5, -0.25, 0.125, 0.25, 0.5]
CASES = [
    *((name, {"rms_norm_eps": 1e-4}, SMALL) for name in (
        "minicpm3", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v32", "glm_moe_dsa",
    )),
    ("llama3_gqa", {"max_position_embeddings": 16, "rope_parameters": DYNAMIC, "rope_scaling": None}, {}),
    ("qwen2_moe", SWITCHED | {"max_window_layers": 2}, {}),
    ("qwen3_moe", SWITCHED | {"max_window_layers": 2}, {}),
    ("gpt_oss", {"rope_parameters": None, "rope_scaling": None}, {}),
    ("qwen2_moe", {"tie_word_embeddings": True}, {}),
    ("llama3_gqa", {"rope_scaling": None, "partial_rotary_factor": 0.5}, {}),
    *((name, {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}, {}) for name in ("qwen3", "hy_v3")),
    ("minimax_m2", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "rotary_dim": 4}, {}),
    ("minimax_m2", {"rope_parameters": PLAIN, "rotary_dim": 4}, {}),
    # Words of other classes.
    ("llama3_gqa", {"rope_scaling": LONG | {"short_mscale": 1.1, "long_mscale": 1.3}}, {}),
    ("llama3_gqa", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "max_position_embeddings": 16}, {}),
    ("qwen2", {"rope_parameters": None, "rope_scaling": None, "rotary_emb_base": 300.0}, {}),
    ("deepseek_v2_lite", {"rope_interleave": False}, {}),
    # Both dialects.
    ("llama3_gqa", {"rope_parameters": PLAIN, "rope_scaling": {"type": "linear", "factor": 2.0}}, {}),
    ("llama3_gqa", {"original_max_position_embeddings": 8}, {}),
]
BIASED = [("deepseek_v2_lite", {"attention_bias": True}, ["self_attn.kv_a_proj_with_mqa", "self_attn.o_proj"])]

made = []
for name, fields, scaled, biased in [(*case, []) for case in CASES] + [(name, fields, {}, modules) for name, fields, modules in BIASED]:
    config = json.loads((HERE / name / "config.json").read_text()) | fields
    weights = load_file(HERE / name / "model.safetensors")
    factor = lambda key: next((f for part, f in scaled.items() if part in key), 1.0)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        changed = {key: t * factor(key) if factor(key) != 1.0 else t for key, t in weights.items()}
        for key, t in list(changed.items()):
            if any(key.endswith(f".{module}.weight") for module in biased):
                rows = torch.tensor((BIAS * t.shape[0])[: t.shape[0]], dtype=t.dtype)
                changed[key.removesuffix("weight") + "bias"] = rows
        save_file(changed, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0, -1]
    made.append({
        "model": name, "fields": fields, "scaled": scaled, "biased": biased, "tokens": TOKENS,
        "logits": [float(f"{x:.6g}") for x in logits.tolist()],
    })
    print(name, fields, logits[:3].tolist())
(HERE / "changed.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in made) + "\n]\n")
