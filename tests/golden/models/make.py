#!/usr/bin/env python3
"""Makes the sample models of this folder: tiny random checkpoints with the logits of the Python classes.

    python make.py [NAME ...]        writes ./NAME/{config.json,model.safetensors,reference.safetensors,golden.json}

A sample is a function below or, if it needs no more, a ./NAME/config.json of a class of transformers.

Weights are seeded, rounded to bfloat16 and stored so; logits are computed in float32 from the stored values.
"""

import importlib.util
import json
import math
import os
import pathlib
import sys
import types
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = {}
F32_NAMES = (
    "e_score_correction_bias", "expert_bias", "gate.wg.weight", "router.classifier.weight", "ffn.gate.bias", "attn_sink", "ape",
    *(f"hc_{place}_{part}" for place in ("attn", "ffn", "head") for part in ("fn", "base", "scale")),
)


def sample(what, derived=False):
    def keep(function):
        SAMPLES[function.__name__] = (what, derived, function)
        return function

    return keep


def fill(model, seed):
    """Random values of a size that lets every part of the model matter, all of them bfloat16 numbers."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda t, std: torch.randn(t.shape, generator=g) * std
    tied = model.config.get_text_config().tie_word_embeddings
    with torch.no_grad():
        for name, p in sorted(model.named_parameters(remove_duplicate=True)):
            leaf = name.rsplit(".", 1)[-1]
            if p.dim() == 1 and leaf == "weight":
                offset = 0.0 if any(word in type(model).__name__ for word in ("Gemma", "Step")) else 1.0
                value = offset + normal(p, 0.2)
            elif leaf == "sinks":
                value = normal(p, 1.0)
            elif "bias" in leaf:
                value = normal(p, 0.2)
            elif "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
                value = normal(p, 1.5 / math.sqrt(p.shape[1]) if tied else 1.0)
            else:
                # Stacked and transposed weights have their inputs elsewhere; the square root of either is near enough.
                inputs = p.shape[-2] if "GptOss" in type(model).__name__ and p.dim() == 3 else p.shape[-1]
                value = normal(p, 1.4 / math.sqrt(inputs))
            p.copy_(value.bfloat16().float())
        for name, b in sorted(model.named_buffers()):
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                b.copy_((torch.rand(b.shape, generator=g) * 0.3).bfloat16().float())
            if name.endswith("tid2eid"):
                experts = model.config.n_routed_experts
                b.copy_(torch.rand((len(b), experts), generator=g).argsort(-1)[:, : b.shape[1]])


def build(config, seed):
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model, seed)
    return model


def run(model, ids):
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    return out.logits.float(), [h.float() for h in out.hidden_states or ()]


def noise_of(model, ids, logits):
    """Largest change of a logit when every weight changes by one part in a million."""
    g = torch.Generator().manual_seed(7)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=g))
    moved = (run(model, ids)[0] - logits).abs().max().item()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(before[n])
    return moved


def stored(model, folder):
    """The files that `save_pretrained` makes, in bfloat16, without what only generation reads."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = load_file(folder / "model.safetensors")
    keep = lambda name: torch.float32 if name.endswith(F32_NAMES) else torch.bfloat16
    return {n: t.to(keep(n)) if t.is_floating_point() else t for n, t in tensors.items()}


def closest_pick(model, ids):
    """Smallest distance between the last key that an indexer picks and the first that it does not."""
    margins, topk = [], torch.Tensor.topk

    def watched(scores, k, *rest, **more):
        if scores.dim() == 3 and k == getattr(model.config, "index_topk", None):
            ordered = scores.sort(-1, descending=True)[0]
            apart = ordered[:, k:, k - 1] - ordered[:, k:, k]
            margins.append(apart[apart.isfinite()].min().item())
        return topk(scores, k, *rest, **more)

    torch.Tensor.topk = watched
    try:
        run(model, ids)
    finally:
        torch.Tensor.topk = topk
    return min(margins, default=math.inf)


def described(name):
    """The sample that NAME/config.json alone describes, of a class of transformers."""
    config = transformers.AutoConfig.from_pretrained(HERE / name)
    seed = zlib.crc32(name.encode())
    return f"as {name}/config.json describes it", False, lambda: {"model": build(config, seed), "seed": seed}


def make(name, length=16, batch=2):
    what, derived, function = SAMPLES[name] if name in SAMPLES else described(name)
    made = function()
    model, seed = made["model"], made["seed"]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    print(name, end=" ", flush=True)
    vocab = model.config.vocab_size
    g = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(3, vocab, (batch, length), generator=g)
    logits, hidden = run(model, ids)
    assert torch.isfinite(logits).all()
    assert closest_pick(model, ids) > 1e-3, f"{name}: an indexer has the choice between equal keys; take another seed"
    swapped = ids.clone()
    swapped[:, [3, 10]] = ids[:, [10, 3]]
    change = (run(model, swapped)[0][:, -1] - logits[:, -1]).abs().max().item()
    noise = noise_of(model, ids, logits)
    tensors = stored(model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}

    def write(tensors, config):
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        for file in [*folder.glob("model*"), *folder.glob("pytorch_model*")]:
            file.unlink()
        writer(folder, tensors)

    writer = in_parts(1, "safetensors")
    if not derived:
        write(tensors, config)
        again = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        difference = (run(again, ids)[0] - logits).abs().max().item()
        assert difference <= 1e-6, f"{name}: the stored model differs by {difference}"
    writer = made.get("write", writer)
    write(made.get("weights", lambda t: t)(tensors), made.get("config", lambda c: c)(config))
    reference = {"input_ids": ids, "logits": logits.contiguous()}
    reference |= {f"hidden_states.{i}": h.contiguous() for i, h in enumerate(hidden)}
    save_file(reference, folder / "reference.safetensors")
    golden = {
        "family": name,
        "what": what,
        "seed": seed,
        "weights_dtype": "bf16",
        "reference": {
            "library": "transformers",
            "version": transformers.__version__,
            "torch": torch.__version__.split("+")[0],
            "compute_dtype": "float32",
            "attention": "eager",
            "use_cache": False,
            "derived": derived or False,
        },
        "logits_std": logits.std().item(),
        "max_abs_logit_change_under_1e-6_relative_weight_noise": noise,
        "change_of_last_logits_over_std_when_tokens_3_and_10_are_swapped": change / logits.std().item(),
        "suggested_atol_float32": float(f"{max(5e-4, 10 * noise):.2g}"),
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:20} {size:8} bytes, std {logits.std().item():.2f}, noise {noise:.1e}, order {change / logits.std().item():.2f}")


