#!/usr/bin/env python3
"""Makes the samples of this folder: tiny Megatron checkpoints that no `config.json` describes, with their logits.

    python make.py [NAME ...]        writes ./NAME/{args.json,golden.json,reference.safetensors} and the checkpoint

Weights are seeded, rounded to bfloat16 and stored so; logits are computed in float32 from the stored values.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, SEQ = 96, 16

# What every run has in its arguments, given or not.
USUAL = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
    "use_mcore_models": True, "seq_length": SEQ, "max_position_embeddings": 64, "vocab_size": VOCAB,
    "padded_vocab_size": VOCAB, "make_vocab_size_divisible_by": 1, "kv_channels": None, "num_query_groups": 1,
    "group_query_attention": False, "swiglu": False, "normalization": "LayerNorm", "norm_epsilon": 1e-5,
    "apply_layernorm_1p": False, "add_bias_linear": True, "add_qkv_bias": False, "bias_gelu_fusion": True,
    "position_embedding_type": "learned_absolute", "use_rotary_position_embeddings": False, "rotary_base": 10000,
    "rotary_percent": 1.0, "rotary_interleaved": False, "untie_embeddings_and_output_weights": False,
    "qk_layernorm": False, "post_norm": False, "num_experts": None, "moe_grouped_gemm": False, "spec": None,
    "embedding_multiplier_scale": 1.0, "output_multiplier_scale": None, "input_jitter": True,
    "moe_router_pre_softmax": False, "moe_layer_freq": None, "hybrid_attention_ratio": 0.0, "hybrid_mlp_ratio": 0.0,
    "hybrid_override_pattern": None, "bf16": True, "fp16": False,
}

# As the scripts of MindSpeed-LLM have them, sizes apart.
GROK = {
    "spec": ["mindspeed_llm.tasks.models.spec.grok_spec", "layer_spec"], "num_layers": 3, "hidden_size": 32,
    "ffn_hidden_size": 40, "num_attention_heads": 4, "group_query_attention": True, "num_query_groups": 2,
    "num_experts": 4, "moe_router_load_balancing_type": "aux_loss", "moe_router_topk": 2, "moe_grouped_gemm": True,
    "embedding_multiplier_scale": 78.38367176906169, "output_multiplier_scale": 0.5773502691896257, "input_jitter": False, "post_norm": True,
    "untie_embeddings_and_output_weights": True, "add_bias_linear": False, "position_embedding_type": "rope",
    "use_rotary_position_embeddings": True, "normalization": "RMSNorm", "swiglu": True,
}
GPT4_MOE = {
    "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 128, "num_experts": 4,
    "moe_router_topk": 2, "moe_router_load_balancing_type": "aux_loss", "position_embedding_type": "rope",
    "bias_gelu_fusion": False,
}
HYBRID = {
    "spec": ["mindspeed_llm.tasks.models.spec.mamba_spec", "layer_spec"], "num_layers": 8, "hidden_size": 32,
    "ffn_hidden_size": 48, "num_attention_heads": 4, "group_query_attention": True, "num_query_groups": 2,
    "mamba_num_groups": 2, "mamba_chunk_size": 8, "mamba_state_dim": 8, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_head_dim": 16, "mamba_d_ssm": None, "hybrid_attention_ratio": 0.25, "hybrid_mlp_ratio": 0.25,
    "untie_embeddings_and_output_weights": True, "add_bias_linear": False, "position_embedding_type": "none",
    "normalization": "RMSNorm", "norm_epsilon": 1e-6, "swiglu": True,
}
LETTERS = "MM*-M*M-"  # what Megatron makes of eight layers and these ratios
SAMPLES = {
    "grok": ("norms behind the sublayers, scaled embedding and logits, grouped queries, two of four experts, grouped", GROK),
    "gpt4_moe": ("LayerNorm, biases of everything that multiplies but the router, exact GELU, tied, rotated heads", GPT4_MOE),
    "hybrid": (f"layers {LETTERS}: state space, attention without positions, feed-forward", HYBRID),
}


class Maker:
    """The model's weights: made when they are first asked for, so that a run of the model lists them."""

    def __init__(self, args, seed):
        self.a, self.w, self.g = args, {}, torch.Generator().manual_seed(seed)
        self.noise = None

    def get(self, name, *shape, std=None, mean=0.0):
        if name not in self.w:
            std = 1.4 / math.sqrt(shape[-1]) if std is None else std
            self.w[name] = (mean + std * torch.randn(shape, generator=self.g)).bfloat16()
        assert self.w[name].shape == shape, name
        value = self.w[name].float()
        return value if self.noise is None else value * (1 + 1e-6 * torch.randn(shape, generator=self.noise))

    def norm(self, name, x):
        width, eps = x.shape[-1], self.a["norm_epsilon"]
        weight = self.get(f"{name}.weight", width, std=0.2, mean=1.0)
        if self.a["normalization"] == "RMSNorm":
            return F.rms_norm(x, [width], weight, eps)
        return F.layer_norm(x, [width], weight, self.get(f"{name}.bias", width, std=0.2), eps)

    def linear(self, name, x, rows):
        y = x @ self.get(f"{name}.weight", rows, x.shape[-1]).T
        return y + self.get(f"{name}.bias", rows, std=0.2) if self.a["add_bias_linear"] else y

    def act(self, x):
        if self.a["swiglu"]:
            gate, up = x.chunk(2, -1)
            return F.silu(gate) * up
        return F.gelu(x)

    def inner(self):
        return self.a["ffn_hidden_size"] * (2 if self.a["swiglu"] else 1)

    def mlp(self, name, x):
        return self.linear(f"{name}.linear_fc2", self.act(self.linear(f"{name}.linear_fc1", x, self.inner())), x.shape[-1])

    def attention(self, name, x):
        a, (b, s, h) = self.a, x.shape
        heads = a["num_attention_heads"]
        groups = a["num_query_groups"] if a["group_query_attention"] else heads
        d = h // heads
        # Group by group: its queries, its key, its value.
        qkv = self.linear(f"{name}.linear_qkv", x, (heads + 2 * groups) * d).view(b, s, groups, -1, d)
        q, k, v = qkv[..., :-2, :].flatten(2, 3), qkv[..., -2, :], qkv[..., -1, :]
        if a["position_embedding_type"] == "rope":
            angles = torch.outer(torch.arange(s).float(), a["rotary_base"] ** (-torch.arange(0, d, 2).float() / d))
            cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
            turned = lambda t: t * cos + torch.cat([-t[..., d // 2:], t[..., : d // 2]], -1) * sin
            q, k = turned(q), turned(k)
        k, v = (t.repeat_interleave(heads // groups, 2) for t in (k, v))
        scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), -torch.inf).softmax(-1)
        return self.linear(f"{name}.linear_proj", torch.einsum("bhst,bthd->bshd", scores, v).flatten(2), h)

    def experts(self, name, x):
        n, h, f = self.a["num_experts"], x.shape[-1], self.a["ffn_hidden_size"]
        scores, chosen = (x @ self.get(f"{name}.router.weight", n, h).T).topk(self.a["moe_router_topk"], -1)
        share = torch.zeros(*x.shape[:-1], n).scatter(-1, chosen, scores.softmax(-1))
        if self.a["moe_grouped_gemm"]:
            # Megatron sees these as [experts, inputs, outputs].
            first = self.get(f"{name}.experts.weight1", h, n * self.inner(), std=1.4 / math.sqrt(h)).view(n, h, -1)
            second = self.get(f"{name}.experts.weight2", n * f, h, std=1.4 / math.sqrt(f)).view(n, f, h)
            out = [self.act(x @ first[e]) @ second[e] for e in range(n)]
        else:
            out = [self.mlp(f"{name}.experts.local_experts.{e}", x) for e in range(n)]
        return sum(share[..., e, None] * out[e] for e in range(n))

    def state_space(self, name, x):
        a, (b, s, h) = self.a, x.shape
        inner, groups, state, p = a["mamba_expand"] * h, a["mamba_num_groups"], a["mamba_state_dim"], a["mamba_head_dim"]
        heads, wide = inner // p, inner + 2 * groups * state
        dt_bias = self.get(f"{name}.dt_bias", heads, std=0.5)
        decay = -self.get(f"{name}.A_log", heads, std=0.5).exp()
        skip = self.get(f"{name}.D", heads, std=0.3, mean=1.0)
        z, conv, dt = self.linear(f"{name}.in_proj", x, inner + wide + heads).split([inner, wide, heads], -1)
        weight, bias = self.get(f"{name}.conv1d.weight", wide, 1, a["mamba_d_conv"], std=0.5), self.get(f"{name}.conv1d.bias", wide, std=0.2)
        conv = F.silu(F.conv1d(F.pad(conv.transpose(1, 2), (a["mamba_d_conv"] - 1, 0)), weight, bias, groups=wide).transpose(1, 2))
        v, k, q = conv.split([inner, groups * state, groups * state], -1)
        v, dt = v.view(b, s, heads, p), F.softplus(dt + dt_bias)
        k, q = (t.view(b, s, groups, state).repeat_interleave(heads // groups, 2) for t in (k, q))
        held, out = torch.zeros(b, heads, p, state), []
        for t in range(s):
            new = torch.einsum("bhp,bhn->bhpn", v[:, t] * dt[:, t, :, None], k[:, t])
            held = held * (dt[:, t] * decay).exp()[..., None, None] + new
            out.append(torch.einsum("bhpn,bhn->bhp", held, q[:, t]) + skip[:, None] * v[:, t])
        y = torch.stack(out, 1).flatten(2) * F.silu(z)
        # Megatron's mixer has its own epsilon, whatever --norm-epsilon says.
        y = F.rms_norm(y.view(b, s, groups, -1), [inner // groups], None, 1e-5).flatten(2)
        return self.linear(f"{name}.out_proj", y * self.get(f"{name}.norm.weight", inner, std=0.2, mean=1.0), h)

    def layer(self, name, letter, x):
        behind = lambda norm, y: self.norm(f"{name}.{norm}", y) if self.a["post_norm"] else y
        if letter == "M":
            return x + self.state_space(f"{name}.mixer", self.norm(f"{name}.norm", x))
        if letter in "*+":
            y = self.attention(f"{name}.self_attention", self.norm(f"{name}.input_layernorm", x))
            x = x + behind("post_attn_norm", y)
        if letter in "-+":
            feed = self.experts if self.a["num_experts"] else self.mlp
            x = x + behind("post_mlp_layernorm", feed(f"{name}.mlp", self.norm(f"{name}.pre_mlp_layernorm", x)))
        return x

    def logits(self, ids):
        a = self.a
        h, tied = a["hidden_size"], not a["untie_embeddings_and_output_weights"]
        scale = a["embedding_multiplier_scale"]
        table = self.get("embedding.word_embeddings.weight", VOCAB, h, std=(1.5 / math.sqrt(h) if tied else 1.0) / scale)
        x = table[ids] * scale
        hybrid = a["hybrid_attention_ratio"] > 0
        for number, letter in enumerate(LETTERS if hybrid else "+" * a["num_layers"]):
            x = self.layer(f"decoder.layers.{number}", letter, x)
        x = self.norm("decoder.final_norm" if hybrid else "decoder.final_layernorm", x)
        head = table if tied else self.get("output_layer.weight", VOCAB, h)
        return x @ head.T * (a["output_multiplier_scale"] or 1.0)


def make(name):
    what, given = SAMPLES[name]
    args, folder, seed = USUAL | given, HERE / name, 4000 + sorted(SAMPLES).index(name)
    model = Maker(args, seed)
    ids = torch.randint(0, VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(seed + 100))
    logits = model.logits(ids)
    swapped = ids.clone()
    swapped[:, [3, 10]] = ids[:, [10, 3]]
    order = (model.logits(swapped)[:, -1] - logits[:, -1]).abs().max().item()
    model.noise = torch.Generator().manual_seed(7)
    noise = (model.logits(ids) - logits).abs().max().item()
    place = folder / "iter_0000001/mp_rank_00"
    place.mkdir(parents=True, exist_ok=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("1\n")
    held = {"model": model.w, "args": argparse.Namespace(**args), "iteration": 1, "checkpoint_version": 3.0}
    torch.save(held, place / "model_optim_rng.pt")
    (folder / "args.json").write_text(json.dumps(args, indent=1, sort_keys=True) + "\n")
    save_file({"input_ids": ids, "logits": logits}, folder / "reference.safetensors")
    golden = {
        "family": name,
        "what": what,
        "seed": seed,
        "weights_dtype": "bf16",
        "reference": {"library": "torch", "version": torch.__version__.split("+")[0], "compute_dtype": "float32",
                      "derived": "the model as make.py writes it down from Megatron's definitions: no class computed it"},
        "logits_std": logits.std().item(),
        "max_abs_logit_change_under_1e-6_relative_weight_noise": noise,
        "change_of_last_logits_over_std_when_tokens_3_and_10_are_swapped": order / logits.std().item(),
        "suggested_atol_float32": float(f"{max(5e-4, 10 * noise):.2g}"),
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{name:10} {size:8} bytes, std {logits.std().item():.2f}, noise {noise:.1e}, order {order / logits.std().item():.2f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or SAMPLES:
        make(name)
