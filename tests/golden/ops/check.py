#!/usr/bin/env python3
"""Computes the values of this folder again: definitions in float64, gradients by central differences.

    python check.py        prints the largest difference of every tensor, fails where one is out of tolerance

What it does not compute again it names: frequencies stretched in other ways, routers beyond the plain ones, shifts of prediction modules, learning rates.
"""

import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
FAILED = []
SEEN = {}


def read(name):
    """Tensors in float64 (integers as they are) and metadata of a safetensors file."""
    data = (HERE / f"{name}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    meta = {k: json.loads(v) for k, v in header.pop("__metadata__", {}).items()}
    SEEN[name] = [set(header), set()]
    tensors = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            values = bits.view(np.float32).astype(np.float64)
        else:
            values = np.frombuffer(raw, KINDS[entry["dtype"]])
            values = values.astype(np.float64) if values.dtype.kind == "f" else values
        tensors[key] = values.reshape(entry["shape"])
    return tensors, meta


def near(name, key, got, want, rtol=1e-5, atol=1e-6):
    SEEN[name][1].add(key)
    got, want = np.asarray(got), np.asarray(want)
    worst = float(np.max(np.abs(got - want) / (atol + rtol * np.abs(want)), initial=0.0))
    print(f"{name:20} {key:28} {worst:9.3f} of the tolerance")
    if got.shape != want.shape or not worst <= 1.0:
        FAILED.append(f"{name} {key}")


def slope(name, key, f, x, want, rtol=1e-4):
    """The gradient of `f` by `x`, seen along a few directions."""
    g = np.random.default_rng(len(key))
    for _ in range(3):
        v = g.standard_normal(x.shape)
        h = 1e-5
        got = (f(x + h * v) - f(x - h * v)) / (2 * h)
        near(name, key, got, np.sum(want * v), rtol, 1e-4 * np.linalg.norm(want))


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def rms_norm():
    t, m = read("rmsnorm")
    rstd = lambda x: 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + m["eps"])
    y = lambda x, w: x * rstd(x) * w
    near("rmsnorm", "y", y(t["x"], t["weight"]), t["y"])
    near("rmsnorm", "y_f64", y(t["x"], t["weight"]), t["y_f64"], 1e-12, 1e-12)
    near("rmsnorm", "rstd", rstd(t["x"])[..., 0], t["rstd"])
    x, w = t["x_bf16"], t["weight_bf16"]
    near("rmsnorm", "y_bf16", bf16(bf16(x * rstd(x)) * w), t["y_bf16"], 2**-7)
    near("rmsnorm", "y_bf16_unit_offset", bf16(bf16(x * rstd(x)) * (1 + w)), t["y_bf16_unit_offset"], 2**-6)
    for key in ("dx", "dx_f64"):
        slope("rmsnorm", key, lambda x: np.sum(y(x, t["weight"]) * t["dy"]), t["x"], t[key])
    for key in ("dweight", "dweight_f64"):
        slope("rmsnorm", key, lambda w: np.sum(y(t["x"], w) * t["dy"]), t["weight"], t[key])


def layer_norm():
    t, m = read("layernorm")

    def y(x, w, b):
        x = x - np.mean(x, -1, keepdims=True)
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + m["eps"]) * w + b

    given = (t["x"], t["weight"], t["bias"])
    near("layernorm", "y", y(*given), t["y"])
    for i, key in enumerate(("dx", "dweight", "dbias")):
        slope("layernorm", key, lambda v: np.sum(y(*given[:i], v, *given[i + 1 :]) * t["dy"]), given[i], t[key])


def swiglu():
    t, _ = read("swiglu")
    halves = lambda x: np.split(x, 2, -1)
    silu = lambda x: x / (1 + np.exp(-x))
    gelu = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    for act, y, dx in ((silu, "y", "dx"), (gelu, "y_geglu_tanh", "dx_geglu_tanh")):
        f = lambda x: act(halves(x)[0]) * halves(x)[1]
        near("swiglu", y, f(t["x"]), t[y])
        slope("swiglu", dx, lambda x: np.sum(f(x) * t["dy"]), t["x"], t[dx])


