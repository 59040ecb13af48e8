#!/usr/bin/env python3
"""Makes the training runs of this folder: weights, rows of tokens, and what JAX gives for each iteration in float64.

    python make.py [CASE ...]        writes ./CASE/{config.json,model.safetensors,data.safetensors,golden.json}
    python make.py --check FOLDER    computes a run of this form again and says how far the two are apart

The model is written out below (RMSNorm, half-split rotation, grouped attention, SwiGLU, experts chosen by their logits), its
gradients are JAX's. The rules of an iteration are Megatron's: rows in order, a micro-batch's loss is the mean over its counted
tokens, gradients and losses are means over micro-batches, AdamW without decay of vectors, clipping by the global norm. Where an
end of document is named, attention stays in a document and positions begin anew after it; where experts have a capacity, each
keeps the tokens of a micro-batch that weigh most, and what it loses weighs nothing. Needs jax and numpy.
"""

import json
import math
import pathlib
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I8": np.int8}

COMMON = dict(
    vocab=64, h=16, layers=2, nh=4, nkv=4, hd=4, ffn=32, seq=64, theta=10000.0, eps=1e-5, experts=0, topk=2, aux=0.0,
    gbs=8, mbs=2, iters=10, lr=5e-3, min_lr=5e-4, warm=0.1, wd=0.1, b1=0.9, b2=0.95, aeps=1e-8, clip=1.0, style="cosine",
)
CASES = {
    "dense": dict(COMMON, seed=1),
    "masked": dict(COMMON, lr=4e-3, min_lr=0.0, wd=0.0, style="linear", seed=2),
    "experts": dict(COMMON, nkv=2, ffn=16, experts=4, aux=0.02, seed=3),
    "documents": dict(COMMON, nkv=2, gbs=6, eod=0, seed=4),
    "capacity": dict(COMMON, nkv=2, ffn=16, experts=4, aux=0.02, capacity=1.0, gbs=6, seed=24),
}


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], KINDS[t["dtype"]]).reshape(t["shape"])
        for name, t in header.items()
    }