T = transformers
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32.0, "beta_slow": 1.0}


@sample("sinks, clamped SwiGLU (limit 1.5 so that it acts), alternating window 6, yarn without truncation, biases everywhere")
def gpt_oss():
    config = T.GptOssConfig(
        vocab_size=128, hidden_size=32, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6,
        swiglu_limit=1.5, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        rope_parameters=YARN | {"truncate": False, "rope_theta": 150000.0},
    )
    return {"model": build(config, 101), "seed": 101}


@sample("two latent attentions and two dense halves a layer, experts on a shortcut, zero experts, scaled latents, softmax with bias")
def longcat_flash():
    config = T.LongcatFlashConfig(
        vocab_size=128, hidden_size=32, num_layers=2, num_attention_heads=4, ffn_hidden_size=48, q_lora_rank=20,
        kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, head_dim=8, v_head_dim=16, moe_topk=3,
        n_routed_experts=4, zero_expert_num=3, expert_ffn_hidden_size=20, routed_scaling_factor=2.0,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    # The class holds unused gate and up matrices of zero experts too; published files do not.
    zero = tuple(f"experts.{e}.{part}_proj.weight" for e in range(4, 7) for part in ("gate", "up"))
    drop = lambda tensors: {n: t for n, t in tensors.items() if not n.endswith(zero)}
    hub = lambda c: c | {"attention_method": "MLA", "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity", "router_bias": False}
    return {"model": build(config, 102), "seed": 102, "weights": drop, "config": hub}


def hunyuan_config(**more):
    return T.HunYuanMoEV1Config(**{**dict(
        vocab_size=128, hidden_size=32, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=4, moe_topk=2, max_position_embeddings=64, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
        rope_parameters={"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0},
    ), **more})


@sample("norms of query and key after the rotation, NTK alpha, renormalised softmax top-2, one shared expert")
def hunyuan_v1_moe():
    hub = lambda c: c | {
        "num_shared_expert": 1, "use_qk_norm": True, "use_cla": False, "cla_share_factor": 2, "use_mixed_mlp_moe": True,
        "moe_intermediate_size": [20] * 4, "moe_topk": [2] * 4, "num_shared_expert": [1] * 4, "moe_layer_num_skipped": 0,
    }
    return {"model": build(hunyuan_config(), 103), "seed": 103, "config": hub}


class CrossLayer(nn.Module):
    """Attention of Hunyuan-Large as its published code has it: a layer whose index does not divide by the share factor
    takes the projected keys and values of the last one that does; rotation and norms are its own."""

    def __init__(self, attention, shared, owner):
        super().__init__()
        self.inner, self.shared, self.owner = attention, shared, owner

    def forward(self, hidden_states, position_embeddings, attention_mask, **_):
        a, (b, s, _h) = self.inner, hidden_states.shape
        q = a.q_proj(hidden_states)
        if self.owner:
            self.shared["kv"] = (a.k_proj(hidden_states), a.v_proj(hidden_states))
        k, v = self.shared["kv"]
        q, k, v = (t.view(b, s, -1, a.head_dim).transpose(1, 2) for t in (q, k, v))
        cos, sin = (t.unsqueeze(1) for t in position_embeddings)
        half = a.head_dim // 2
        turn = lambda t: t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin
        q, k = a.query_layernorm(turn(q)), a.key_layernorm(turn(k))
        k, v = (t.repeat_interleave(a.num_key_value_groups, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) * a.scaling
        mask = torch.full((s, s), -torch.inf).triu(1)
        out = torch.softmax(scores + mask, -1) @ v
        return a.o_proj(out.transpose(1, 2).reshape(b, s, -1)), None


@sample("cross-layer attention: odd layers have queries only; top-1 without renormalisation; NTK alpha; norms after the rotation",
        derived="the native class hunyuan_v1_moe with attention and gate as in the published code of Hunyuan-Large")
def hunyuan_large():
    model = build(hunyuan_config(moe_topk=1, num_hidden_layers=4), 104)
    shared = {}
    for i, layer in enumerate(model.model.layers):
        layer.self_attn = CrossLayer(layer.self_attn, shared, i % 2 == 0)
        gate = layer.mlp.gate

        def forward(hidden, gate=gate):
            p = torch.softmax(gate.wg(hidden.reshape(-1, hidden.shape[-1])), -1)
            w, e = p.max(-1, keepdim=True)
            return p, w, e

        gate.forward = forward

    def names(tensors):
        tensors = {n.replace("self_attn.inner.", "self_attn."): t for n, t in tensors.items()}
        return {n: t for n, t in tensors.items() if not any(f"layers.{l}.self_attn.{p}_proj" in n for l in (1, 3) for p in "kv")}

    hub = lambda _: {
        "architectures": ["HunYuanForCausalLM"], "model_type": "hunyuan", "attention_bias": False, "vocab_size": 128,
        "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_experts": 4, "moe_topk": 1, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True,
        "cla_share_factor": 2, "rope_theta": 10000.0, "rope_scaling": {"alpha": 50.0, "factor": 1.0, "type": "dynamic"},
        "rms_norm_eps": 1e-05, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "mlp_bias": False, "torch_dtype": "bfloat16",
    }
    return {"model": model, "seed": 104, "weights": names, "config": hub}


def llama_like(seed, cls=T.LlamaConfig, **more):
    base = dict(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return build(cls(**{**base, **more}), seed)


def as_type(model_type, architecture, **more):
    """The native configuration under another name, in the older dialect."""

    def change(c):
        rope = c.pop("rope_parameters", None) or {}
        drop = ("transformers_version", "layer_types", "pretraining_tp", "use_cache")
        c = {k: v for k, v in c.items() if k not in drop}
        c |= {"model_type": model_type, "architectures": [architecture], "rope_theta": rope.get("rope_theta", 10000.0)}
        c["torch_dtype"] = c.pop("dtype")
        c |= more
        return {k: v for k, v in c.items() if v is not ...}

    return change


def renamed(*rules):
    def change(tensors):
        out = {}
        for name, t in tensors.items():
            for old, new in rules:
                name = name.replace(old, new)
            out[name] = t
        return out

    return change


def packed_qkv(target):
    """q, k and v rows, and their biases, as one tensor."""

    def change(tensors):
        out = {n: t for n, t in tensors.items() if not any(f"{p}_proj" in n for p in "qkv")}
        for name, t in tensors.items():
            if ".q_proj." in name:
                parts = [tensors[name.replace(".q_proj.", f".{p}_proj.")] for p in "qkv"]
                out[name.replace("self_attn.q_proj", target)] = torch.cat(parts)
        return out

    return change


@sample("a Llama under its own class name", derived="LlamaForCausalLM: the same arithmetic under other names")
def aquila():
    return {"model": llama_like(105, num_key_value_heads=4), "seed": 105, "config": as_type("aquila", "AquilaForCausalLM")}


@sample("biases in query, key, value and output projections", derived="LlamaForCausalLM with attention_bias")
def internlm():
    model = llama_like(106, num_key_value_heads=4, attention_bias=True)
    return {"model": model, "seed": 106, "config": as_type("internlm", "InternLMForCausalLM", bias=True, attention_bias=..., mlp_bias=...)}


@sample("biases in attention and feed-forward layers, head size given, dynamic NTK beyond the trained length")
def internlm3():
    rope = {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 50000.0}
    model = llama_like(107, T.InternLM3Config, head_dim=12, attention_bias=True, mlp_bias=True, rope_parameters=rope, max_position_embeddings=12)
    return {"model": model, "seed": 107}


@sample("biases in query, key and value only; heads times head size is not the hidden size")
def seed_oss():
    model = llama_like(108, T.SeedOssConfig, head_dim=12, attention_bias=True, attention_dropout=0.0, residual_dropout=0.0)
    return {"model": model, "seed": 108}


@sample("first generation: packed q, k, v with bias, gate in w2, intermediate_size counts both halves",
        derived="Qwen2ForCausalLM: the same arithmetic, weights renamed and packed")
def qwen1():
    model = llama_like(109, T.Qwen2Config, num_key_value_heads=4, use_sliding_window=False)
    steps = [
        packed_qkv("attn.c_attn"),
        renamed(
            ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"), ("model.layers", "transformer.h"),
            ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"), ("self_attn.o_proj", "attn.c_proj"),
            ("mlp.up_proj", "mlp.w1"), ("mlp.gate_proj", "mlp.w2"), ("mlp.down_proj", "mlp.c_proj"),
        ),
    ]
    hub = lambda _: {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "attn_dropout_prob": 0.0, "bf16": True, "emb_dropout_prob": 0.0,
        "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 96, "kv_channels": 8, "layer_norm_epsilon": 1e-06,
        "max_position_embeddings": 64, "no_bias": True, "num_attention_heads": 4, "num_hidden_layers": 3, "rotary_emb_base": 10000,
        "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 64, "tie_word_embeddings": False, "tokenizer_class": "QWenTokenizer",
        "use_dynamic_ntk": True, "use_flash_attn": "auto", "use_logn_attn": True, "vocab_size": 128, "torch_dtype": "bfloat16",
    }
    return {"model": model, "seed": 109, "weights": lambda t: steps[1](steps[0](t)), "config": hub}


@sample("norms scale by 1 + w, embedding times the root of the hidden size, tanh GELU gate, tied, one key head")
def gemma():
    return {"model": llama_like(110, T.GemmaConfig, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True), "seed": 110}


@sample("learned positions, LayerNorm, transposed weights with biases, tied")
def gpt2():
    config = T.GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2)
    return {"model": build(config, 111), "seed": 111}


def latent(cls, seed, **more):
    base = dict(
        intermediate_size=40, moe_intermediate_size=12, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3,
        kv_lora_rank=16, q_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=8, num_key_value_heads=4,
        first_k_dense_replace=1, routed_scaling_factor=2.0, num_hidden_layers=3,
    )
    return llama_like(seed, cls, **{**base, **more})


@sample("latent and sparse attention: an interleaved indexer picks 5 keys, every second layer from the second on borrows its picks")
def glm_moe_dsa():
    model = latent(
        T.GlmMoeDsaConfig, 112, n_group=1, topk_group=1, index_topk=5, index_head_dim=16, index_n_heads=8, num_hidden_layers=4,
        indexer_types=["full", "full", "shared", "full"], rms_norm_eps=1e-5,
    )
    return {"model": model, "seed": 112}


@sample("DeepSeek-V3 with one group of experts", derived="DeepseekV3ForCausalLM, which its configuration names as its class")
def kimi_k2():
    yarn = YARN | {"rope_theta": 50000.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    model = latent(T.DeepseekV3Config, 113, n_group=1, topk_group=1, routed_scaling_factor=2.827, num_mtp_layers=0, rope_parameters=yarn)
    scaling = {k if k != "rope_type" else "type": v for k, v in yarn.items() if k != "rope_theta"}
    more = {"rope_scaling": scaling, "num_nextn_predict_layers": 0, "num_mtp_layers": ..., "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "moe_layer_freq": 1, "head_dim": ..., "qk_head_dim": ...}
    return {"model": model, "seed": 113, "config": as_type("kimi_k2", "DeepseekV3ForCausalLM", **more)}


@sample("the large form: query latent, experts limited to 2 of 4 groups by their best, scaled without renormalisation, yarn")
def deepseek_v2():
    yarn = YARN | {"rope_theta": 10000.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    model = latent(
        T.DeepseekV2Config, 114, n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False,
        n_shared_experts=2, routed_scaling_factor=4.0, rope_parameters=yarn,
    )
    return {"model": model, "seed": 114}


MINICPM = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16, "embedding_multiplier": ..., "residual_multiplier": ...,
           "attention_multiplier": ..., "logits_scaling": ...}
GRANITE = dict(embedding_multiplier=12.0, residual_multiplier=1.4 / math.sqrt(3), attention_multiplier=8**-0.5, logits_scaling=2.0)


@sample("scaled embedding, residuals and logits, tied", derived="GraniteForCausalLM, whose multipliers do the same")
def minicpm():
    model = llama_like(115, T.GraniteConfig, tie_word_embeddings=True, num_key_value_heads=4, **GRANITE)
    return {"model": model, "seed": 115, "config": as_type("minicpm", "MiniCPMForCausalLM", **MINICPM)}


@sample("scaled embedding, residuals, scores (not by the root of the head size) and logits, biases everywhere")
def granite():
    scales = dict(embedding_multiplier=2.0, residual_multiplier=0.8, attention_multiplier=0.5, logits_scaling=2.5)
    model = llama_like(123, T.GraniteConfig, attention_bias=True, mlp_bias=True, **scales)
    return {"model": model, "seed": 123}


@sample("norms behind the sublayers only, norms of queries and keys over whole projections")
def olmo2():
    return {"model": llama_like(124, T.Olmo2Config, rms_norm_eps=1e-5), "seed": 124}


@sample("MiniCPM with experts (w1, w2, w3), renormalised top-2", derived="GraniteMoeForCausalLM, whose multipliers and router do the same")
def minicpm_moe():
    model = llama_like(116, T.GraniteMoeConfig, intermediate_size=16, tie_word_embeddings=True, num_local_experts=4, num_experts_per_tok=2, **GRANITE)

    def names(tensors):
        out = {}
        for name, t in tensors.items():
            if "router.layer" in name:
                out[name.replace("block_sparse_moe.router.layer", "mlp.gate")] = t
            elif "block_sparse_moe.input_linear" in name:
                for e, w in enumerate(t):
                    gate, up = w.chunk(2)
                    out[name.replace("block_sparse_moe.input_linear", f"mlp.experts.{e}.w1")] = gate
                    out[name.replace("block_sparse_moe.input_linear", f"mlp.experts.{e}.w3")] = up
            elif "block_sparse_moe.output_linear" in name:
                for e, w in enumerate(t):
                    out[name.replace("block_sparse_moe.output_linear", f"mlp.experts.{e}.w2")] = w
            else:
                out[name] = t
        return out

    more = MINICPM | {"num_experts": 4, "num_local_experts": ..., "output_router_logits": ..., "router_aux_loss_coef": ...}
    return {"model": model, "seed": 116, "weights": names, "config": as_type("minicpm", "MiniCPMForCausalLM", **more)}


class SquaredRelu(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(hidden, ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.relu(self.up_proj(x)).square())


@sample("latent attention without query latent, squared ReLU without gate, tied",
        derived="DeepseekV3ForCausalLM without experts and with another feed-forward layer")
def plm():
    model = latent(T.DeepseekV3Config, 117, q_lora_rank=None, first_k_dense_replace=3, tie_word_embeddings=True, num_mtp_layers=0)
    for layer in model.model.layers:
        layer.mlp = SquaredRelu(32, 48)
    fill(model, 117)
    hub = lambda _: {
        "architectures": ["PLMForCausalLM"], "model_type": "plm", "attention_bias": False, "hidden_act": "relu2", "hidden_size": 32,
        "intermediate_size": 48, "kv_lora_rank": 16, "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 3,
        "num_key_value_heads": 4, "q_lora_rank": None, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "v_head_dim": 8, "vocab_size": 128,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }
    return {"model": model, "seed": 117, "config": hub}


class Alibi(nn.Module):
    """Attention without rotation; scores grow with the key's position by a slope per head."""

    def __init__(self, attention):
        super().__init__()
        self.inner = attention
        heads = attention.config.num_attention_heads
        power = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * (k + 1) / power) for k in range(power)]
        slopes += [2 ** (-8 * (2 * k + 1) / (2 * power)) for k in range(heads - power)]
        self.slopes = torch.tensor(slopes)

    def forward(self, hidden_states, position_embeddings, attention_mask, **_):
        a, (b, s, _h) = self.inner, hidden_states.shape
        q, k, v = (p(hidden_states).view(b, s, -1, a.head_dim).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj))
        scores = q @ k.transpose(2, 3) * a.scaling + self.slopes[:, None, None] * torch.arange(s).float()
        out = torch.softmax(scores + torch.full((s, s), -torch.inf).triu(1), -1) @ v
        return a.o_proj(out.transpose(1, 2).reshape(b, s, -1)), None


def baichuan(seed, architecture, alibi, unit_rows, heads=6, hidden=36):
    model = llama_like(seed, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads)
    if alibi:
        for layer in model.model.layers:
            layer.self_attn = Alibi(layer.self_attn)
    if unit_rows:
        head = model.lm_head
        head.forward = lambda x: F.linear(x, F.normalize(head.weight))
    pack = packed_qkv("self_attn.W_pack")
    more = {"head_dim": ..., "num_key_value_heads": ..., "attention_bias": ..., "mlp_bias": ...}
    if alibi:
        more |= {"model_max_length": 64, "max_position_embeddings": ..., "rope_theta": ...}
    names = lambda t: pack({n.replace("self_attn.inner.", "self_attn."): v for n, v in t.items()})
    return {"model": model, "seed": seed, "weights": names, "config": as_type("baichuan", architecture, **more)}


@sample("ALiBi with 6 heads, packed q, k, v", derived="LlamaForCausalLM with another attention")
def baichuan_13b():
    return baichuan(118, "BaiChuanForCausalLM", True, False)


@sample("packed q, k, v, rows of the output layer normalised", derived="LlamaForCausalLM with another output layer")
def baichuan2_7b():
    return baichuan(119, "BaichuanForCausalLM", False, True)


@sample("ALiBi with 6 heads, rows of the output layer normalised", derived="LlamaForCausalLM with another attention and output layer")
def baichuan2_13b():
    return baichuan(120, "BaichuanForCausalLM", True, True)


def wide_head(tensors):
    return {n: t.float() if n.startswith("hc_head_") else t for n, t in tensors.items()}


@sample("hyper-connections of 3 streams; layers that see a window of 6 alone, with entries of 4 tokens of which an indexer picks 2, with "
        "entries of 8; experts by a table of tokens in two layers, by sqrtsoftplus with bias in three; clamped gates (limit 1.5)")
def deepseek_v4():
    main = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = T.DeepseekV4Config(
        vocab_size=128, hidden_size=32, moe_intermediate_size=12, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, q_lora_rank=20, o_groups=2, o_lora_rank=6, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
        routed_scaling_factor=1.5, hc_mult=3, hc_sinkhorn_iters=6, hc_eps=1e-4, swiglu_limit=1.5, sliding_window=6, index_n_heads=4,
        index_head_dim=8, index_topk=2, num_nextn_predict_layers=0, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                     "compressed_sparse_attention", "sliding_attention"],
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe", "moe"], partial_rotary_factor=0.25,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        rope_parameters={"main": main, "compress": YARN | {"rope_theta": 160000.0, "partial_rotary_factor": 0.25, "attention_factor": 1.0}},
    )
    # save_pretrained does not find all the way back to the published names, from which the class reads the same values.
    published = renamed(("model.embed_tokens", "embed"), ("model.hc_head.hc_", "hc_head_"), ("model.", ""), ("attn.norm", "attn.kv_norm"))
    return {"model": build(config, 122), "seed": 122, "weights": lambda t: wide_head(published(t))}


class StepText(nn.Module):
    """The text model of transformers' Step-3.7, which is Step-3.5, with an output layer."""

    def __init__(self, config):
        super().__init__()
        from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

        config._attn_implementation = "eager"
        self.config, self.model = config, Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, **more):
        out = self.model(input_ids=input_ids, **more)
        out.logits = self.lm_head(out.last_hidden_state)
        return out

    def save_pretrained(self, folder):
        save_file({n: t.contiguous() for n, t in self.state_dict().items()}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")


@sample("windowed layers with more heads, another base and whole rotation; half rotation stretched as Llama 3's in full layers; a gate per "
        "head; sigmoid router with bias; gates limited after silu, differently by layer; norms scale by 1 + w",
        derived="the text model of transformers' Step3p7ForConditionalGeneration; names and configuration as published")
def step3p5():
    hub = dict(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4, num_attention_groups=2,
        head_dim=8, max_position_embeddings=64, max_seq_len=64, rms_norm_eps=1e-5, sliding_window=6, rope_theta=[50000.0, 10000.0, 10000.0, 50000.0, 10000.0, 10000.0],
        partial_rotary_factors=[0.5, 1.0, 1.0, 0.5, 1.0, 1.0], yarn_only_types=["full_attention"],
        rope_scaling={"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 32.0},
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        attention_other_setting={"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 8, "true_head_dim": 8},
        moe_layers_enum="2,3,4", moe_num_experts=6, moe_top_k=2, moe_intermediate_size=12, share_expert_dim=20, moe_router_scaling_factor=3.0,
        swiglu_limits=[0.0, 0.0, 0.0, 0.4, 0.5, 0.0], swiglu_limits_shared=[0.0, 0.6, 0.0, 0.0, 0.7, 0.0], num_nextn_predict_layers=1,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )
    from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig

    native = {k: v for k, v in hub.items() if k not in ("max_seq_len", "yarn_only_types", "moe_top_k", "moe_num_experts", "num_attention_groups", "share_expert_dim")}
    config = Step3p7TextConfig(**native, num_experts_per_tok=2, n_routed_experts=6, num_key_value_heads=2, share_expert_dim=20)
    model = StepText(config).eval()
    fill(model, 121)

    def names(tensors):
        out = {}
        for name, t in tensors.items():
            if name.endswith("mlp.experts.gate_up_proj"):
                for part, half in zip(("gate", "up"), t.chunk(2, 1)):
                    out[name.replace("mlp.experts.gate_up_proj", f"moe.{part}_proj.weight")] = half
            else:
                for old, new in ((".mlp.experts.down_proj", ".moe.down_proj.weight"), (".mlp.gate.weight", ".moe.gate.weight"),
                                 (".mlp.gate.e_score_correction_bias", ".moe.router_bias"), (".mlp.shared_experts.", ".share_expert.")):
                    name = name.replace(old, new)
                out[name] = t
        return out

    more = {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "torch_dtype": "bfloat16", "hidden_act": "silu", "use_moe": True,
        "moe_router_activation": "sigmoid", "use_moe_router_bias": True, "need_fp32_gate": True, "norm_expert_weight": True,
        "use_head_wise_attn_gate": True, "use_qk_norm": True, "use_rope_layers": [], "zero_centered": True, "sink": False,
    }
    return {"model": model, "seed": 121, "weights": names, "config": lambda _: hub | more}


def older(**more):
    """The same configuration in the dialect of transformers 4."""

    def change(c):
        rope = dict(c.pop("rope_parameters", None) or {})
        c |= {"torch_dtype": c.pop("dtype"), "rope_theta": rope.pop("rope_theta", 10000.0)}
        if "partial_rotary_factor" in rope:
            c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        c["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
        c |= more
        return {k: v for k, v in c.items() if v is not ... and k != "transformers_version"}

    return change


def in_parts(parts, form):
    """Weights in several files with an index, as those that are too large for one: safetensors or `torch.save`."""
    stem, end = {"safetensors": ("model", "safetensors"), "bin": ("pytorch_model", "bin")}[form]

    def write(folder, tensors):
        names = [f"{stem}.{end}"] if parts == 1 else [f"{stem}-{i + 1:05}-of-{parts:05}.{end}" for i in range(parts)]
        order, chosen = list(tensors), {}
        for i, file in enumerate(names):
            part = {n: tensors[n].contiguous().clone() for n in order[i * len(order) // parts : (i + 1) * len(order) // parts]}
            chosen |= dict.fromkeys(part, file)
            torch.save(part, folder / file) if form == "bin" else save_file(part, folder / file, {"format": "pt"})
        if parts > 1:
            size = sum(t.numel() * t.element_size() for t in tensors.values())
            index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(chosen.items()))}
            (folder / f"{stem}.{end}.index.json").write_text(json.dumps(index, indent=1) + "\n")

    return write


def moved(model, where, by, times=1.0):
    """Adds to parameters whose names end so, and rounds them again."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(where):
                p.copy_((p * times + by).bfloat16().float())


@sample("four queries a key head, Llama 3's frequencies (original length 16), heads times head size is not the hidden size, tied")
def llama3_gqa():
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, "rope_theta": 500000.0}
    model = llama_like(201, num_hidden_layers=4, num_attention_heads=8, head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope)
    return {"model": model, "seed": 201, "config": older()}


@sample("a window of 6 in all layers; head size given")
def mistral_swa():
    model = llama_like(202, T.MistralConfig, num_hidden_layers=4, head_dim=12, sliding_window=6, rms_norm_eps=1e-5)
    return {"model": model, "seed": 202, "config": older()}


@sample("biases in query, key and value, tied")
def qwen2():
    model = llama_like(203, T.Qwen2Config, num_hidden_layers=4, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    return {"model": model, "seed": 203, "config": older()}


@sample("norms of queries and keys per head; heads times head size is not the hidden size")
def qwen3():
    return {"model": llama_like(204, T.Qwen3Config, num_hidden_layers=4, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "seed": 204}


@sample("packed q, k, v by groups of queries", derived="LlamaForCausalLM: the same arithmetic, weights renamed and packed")
def internlm2():
    model = llama_like(205, num_attention_heads=8, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e6})

    def grouped(tensors):
        out = {n: t for n, t in tensors.items() if not any(f"{p}_proj" in n for p in "qkv")}
        for name, t in tensors.items():
            if ".q_proj." in name:
                q, k, v = (tensors[name.replace(".q_proj.", f".{p}_proj.")].view(2, -1, 4, 32) for p in "qkv")
                out[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat([q, k, v], 1).reshape(-1, 32)
        return out

    names = renamed(
        ("embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
    )
    more = {"bias": False, "attention_bias": ..., "mlp_bias": ..., "head_dim": ..., "rope_scaling": None}
    config = as_type("internlm2", "InternLM2ForCausalLM", **more)
    return {"model": model, "seed": 205, "weights": lambda t: names(grouped(t)), "config": config}


@sample("packed q, k, v, in a file of torch.save", derived="LlamaForCausalLM: the same arithmetic, weights packed")
def baichuan_7b():
    return baichuan(206, "BaiChuanForCausalLM", False, False, 4, 32) | {"write": in_parts(1, "bin")}


@sample("ALiBi, LayerNorm also of the embedding, biases everywhere, tanh GELU, q, k and v side by side of every head, tied")
def bloom():
    config = T.BloomConfig(vocab_size=128, hidden_size=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2)
    return {"model": build(config, 207), "seed": 207, "config": lambda c: c | {"torch_dtype": c.pop("dtype")}}


def glm_like(seed, cls, **more):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return llama_like(seed, cls, head_dim=8, attention_bias=True, pad_token_id=0, **{"rope_parameters": rope, **more})


@sample("biases of q, k and v, half of each head turned, pairs side by side, gate and up as one")
def glm_9b_chat():
    return {"model": glm_like(208, T.GlmConfig, rms_norm_eps=1.5625e-07), "seed": 208, "config": older()}


@sample("packed q, k, v with biases, half of each head turned, gate and up as one, in two files of torch.save",
        derived="GlmForCausalLM: the same arithmetic, weights renamed and packed")
def chatglm3():
    model = glm_like(209, T.GlmConfig, rms_norm_eps=1e-5)
    pack = packed_qkv("self_attention.query_key_value")
    names = renamed(
        ("model.embed_tokens", "transformer.embedding.word_embeddings"), ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"), ("model.layers", "transformer.encoder.layers"),
        ("self_attn.o_proj", "self_attention.dense"), ("mlp.gate_up_proj", "mlp.dense_h_to_4h"), ("mlp.down_proj", "mlp.dense_4h_to_h"),
    )
    turn = {"transformer.rotary_pos_emb.inv_freq": (10000.0 ** -(torch.arange(0, 4, 2) / 4)).bfloat16()}
    hub = lambda _: {
        "architectures": ["ChatGLMModel"], "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True, "apply_residual_connection_post_layernorm": False, "attention_softmax_in_fp32": True,
        "ffn_hidden_size": 48, "fp32_residual_connection": False, "hidden_size": 32, "kv_channels": 8, "layernorm_epsilon": 1e-05,
        "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 4, "num_layers": 3, "original_rope": True,
        "padded_vocab_size": 128, "post_layer_norm": True, "rmsnorm": True, "seq_length": 64, "tie_word_embeddings": False,
        "torch_dtype": "float16", "use_cache": True,
    }
    return {"model": model, "seed": 209, "weights": lambda t: names(pack(t)) | turn, "config": hub, "write": in_parts(2, "bin")}


@sample("norms before and behind the sublayers, biases of q, k and v, half of each head turned, pairs side by side, gate and up as one")
def glm4_0414():
    return {"model": glm_like(210, T.Glm4Config, rms_norm_eps=1e-5), "seed": 210}


@sample("biases of q, k and v, half of each head turned by halves, sigmoid router with bias, one shared expert, first layer dense")
def glm45_air():
    model = glm_like(
        211, T.Glm4MoeConfig, rms_norm_eps=1e-5, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5, use_qk_norm=False, num_mtp_layers=0,
    )
    return {"model": model, "seed": 211}


@sample("packed q, k, v, norms of queries and keys before the half rotation, sigmoid router with bias, 2 of 4 groups by their two best, "
        "one shared expert, first layer dense", derived="Glm4MoeForCausalLM: the same arithmetic, weights renamed and packed")
def ling_v2():
    model = llama_like(
        212, T.Glm4MoeConfig, head_dim=8, attention_bias=False, use_qk_norm=True, num_mtp_layers=0, intermediate_size=40,
        moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=4, topk_group=2,
        first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": 600000.0, "partial_rotary_factor": 0.5},
    )
    pack = packed_qkv("attention.query_key_value")
    names = renamed(
        ("embed_tokens", "word_embeddings"), ("self_attn.o_proj", "attention.dense"), ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"), ("gate.e_score_correction_bias", "gate.expert_bias"),
    )
    hub = lambda _: {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "first_k_dense_replace": 1, "head_dim": 8,
        "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64, "moe_intermediate_size": 12,
        "moe_router_enable_expert_bias": True, "n_group": 4, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 8,
        "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 2, "num_nextn_predict_layers": 0,
        "num_shared_experts": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 600000,
        "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid", "tie_word_embeddings": False, "topk_group": 2,
        "torch_dtype": "bfloat16", "use_bias": False, "use_qk_norm": True, "use_qkv_bias": False, "use_rmsnorm": True, "vocab_size": 128,
    }
    return {"model": model, "seed": 212, "weights": lambda t: names(pack(t)), "config": hub}


@sample("softmax over all experts, two of four, renormalised; in three files")
def mixtral():
    model = llama_like(213, T.MixtralConfig, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5)
    return {"model": model, "seed": 213, "config": older(sliding_window=None), "write": in_parts(3, "safetensors")}


@sample("biases of q, k and v, two of six experts without renormalisation, a shared expert times the sigmoid of its gate")
def qwen2_moe():
    model = llama_like(
        214, T.Qwen2MoeConfig, num_key_value_heads=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=24, norm_topk_prob=False, qkv_bias=True, decoder_sparse_step=1, mlp_only_layers=[],
    )
    return {"model": model, "seed": 214, "config": older()}


@sample("norms of queries and keys per head, three of eight experts by softmax, renormalised")
def qwen3_moe():
    model = llama_like(
        215, T.Qwen3MoeConfig, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[],
    )
    return {"model": model, "seed": 215}


@sample("three layers of gated delta rule and one of gated attention, of whose heads a quarter is turned; norms scale by 1 + w; experts with "
        "a gated shared one")
def qwen3_next():
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    model = llama_like(
        231, T.Qwen3NextConfig, num_hidden_layers=4, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=16, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=rope,
        linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
    )
    moved(model, ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight"), -1.0)
    moved(model, "dt_bias", -1.0)
    return {"model": model, "seed": 231}


@sample("norms of queries and keys over whole projections, half of each head turned, sigmoid router with bias")
def minimax_m2():
    rope = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
    model = llama_like(
        217, T.MiniMaxM2Config, head_dim=16, intermediate_size=12, num_local_experts=6, num_experts_per_tok=2, rope_parameters=rope,
    )
    return {"model": model, "seed": 217}


@sample("norms of queries and keys per head, sigmoid router with bias, one shared expert, first layer dense")
def hy_v3():
    model = llama_like(
        218, T.HYV3Config, head_dim=16, intermediate_size=40, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2,
        num_shared_experts=1, mlp_layer_types=["dense", "sparse", "sparse"], router_scaling_factor=2.826, rms_norm_eps=1e-5,
    )
    return {"model": model, "seed": 218}


LONGROPE = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.8, 2.6, 3.4]}


@sample("q, k, v and gate and up as one; longrope beyond the original length of 8, so by the long factors")
def phi3_longrope():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 8, "partial_rotary_factor": 1.0} | LONGROPE
    model = llama_like(219, T.Phi3Config, rope_parameters=rope, original_max_position_embeddings=8, pad_token_id=0, rms_norm_eps=1e-5)
    more = {"rope_scaling": {"type": "longrope"} | LONGROPE, "sliding_window": None, "original_max_position_embeddings": 8}
    return {"model": model, "seed": 219, "config": older(**more)}


@sample("LayerNorm, biases of attention and output layer, two of four experts by sparse mixing; longrope with magnitudes given, "
        "within the original length of 32")
def phimoe():
    rope = {"rope_type": "longrope", "rope_theta": 1e6, "original_max_position_embeddings": 32, "short_mscale": 1.1, "long_mscale": 1.2} | LONGROPE
    model = llama_like(
        220, T.PhimoeConfig, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True,
        rope_parameters=rope, rms_norm_eps=1e-5,
    )
    more = {"rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"} | {"type": "longrope"}, "original_max_position_embeddings": 32}
    return {"model": model, "seed": 220, "config": older(**more)}


@sample("norms before and behind the sublayers, soft caps of scores (5) and logits (3), a window of 6 in every second layer, scores by "
        "12 to the power -1/2, tied")
def gemma2():
    model = llama_like(
        221, T.Gemma2Config, head_dim=16, num_hidden_layers=4, sliding_window=6, attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
        query_pre_attn_scalar=12, tie_word_embeddings=True, pad_token_id=0,
    )
    return {"model": model, "seed": 221}


@sample("latent attention turned by halves, dense; scaled embedding, residuals and logits, tied")
def minicpm3():
    model = llama_like(
        222, T.MiniCPM3Config, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8,
        v_head_dim=8, scale_emb=12, scale_depth=1.4, dim_model_base=16, tie_word_embeddings=True, rms_norm_eps=1e-5,
    )
    return {"model": model, "seed": 222}


@sample("the small form: no query latent, three of eight experts by softmax without renormalisation, two shared ones, yarn with magnitudes")
def deepseek_v2_lite():
    yarn = YARN | {"rope_theta": 10000.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    model = latent(
        T.DeepseekV2Config, 223, q_lora_rank=None, n_group=None, topk_group=None, topk_method="greedy", norm_topk_prob=False,
        n_shared_experts=2, routed_scaling_factor=1.0, rope_parameters=yarn,
    )
    return {"model": model, "seed": 223}


@sample("sigmoid router with bias, 2 of 4 groups by their two best, renormalised and scaled; yarn; pairs side by side")
def deepseek_v3():
    yarn = YARN | {"rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    model = latent(
        T.DeepseekV3Config, 224, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, num_mtp_layers=0, rope_parameters=yarn,
    )
    return {"model": model, "seed": 224}


@sample("DeepSeek-V3 with an indexer, turned by halves, that picks 5 keys")
def deepseek_v32():
    model = latent(
        T.DeepseekV32Config, 251, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, index_topk=5, index_head_dim=16,
        index_n_heads=8,
    )
    return {"model": model, "seed": 251}


@sample("state-space layers of 8 heads with two groups of keys, by chunks of 8 tokens")
def mamba2():
    config = T.Mamba2Config(
        vocab_size=128, hidden_size=32, num_hidden_layers=3, num_heads=8, head_dim=8, state_size=16, n_groups=2, expand=2, conv_kernel=4,
        chunk_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
    )
    model = build(config, 226)
    moved(model, ".D", 1.0)
    moved(model, "dt_bias", -1.0)
    return {"model": model, "seed": 226, "config": lambda c: c | {"torch_dtype": c.pop("dtype")}}


class Mamba3(nn.Module):
    """Upstream's block between an embedding and an output layer, as its class puts them together, but for every sequence of a batch."""

    def __init__(self, **sizes):
        super().__init__()
        self.config = config = T.PretrainedConfig(tie_word_embeddings=False, vocab_size=128, hidden_size=32, num_hidden_layers=3)
        arguments = types.ModuleType("mindspeed_llm.fsdp2.utils.global_vars")
        arguments.get_args = lambda: types.SimpleNamespace(use_triton_rmsnormgated=False)
        sys.modules[arguments.__name__] = arguments
        source = pathlib.Path(os.environ["UPSTREAM"]) / "mindspeed_llm/fsdp2/models/mamba3/mamba3_block.py"
        spec = importlib.util.spec_from_file_location("mamba3_block", source)
        block = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(block)
        mixer = lambda: block.Mamba3(d_model=config.hidden_size, d_state=16, headdim=8, **sizes)
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(nn.ModuleDict({"mamba": mixer()}) for _ in range(config.num_hidden_layers))
        self.model.norm_f = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, **_):
        hidden = [self.model.embeddings(input_ids)]
        for layer in self.model.layers:
            hidden.append(hidden[-1] + layer["mamba"](hidden[-1]))
        hidden[-1] = self.model.norm_f(hidden[-1])
        return types.SimpleNamespace(logits=self.lm_head(hidden[-1]), hidden_states=hidden)

    def save_pretrained(self, folder):
        save_file({n: t.contiguous() for n, t in self.state_dict().items()}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")


def mamba3_like(seed, is_mimo, **more):
    model = Mamba3(is_mimo=is_mimo, **more).eval()
    fill(model, seed)
    with torch.no_grad():
        for layer in model.model.layers:
            layer["mamba"].out_proj.weight.div_(16)  # nothing but this keeps the stream, and with it steps and angles, small
    hub = {
        "architectures": ["Mamba3ForCausalLM"], "model_type": "mamba3", "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 3,
        "layer_norm_epsilon": 1e-05, "expand": 2, "head_dim": 8, "state_size": 16, "is_mimo": is_mimo, "tie_word_embeddings": False,
        "initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }
    return {"model": model, "seed": seed, "config": lambda _: hub}


@sample("trapezoidal state-space layers of 8 heads, half of each key turned by angles that add up, no norms before the mixers",
        derived="the mixer of MindSpeed-LLM (2026), mamba3_block.py, between an embedding and an output layer")
def mamba3():
    return mamba3_like(123, False)


@sample("the same with 4 keys, queries, inputs and outputs a head",
        derived="the mixer of MindSpeed-LLM (2026), mamba3_block.py, by chunks of one token, between an embedding and an output layer")
def mamba3_mimo():
    return mamba3_like(124, True, mimo_rank=4, chunk_size=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or SAMPLES:
        make(chosen)
