#!/usr/bin/env python3
"""Makes prediction.safetensors: a tiny decoder with two multi-token prediction modules, in float64.

Needs torch and safetensors (made with torch 2.15.0). Usage: python3 make_prediction_golden.py [FOLDER]

Names are Megatron-core's. The states enter module 0 before the decoder's final norm; the embedding comes first in
eh_proj; tokens, labels and mask of module k are moved left by k + 1 in each row, zeros coming in; the loss of a module
is the mean over its mask; what is optimised is loss + FACTOR / 2 * (loss of module 0 + loss of module 1).

What begins with "windows." is the form of MindSpeed-LLM 2.0.0, on the same weights: rows are two tokens longer, module k sees those
from k + 1 on with documents and positions of its own (positions begin at 0 up to the first document that begins in the
window), the states come first in eh_proj, and all losses have the mask of the first tokens.
"""
import sys
import torch
from safetensors.torch import save_file

torch.manual_seed(20261121)
H, F, V, L, D, HEADS, GROUPS, ROWS, SEQ, FACTOR, BASE = 16, 24, 40, 2, 8, 2, 1, 2, 9, 0.3, 10000.0
w = {}


def matrix(name, rows, columns):
    w[name + ".weight"] = (torch.randn(rows, columns) * 0.2).double()


def norm(name):
    w[name + ".weight"] = (1 + 0.1 * torch.randn(H)).double()


def layer(prefix):
    norm(prefix + "input_layernorm")
    matrix(prefix + "self_attention.linear_qkv", (HEADS + 2 * GROUPS) * D, H)
    matrix(prefix + "self_attention.linear_proj", H, HEADS * D)
    norm(prefix + "pre_mlp_layernorm")
    matrix(prefix + "mlp.linear_fc1", 2 * F, H)
    matrix(prefix + "mlp.linear_fc2", H, F)


matrix("embedding.word_embeddings", V, H)
for n in range(L):
    layer(f"decoder.layers.{n}.")
norm("decoder.final_layernorm")
matrix("output_layer", V, H)
for k in range(2):
    norm(f"mtp.layers.{k}.enorm")
    norm(f"mtp.layers.{k}.hnorm")
    matrix(f"mtp.layers.{k}.eh_proj", H, 2 * H)
    layer(f"mtp.layers.{k}.transformer_layer.")
    norm(f"mtp.final_layernorms.{k}")
w = {name: value.float().double().requires_grad_() for name, value in w.items()}