def rope():
    t, m = read("rope")
    d = t["q"].shape[-1]
    inv = m["base"] ** (-np.arange(0, d, 2) / d)
    near("rope", "inv_freq", inv, t["inv_freq"])

    def rotated(q, positions, inv, neighbours):
        angle = np.outer(positions, inv)[:, None, None, :]
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = (q[..., ::2], q[..., 1::2]) if neighbours else np.split(q, 2, -1)
        pair = (a * cos - b * sin, b * cos + a * sin)
        return np.stack(pair, -1).reshape(q.shape) if neighbours else np.concatenate(pair, -1)

    at = np.arange(len(t["q"]))
    for kind, neighbours in (("half", False), ("interleaved", True)):
        near("rope", f"out_{kind}", rotated(t["q"], at, inv, neighbours), t[f"out_{kind}"], atol=5e-6)
        slope("rope", f"dq_{kind}", lambda q: np.sum(rotated(q, at, inv, neighbours) * t["dout"]), t["q"], t[f"dq_{kind}"])
    reset = rotated(t["q"], t["position_ids_reset"], inv, False)
    near("rope", "out_half_reset", reset, t["out_half_reset"], atol=5e-6)


def attend(q, k, v, scale, seen, cap=None):
    """Outputs, maxima and sums; `seen[i, j]`: query i sees key j."""
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    s = np.einsum("ibnd,jbnd->bnij", q, k) * scale
    s = s if cap is None else cap * np.tanh(s / cap)
    s = np.where(seen, s, -np.inf)
    top = s.max(-1)
    p = np.exp(s - top[..., None])
    total = p.sum(-1)
    return np.einsum("bnij,jbnd->ibnd", p / total[..., None], v), top, total


def attention():
    t, m = read("attention")
    n = len(t["q"])
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    segment = np.searchsorted(t["cu_seqlens"], np.arange(n), side="right")
    forms = {
        "": (j <= i, None, slice(None)),
        "varlen_": ((j <= i) & (segment[:, None] == segment[None, :]), None, slice(0, 1)),
        "band_": ((j <= i) & (i - j <= m["band_pre_tokens"]), None, slice(None)),
        "softcap_": (j <= i, m["softcap"], slice(None)),
    }
    for prefix, (seen, cap, rows) in forms.items():
        given = [t[name][:, rows] for name in "qkv"]
        f = lambda q, k, v: attend(q, k, v, m["scale"], seen, cap)
        for key, got in zip(("out", "softmax_max", "softmax_sum"), f(*given)):
            if prefix + key in t:
                near("attention", prefix + key, got, t[prefix + key])
        for at, key in enumerate(("dq", "dk", "dv")):
            loss = lambda x: np.sum(f(*given[:at], x, *given[at + 1 :])[0] * t["dout"][:, rows])
            slope("attention", prefix + key, loss, given[at], t[prefix + key])
    last = m["sq_rightdown"]
    got = attend(t["q"][n - last :], t["k"], t["v"], m["scale"], (j <= i)[n - last :])[0]
    near("attention", "rightdown_out", got, t["rightdown_out"])


def ring_merge():
    t, m = read("ring_merge")
    n = len(t["q"])
    causal = np.tri(n, dtype=bool)
    whole = np.concatenate((np.ones((n, n), bool), causal), 1)
    parts = {"_a": (slice(0, n), np.ones((n, n), bool)), "_b": (slice(n, None), causal)}
    for part, (keys, seen) in parts.items():
        for key, got in zip(("out", "max", "sum"), attend(t["q"], t["k"][keys], t["v"][keys], m["scale"], seen)):
            near("ring_merge", key + part, got, t[key + part])
    for key, got in zip(("out", "softmax_max", "softmax_sum"), attend(t["q"], t["k"], t["v"], m["scale"], whole)):
        near("ring_merge", key, got, t[key])


