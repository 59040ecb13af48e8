#!/usr/bin/env python3
"""Optimizer state in 16 and 8 bits with a scale per tensor, as TransformerEngine's FusedAdam keeps it, in PyTorch.

    python make_scaled.py        writes ./scaled_state.safetensors (needs torch and safetensors)

`FusedAdam` runs on GPUs alone; what is here is its arithmetic: state is read as value times scale, updated in float32 and kept
by a scale of its largest magnitude over half of float16's largest number, or over 448 in 8 bits (E4M3, whose casts are torch's).
Weights are bfloat16, rounded from the new master weights before these are kept.
"""

import pathlib

import torch
from safetensors.torch import save_file

LR, BETA1, BETA2, EPS, DECAY = 3e-3, 0.9, 0.98, 1e-8, 0.1
F16, F8 = torch.float16, torch.float8_e4m3fn


def keep(value, kind):
    """What is kept of `value`, and what it is read as."""
    if kind == torch.float32:
        return value, value
    most = torch.tensor(torch.finfo(F16).max / 2 if kind == F16 else 448.0)
    scale = value.abs().max() / most
    if scale == 0:
        return torch.zeros_like(value).to(kind), torch.zeros_like(value)
    inverse = scale.reciprocal()
    kept = (value * inverse).clamp(-448, 448).to(F8) if kind == F8 else (value * inverse).to(F16)
    return kept, kept.float() * (inverse.reciprocal() if kind == F8 else scale)


def main():
    torch.manual_seed(7)
    out = {}
    # Magnitudes over many powers of two, ties among them; zeros.
    wide = torch.randn(4096) * torch.exp2(torch.randint(-24, 6, (4096,)).float())
    wide[:64] = torch.arange(64).float() / 16
    for name, kind, bits in [("f16", F16, torch.int16), ("f8", F8, torch.uint8)]:
        kept, read = keep(wide, kind)
        out[f"{name}.kept"] = kept.view(bits).to(torch.int32)
        out[f"{name}.read"] = read
    out["values"] = wide
    # What E4M3 codes stand for, and what numbers are rounded to.
    out["e4m3.codes"] = torch.arange(256).to(torch.uint8).view(F8).float().nan_to_num(nan=1e9)
    plain = torch.cat([torch.linspace(-448, 448, 3001), torch.randn(2000) * 0.02, torch.arange(64) / 1024.0])
    out["e4m3.plain"], out["e4m3.rounded"] = plain, plain.to(F8).view(torch.uint8).to(torch.int32)
    grads = torch.randn(6, 300) * torch.exp2(torch.randint(-10, 1, (300,)).float())
    start = (torch.randn(300) * 0.2).bfloat16()
    out["grads"], out["start"] = grads, start.float()
    out["numbers"] = torch.tensor([LR, BETA1, BETA2, EPS, DECAY], dtype=torch.float64)
    for name, kinds in [("half", (F16, F16, F16)), ("byte", (torch.float32, F8, F8)), ("mixed", (F16, F8, F16))]:
        state = [keep(start.float(), kinds[0])[1], torch.zeros(300), torch.zeros(300)]
        for step, g in enumerate(grads, 1):
            p, m, v = state
            m = BETA1 * m + (1 - BETA1) * g
            v = BETA2 * v + (1 - BETA2) * g * g
            step_size = (m / (1 - BETA1**step)) / ((v / (1 - BETA2**step)).sqrt() + EPS)
            p = p - LR * (step_size + DECAY * p)
            out[f"{name}.{step}.weights"] = p.bfloat16().float()
            state = [keep(value, kind)[1] for value, kind in zip((p, m, v), kinds)]
            for what, value in zip(("master", "exp_avg", "exp_avg_sq"), state):
                out[f"{name}.{step}.{what}"] = value
    save_file(out, pathlib.Path(__file__).parent / "scaled_state.safetensors")


if __name__ == "__main__":
    main()