def write(path, tensors):
    header, body = {}, b""
    for name, value in sorted(tensors.items()):
        kind = next(k for k, v in KINDS.items() if v == value.dtype)
        raw = np.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def names(c):
    """Shapes of all weights by the names of Hugging Face."""
    q, kv, h, f = c["nh"] * c["hd"], c["nkv"] * c["hd"], c["h"], c["ffn"]
    shapes = {"model.embed_tokens.weight": (c["vocab"], h), "model.norm.weight": (h,), "lm_head.weight": (c["vocab"], h)}
    for layer in range(c["layers"]):
        at = f"model.layers.{layer}."
        shapes |= {at + f"{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
        shapes |= {at + f"self_attn.{p}_proj.weight": (n, h) for p, n in (("q", q), ("k", kv), ("v", kv))}
        shapes[at + "self_attn.o_proj.weight"] = (h, q)
        if c["experts"]:
            moe = at + "block_sparse_moe."
            shapes[moe + "gate.weight"] = (c["experts"], h)
            for e in range(c["experts"]):
                shapes |= {moe + f"experts.{e}.w{i}.weight": s for i, s in ((1, (f, h)), (3, (f, h)), (2, (h, f)))}
        else:
            shapes |= {at + f"mlp.{p}_proj.weight": s for p, s in (("gate", (f, h)), ("up", (f, h)), ("down", (h, f)))}
    return shapes


def forward(c, w, tokens, mask):
    """Loss of a micro-batch with its auxiliary losses; the loss alone, the balance of each layer, counts, and the least
    distance between a chosen expert's logit and the next one's."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    rows, n = inputs.shape
    norm = lambda x, name: x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + c["eps"]) * w[name]
    swiglu = lambda x, gate, up, down: (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T
    place = jnp.broadcast_to(jnp.arange(n), (rows, n))
    seen = jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool)), (rows, n, n))
    if c.get("eod") is not None:
        ends = inputs == c["eod"]
        document = jnp.cumsum(ends, -1) - ends
        seen = seen & (document[:, :, None] == document[:, None, :])
        place = place - jnp.argmax(document[:, None, :] == document[:, :, None], -1)
    angle = (place[..., None] * c["theta"] ** (-jnp.arange(0, c["hd"], 2) / c["hd"]))[:, :, None, :]

    def rotated(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate((a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)), -1)

    x = w["model.embed_tokens.weight"][inputs]
    balances, counts, margins = [], [], []
    for layer in range(c["layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        heads = lambda p, k: (y @ w[at + f"self_attn.{p}_proj.weight"].T).reshape(rows, n, k, c["hd"])
        q, k, v = rotated(heads("q", c["nh"])), rotated(heads("k", c["nkv"])), heads("v", c["nkv"])
        k, v = (jnp.repeat(t, c["nh"] // c["nkv"], 2) for t in (k, v))
        scores = jnp.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(c["hd"])
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
        y = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, -1), v).reshape(rows, n, -1)
        x = x + y @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm.weight")
        if not c["experts"]:
            x = x + swiglu(y, *(w[at + f"mlp.{p}_proj.weight"] for p in ("gate", "up", "down")))
            continue
        moe = at + "block_sparse_moe."
        logits = (y @ w[moe + "gate.weight"].T).reshape(-1, c["experts"])
        best, chosen = jax.lax.top_k(logits, c["topk"])
        weights = jnp.zeros_like(logits).at[jnp.arange(len(logits))[:, None], chosen].set(jax.nn.softmax(best, -1))
        kept = jnp.ones_like(weights)
        if c.get("capacity"):
            room = math.ceil(len(logits) * c["topk"] / c["experts"] * c["capacity"])
            heaviest = jnp.sort(weights, 0)[::-1]
            kept = weights >= heaviest[room - 1]
            full = heaviest[room] > 0
            margins.append(jnp.min(jnp.where(full, heaviest[room - 1] - heaviest[room], jnp.inf)))
        weights = weights * jax.lax.stop_gradient(kept)
        each = [swiglu(y, *(w[moe + f"experts.{e}.w{i}.weight"] for i in (1, 3, 2))) for e in range(c["experts"])]
        x = x + sum(weights[:, e].reshape(rows, n, 1) * out for e, out in enumerate(each))
        count = jax.lax.stop_gradient(jnp.zeros(c["experts"]).at[chosen.ravel()].add(1.0))
        balance = jnp.sum(jax.nn.softmax(logits, -1).sum(0) * count) * c["experts"] / (c["topk"] * len(logits) ** 2)
        balances.append(balance)
        counts.append(count)
        ordered = jnp.sort(logits, -1)[:, ::-1]
        margins.append(jnp.min(ordered[:, c["topk"] - 1] - ordered[:, c["topk"]]))
    logits = norm(x, "model.norm.weight") @ w["lm_head.weight"].T
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1)[..., 0]
    total = jnp.sum(nll * mask)
    loss = total / jnp.sum(mask)
    return loss + c["aux"] * sum(balances), (loss, total, jnp.array(balances), jnp.array(counts), jnp.array(margins))


def rate(c, iteration):
    """The learning rate by samples: Megatron's scheduler, linear warm-up from 0."""
    done, all_, warm = (iteration - 1) * c["gbs"], c["iters"] * c["gbs"], c["warm"] * c["iters"] * c["gbs"]
    if warm > 0 and done <= warm:
        return c["lr"] * done / warm
    ratio = (done - warm) / (all_ - warm)
    coefficient = 0.5 * (math.cos(math.pi * ratio) + 1.0) if c["style"] == "cosine" else 1.0 - ratio
    return c["min_lr"] + coefficient * (c["lr"] - c["min_lr"])


def train(c, weights, data):
    w = {name: jnp.asarray(value, jnp.float64) for name, value in weights.items()}
    first, second = ({name: jnp.zeros_like(v) for name, v in w.items()} for _ in range(2))
    step = jax.jit(jax.value_and_grad(lambda w, tokens, mask: forward(c, w, tokens, mask), has_aux=True))
    steps, margin = [], math.inf
    for i in range(1, c["iters"] + 1):
        grads, seen = [], []
        for row in range(0, c["gbs"], c["mbs"]):
            part = slice(row, row + c["mbs"])
            mask = jnp.asarray(data["loss_mask"][i - 1, part], jnp.float64)
            (_, aux), grad = step(w, jnp.asarray(data["tokens"][i - 1, part]), mask)
            grads.append(grad)
            seen.append((*aux, jnp.sum(mask)))
        grad = {name: sum(g[name] for g in grads) / len(grads) for name in w}
        norm = math.sqrt(sum(float(jnp.sum(g * g)) for g in grad.values()))
        clip, lr = min(1.0, c["clip"] / (norm + 1e-6)), rate(c, i)
        report = {
            "iteration": i, "lr": lr, "lm_loss": float(np.mean([s[0] for s in seen])), "grad_norm": norm,
            "lm_loss_token_mean": float(sum(s[1] for s in seen) / sum(s[5] for s in seen)),
        }
        if c["experts"]:
            report["load_balancing_loss"] = float(np.mean([s[2] for s in seen]))
            report["tokens_per_expert"] = np.sum([s[3] for s in seen], 0).astype(int).tolist()
            margin = min(margin, float(np.min([s[4] for s in seen])))
        steps.append(report)
        for name in w:
            g = grad[name] * clip
            first[name] = c["b1"] * first[name] + (1 - c["b1"]) * g
            second[name] = c["b2"] * second[name] + (1 - c["b2"]) * g * g
            by = (first[name] / (1 - c["b1"] ** i)) / (jnp.sqrt(second[name] / (1 - c["b2"] ** i)) + c["aeps"])
            decay = c["wd"] if w[name].ndim > 1 else 0.0
            w[name] = w[name] * (1 - lr * decay) - lr * by
    return steps, margin


def tokenizer(c, folder):
    """Names the end of documents: the other tokens are single characters."""
    end = "<|endoftext|>"
    others = [i for i in range(c["vocab"]) if i != c["eod"]]
    vocabulary = {end: c["eod"]} | {chr(ord("!") + k): i for k, i in enumerate(others)}
    special = {"id": c["eod"], "content": end, "special": True, "normalized": False}
    special |= {"single_word": False, "lstrip": False, "rstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level, "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": [],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end, "model_max_length": c["seq"]}
    (folder / "tokenizer.json").write_text(json.dumps(file, indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def make(case, c):
    g = np.random.default_rng(c["seed"])
    weights = {}
    for name, shape in names(c).items():
        value = 1.0 + 0.1 * g.standard_normal(shape) if len(shape) == 1 else g.standard_normal(shape) / math.sqrt(shape[1])
        weights[name] = value.astype(np.float32)
    # A token nearly says the next one, so that there is something to learn.
    tokens = np.zeros((c["iters"], c["gbs"], c["seq"] + 1), np.int32)
    tokens[..., 0] = g.integers(0, c["vocab"], tokens.shape[:2])
    for at in range(c["seq"]):
        tokens[..., at + 1] = (5 * tokens[..., at] + 3 + g.integers(0, 3, tokens.shape[:2])) % c["vocab"]
    mask = np.ones((c["iters"], c["gbs"], c["seq"]), np.int8)
    if case == "masked":
        # Answers of unequal length after questions that do not count.
        begin = g.integers(4, c["seq"] - 4, mask.shape[:2])[..., None]
        mask = (np.arange(c["seq"])[None, None, :] >= begin).astype(np.int8)
    if "eod" in c:
        # Documents of a dozen tokens: rows begin and end with an end, have two in a row, or none at all.
        tokens[tokens == c["eod"]] = c["eod"] + 1
        tokens[g.random(tokens.shape) < 0.08] = c["eod"]
        tokens[:, 0, 0] = tokens[:, 1, -2:] = tokens[:, 2, 20:22] = c["eod"]
        tokens[:, 3][tokens[:, 3] == c["eod"]] = c["eod"] + 2
    folder = HERE / case
    folder.mkdir(exist_ok=True)
    data = {"tokens": tokens, "loss_mask": mask}
    write(folder / "model.safetensors", weights)
    write(folder / "data.safetensors", data)
    config = {
        "architectures": ["MixtralForCausalLM" if c["experts"] else "LlamaForCausalLM"],
        "model_type": "mixtral" if c["experts"] else "llama",
        "vocab_size": c["vocab"], "hidden_size": c["h"], "intermediate_size": c["ffn"], "num_hidden_layers": c["layers"],
        "num_attention_heads": c["nh"], "num_key_value_heads": c["nkv"], "head_dim": c["hd"], "hidden_act": "silu",
        "max_position_embeddings": c["seq"], "rms_norm_eps": c["eps"], "rope_theta": c["theta"],
        "initializer_range": 0.02, "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "float32",
        "bos_token_id": 1, "eos_token_id": 2,
    }
    if c["experts"]:
        config |= {"num_local_experts": c["experts"], "num_experts_per_tok": c["topk"], "router_aux_loss_coef": c["aux"]}
        config["sliding_window"] = None
    if "eod" in c:
        config["eos_token_id"] = c["eod"]
        tokenizer(c, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    steps, margin = train(c, weights, data)
    golden = {"library": f"jax {jax.__version__}, float64", "config": c, "steps_f64": steps}
    if c["experts"]:
        golden["least_margin"] = margin
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(case, [round(s["lm_loss"], 4) for s in steps], [round(s["grad_norm"], 3) for s in steps], margin)


def check(folder):
    golden = json.loads((folder / "golden.json").read_text())
    steps, _ = train(golden["config"], read(folder / "model.safetensors"), read(folder / "data.safetensors"))
    for key in ("lr", "lm_loss", "lm_loss_token_mean", "grad_norm", "load_balancing_loss"):
        pairs = [(s[key], w[key]) for s, w in zip(steps, golden["steps_f64"], strict=True) if key in w]
        print(f"{folder.name} {key}: {len(pairs)} values, {max((abs(a - b) for a, b in pairs), default=0):.2e} apart at most")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(pathlib.Path(sys.argv[2]))
    else:
        for case in sys.argv[1:] or CASES:
            make(case, CASES[case])