def cross_entropy():
    name = "vocab_parallel_ce"
    t, m = read(name)
    smoothing = m["smoothing_effective"]

    def losses(x, smoothing):
        top = x.max(-1, keepdims=True)
        logs = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
        nll = -np.take_along_axis(logs, t["target"][..., None], -1)[..., 0]
        return (1 - smoothing) * nll - smoothing * logs.mean(-1)

    for s, y, dx in ((0.0, "loss", "dlogits"), (smoothing, "loss_label_smoothing", "dlogits_label_smoothing")):
        near(name, y, losses(t["logits"], s), t[y])
        slope(name, dx, lambda x: np.sum(losses(x, s) * t["dloss"]), t["logits"], t[dx])
    top = t["logits"].max(-1)
    near(name, "logits_max", top, t["logits_max"])
    near(name, "sum_exp", np.exp(t["logits"] - top[..., None]).sum(-1), t["sum_exp"])
    for ranks in (2, 4):
        for rank, shard in enumerate(np.split(t["logits"], ranks, -1)):
            key, width = f"tp{ranks}.rank{rank}.", shard.shape[-1]
            near(name, key + "local_max", shard.max(-1), t[key + "local_max"])
            near(name, key + "local_sum_exp", np.exp(shard - top[..., None]).sum(-1), t[key + "local_sum_exp"])
            own = (t["target"] // width) == rank
            at = np.where(own, t["target"] % width, 0)
            got = np.take_along_axis(shard - top[..., None], at[..., None], -1)[..., 0]
            near(name, key + "predicted", np.where(own, got, 0), t[key + "predicted"])


def adamw():
    t, m = read("adamw")
    (b1, b2), lr = m["betas"], m["lr"]
    p = [t["p0.init"], t["p1.init"]]
    first, second = [np.zeros_like(x) for x in p], [np.zeros_like(x) for x in p]
    for step in range(1, 6):
        g = [t[f"step{step}.g{i}"] for i in range(2)]
        norm = np.sqrt(sum(np.sum(x * x) for x in g))
        factor = min(1.0, m["clip"] / (norm + 1e-6))
        near("adamw", f"step{step}.grad_norm", norm, t[f"step{step}.grad_norm"])
        near("adamw", f"step{step}.clip_coeff", factor, t[f"step{step}.clip_coeff"])
        rate = lr[step - 1] if isinstance(lr, list) else lr
        for i in range(2):
            grad = g[i] * factor
            decay = m["weight_decay"] if p[i].ndim > 1 else 0.0
            first[i] = b1 * first[i] + (1 - b1) * grad
            second[i] = b2 * second[i] + (1 - b2) * grad * grad
            by = (first[i] / (1 - b1**step)) / (np.sqrt(second[i] / (1 - b2**step)) + m["eps"])
            p[i] = p[i] * (1 - rate * decay) - rate * by
            for key, got, tolerance in (("p", p, 1e-5), ("m", first, 1e-4), ("v", second, 1e-4)):
                for form in ("", "_f64"):
                    if (at := f"step{step}.{key}{i}{form}") in t:
                        near("adamw", at, got[i], t[at], tolerance, 1e-6)


def routing():
    name = "moe_routing"
    t, m = read(name)
    x, k = t["logits"], m["topk"]
    softmax = lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    chosen = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    near(name, "softmax_pre.indices", chosen, t["softmax_pre.indices"], 0, 0.5)
    near(name, "softmax_pre.probs", np.take_along_axis(softmax(x), chosen, -1), t["softmax_pre.probs"])
    near(name, "softmax_post.indices", chosen, t["softmax_post.indices"], 0, 0.5)
    near(name, "softmax_post.probs", softmax(np.take_along_axis(x, chosen, -1)), t["softmax_post.probs"])
    counts = np.bincount(chosen.ravel(), minlength=x.shape[1])
    for kind in ("pre", "post"):
        near(name, f"softmax_{kind}.tokens_per_expert", counts, t[f"softmax_{kind}.tokens_per_expert"], 0, 0.5)


def halves():
    name = "reuse_fp32_param"
    t, _ = read(name)
    words = t["fp32_bits"].astype(np.int32)
    with np.errstate(over="ignore"):
        up = words + np.int32(0x8000)
        tie = (words & 0x1FFFF) == 0x8000
        even = up - tie.astype(np.int32)
    for form, a in (("", up), ("_deterministic", even)):
        near(name, "bf16_bits" + form, a >> 16, t["bf16_bits" + form], 0, 0.5)
        near(name, "residual_bits" + form, (a & 0xFFFF).astype(np.uint16).view(np.int16), t["residual_bits" + form], 0, 0.5)
    near(name, "tie_even_flag", tie, t["tie_even_flag"].astype(np.int64), 0, 0.5)


def grouped_matmul():
    t, _ = read("grouped_matmul")
    ends = np.cumsum(t["tokens_per_expert"])
    near("grouped_matmul", "group_list", ends, t["group_list"], 0, 0.5)
    starts = ends - t["tokens_per_expert"]

    def y(x, w):
        return np.concatenate([x[a:b] @ w[e] for e, (a, b) in enumerate(zip(starts, ends))])

    near("grouped_matmul", "y", y(t["x"], t["weight"]), t["y"])
    slope("grouped_matmul", "dx", lambda x: np.sum(y(x, t["weight"]) * t["dy"]), t["x"], t["dx"])
    slope("grouped_matmul", "dweight", lambda w: np.sum(y(t["x"], w) * t["dy"]), t["weight"], t["dweight"])


def nf4():
    name = "nf4"
    t, m = read(name)
    f32 = lambda key: t[key].astype(np.float32)
    table, block = f32("code"), m["blocksize"]
    middles = (table[:-1] + table[1:]) / np.float32(2)

    def packed(blocks, largest):
        inverse = np.divide(np.float32(1), largest, where=largest != 0, out=np.zeros_like(largest))
        codes = np.searchsorted(middles, (blocks * inverse[:, None]).ravel())
        return (codes[::2] << 4 | codes[1::2])[:, None]

    def unpacked(words, scale):
        codes = np.stack((words >> 4, words & 15), 1).ravel()
        return table[codes] * np.repeat(scale, block)

    blocks = f32("weight").reshape(-1, block)
    largest = np.abs(blocks).max(1)
    near(name, "absmax", largest, t["absmax"], 0, 1e-30)
    near(name, "packed", packed(blocks, largest), t["packed"], 0, 0.5)
    near(name, "dequant", unpacked(t["packed"], largest).reshape(t["dequant"].shape), t["dequant"], 1e-7, 1e-30)
    blocks = f32("weight_bf16").reshape(-1, block)
    largest = np.abs(blocks).max(1)
    near(name, "dq_packed", packed(blocks, largest), t["dq_packed"], 0, 0.5)
    near(name, "dq_offset", np.mean(largest, dtype=np.float64)[None], t["dq_offset"], 1e-6)
    rest = largest - f32("dq_offset")
    width = m["nested_blocksize"]
    scale = np.array([np.abs(rest[i : i + width]).max() for i in range(0, len(rest), width)])
    near(name, "dq_nested_absmax", scale, t["dq_nested_absmax"], 1e-7)
    scale = np.repeat(scale, width)[: len(rest)]
    nearest = np.abs(t["dq_nested_code"][None] - (rest / scale)[:, None]).argmin(1)
    near(name, "dq_absmax_u8", nearest, t["dq_absmax_u8"], 0, 0.5)
    scale = f32("dq_nested_code")[t["dq_absmax_u8"]] * scale + f32("dq_offset")
    got = bf16(unpacked(t["dq_packed"], scale)).reshape(t["dq_dequant_bf16"].shape)
    near(name, "dq_dequant_bf16", got, t["dq_dequant_bf16"], 0, 1e-30)


def stretched():
    """Frequencies by the formulas of transformers and MindSpeed-LLM, for settings of published models."""
    name = "rope_scaling"
    cases = json.loads((HERE / f"{name}.json").read_text())
    SEEN[name] = [set(), set()]
    for case in cases:
        d, base, factor, length = (case[k] for k in ("rotary_dim", "rope_theta", "factor", "original_max_position_embeddings"))
        plain = base ** (-np.arange(0, d, 2) / d)
        if case.get("kind") == "llama3":
            low, high = case["low_freq_factor"], case["high_freq_factor"]
            kept = np.clip((length * plain / (2 * np.pi) - low) / (high - low), 0, 1)
            got = {}
        else:
            pair = lambda turns: d * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base))
            low, high = np.floor(pair(case["beta_fast"])), np.ceil(pair(case["beta_slow"]))
            kept = 1 - np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
            of = lambda scale: 0.1 * scale * np.log(factor) + 1
            every = of(case["mscale_all_dim"])
            magnitude = of(case["mscale"]) / every
            got = {"low": low, "high": high, "attention_factor_hf": magnitude, "cos_sin_scale_mindspeed": magnitude}
            got["softmax_scale_multiplier_mla"] = every**2
        got["inv_freq"] = plain * kept + plain / factor * (1 - kept)
        for key, value in got.items():
            SEEN[name][0].add(f"{case['name']} {key}")
            near(name, f"{case['name']} {key}", value, case[key], 2e-6, 0)


for check in (rms_norm, layer_norm, swiglu, rope, attention, ring_merge, cross_entropy, adamw, routing, halves, grouped_matmul, nf4, stretched):
    check()
for name, (there, done) in SEEN.items():
    print(f"{name}: {len(done)} of {len(there)} tensors computed again; the others: {' '.join(sorted(there - done))}")
if FAILED:
    sys.exit(f"out of tolerance: {FAILED}")