def rms(name, x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w[name + ".weight"]


def linear(name, x):
    return x @ w[name + ".weight"].T


def rotate(x, positions):
    half = D // 2
    angles = positions.double()[..., None] * BASE ** (-torch.arange(half).double() / half)
    cos, sin = angles.cos()[:, :, None, :], angles.sin()[:, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


ONE = torch.zeros(ROWS, SEQ), torch.arange(SEQ).expand(ROWS, SEQ)


def run_layer(prefix, x, documents_positions=ONE):
    documents, positions = documents_positions
    h = linear(prefix + "self_attention.linear_qkv", rms(prefix + "input_layernorm", x))
    h = h.view(ROWS, SEQ, HEADS + 2 * GROUPS, D)
    q, k = rotate(h[:, :, :HEADS], positions), rotate(h[:, :, HEADS : HEADS + 1], positions)
    v = h[:, :, HEADS + 1 :]
    scores = torch.einsum("bqhd,bkgd->bhqk", q, k) / D**0.5
    hidden = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1) | (documents[:, :, None] != documents[:, None, :])
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    out = torch.einsum("bhqk,bkgd->bqhd", scores.softmax(-1), v).reshape(ROWS, SEQ, HEADS * D)
    x = x + linear(prefix + "self_attention.linear_proj", out)
    gate, up = linear(prefix + "mlp.linear_fc1", rms(prefix + "pre_mlp_layernorm", x)).chunk(2, -1)
    return x + linear(prefix + "mlp.linear_fc2", torch.nn.functional.silu(gate) * up)


def left(x):
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


def loss(x, labels, mask):
    nll = torch.nn.functional.cross_entropy(linear("output_layer", x).flatten(0, 1), labels.flatten(), reduction="none")
    return (nll * mask.flatten()).sum() / mask.sum()


tokens, labels = torch.randint(0, V, (2, ROWS, SEQ))
mask = (torch.rand(ROWS, SEQ) < 0.8).double()
mask[:, 3] = 1
embedding = w["embedding.word_embeddings.weight"]
x = embedding[tokens]
for n in range(L):
    x = run_layer(f"decoder.layers.{n}.", x)
losses = [loss(rms("decoder.final_layernorm", x), labels, mask)]
t, l, m = tokens, labels, mask
for k in range(2):
    t, l, m = left(t), left(l), left(m)
    both = torch.cat([rms(f"mtp.layers.{k}.enorm", embedding[t]), rms(f"mtp.layers.{k}.hnorm", x)], -1)
    x = run_layer(f"mtp.layers.{k}.transformer_layer.", linear(f"mtp.layers.{k}.eh_proj", both))
    losses.append(loss(rms(f"mtp.final_layernorms.{k}", x), l, m))
(losses[0] + FACTOR / 2 * (losses[1] + losses[2])).backward()
square = sum((v.grad**2).sum() for v in w.values())
out = {name: value.detach().float() for name, value in w.items()}
out |= {"tokens": tokens.int(), "labels": labels.int(), "mask": mask.float()}
out["losses"] = torch.stack(losses).detach()
out["grad_norm"] = square.sqrt().detach().reshape(1)

MORE = 2
tokens, labels = torch.randint(0, V, (2, ROWS, SEQ + MORE))
mask = (torch.rand(ROWS, SEQ + MORE) < 0.8).double()
mask[:, 3] = 1
# In the first row a document begins at the sixth token, and another after the first tokens.
documents = torch.zeros(ROWS, SEQ + MORE, dtype=torch.int64)
documents[0, 5:], documents[0, SEQ + 1 :] = 1, 2
positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in [[5, SEQ - 4, 1], [SEQ + 2]]])


def window(k):
    seen = positions[:, k : k + SEQ].clone()
    for row in seen:
        begins = (row == 0).nonzero()
        if len(begins):
            row[: begins[0]] = torch.arange(begins[0].item())
        else:
            row -= k
    return tokens[:, k : k + SEQ], labels[:, k : k + SEQ], (documents[:, k : k + SEQ], seen)


for v in w.values():
    v.grad = None
t, l, where = window(0)
x = embedding[t]
for n in range(L):
    x = run_layer(f"decoder.layers.{n}.", x, where)
m = mask[:, :SEQ]
losses = [loss(rms("decoder.final_layernorm", x), l, m)]
for k in range(MORE):
    t, l, where = window(k + 1)
    both = torch.cat([rms(f"mtp.layers.{k}.hnorm", x), rms(f"mtp.layers.{k}.enorm", embedding[t])], -1)
    x = run_layer(f"mtp.layers.{k}.transformer_layer.", linear(f"mtp.layers.{k}.eh_proj", both), where)
    losses.append(loss(rms(f"mtp.final_layernorms.{k}", x), l, m))
total = losses[0] + FACTOR / 2 * (losses[1] + losses[2])
total.backward()
square = sum((v.grad**2).sum() for v in w.values())
out |= {"windows.tokens": tokens.int(), "windows.labels": labels.int(), "windows.mask": mask.float()}
out |= {"windows.positions": positions.int(), "windows.loss": total.detach().reshape(1)}
out["windows.grad_norm"] = square.sqrt().detach().reshape(1)
print(torch.stack(losses), out["windows.loss"], out["windows.grad_norm"])
save_file(out, (sys.argv[1] if len(sys.argv) > 1 else ".") + "/prediction.safetensors")
print(out["losses"], out["grad_norm"])
