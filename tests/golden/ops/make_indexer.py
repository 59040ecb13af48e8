#!/usr/bin/env python3
"""The loss that trains the indexer of sparse attention, by the formulas of Megatron-LM and MindSpeed-LLM (2026), in PyTorch.

    python make_indexer.py       writes ./indexer.safetensors (needs torch and safetensors)

One document, float64, gradients by autograd. As upstream does: scores of all pairs with masks of minus infinity (or the type's
lowest number), `topk`, a dense softmax of attention over what is left, summed over heads, normalised and gathered. `tokens` are a
latent attention's, of which a query sees those up to itself; `entries` are pooled, of which it sees those whose windows are over.

| name        | shape     | what                                                                     |
|-------------|-----------|--------------------------------------------------------------------------|
| `q`, `k`    | [S,N,D], [C,1 or N,D] | attention's queries and keys                                 |
| `iq ik iw`  | [S,M,E], [C,E], [S,M] | the indexer's queries, keys and weights of heads             |
| `picks`     | [S,P]     | the picked keys, rising, then -1                                         |
| `target`    | [S,P]     | attention's weights of these, summed over heads                          |
| `target_all`| [S,C]     | of all keys that a query sees                                            |
| `FORM.loss`, `FORM.dq`, `FORM.dk`, `FORM.dw` | | the mean over queries, and its gradients by the indexer's operands |
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
LOW = torch.finfo(torch.float64).min


def scores_of(iq, ik, iw):
    return torch.einsum("smc,sm->sc", torch.relu(torch.einsum("sme,ce->smc", iq, ik)), iw)


def attention(q, k, scale, hidden):
    """Softmaxes of all heads over what is not hidden, summed."""
    k = k.expand(-1, q.shape[1], -1)
    raw = torch.einsum("snd,cnd->nsc", q, k) * scale
    return raw.masked_fill(hidden, LOW).softmax(dim=-1).sum(dim=0)


def mindspeed_tokens(target, scores, picked, eps=1e-8):
    """`compute_dsa_indexer_loss`: an unused place stands for the last key, which attention then gives nothing."""
    of_indexer = scores.softmax(dim=-1)
    clean = torch.where(picked == -1, target.shape[-1] - 1, picked)
    of_attention = F.normalize(target.gather(-1, clean), p=1, dim=-1)
    return F.kl_div((of_indexer + eps).log(), of_attention + eps, reduction="none").sum(-1).mean()


def mindspeed_entries(target, scores, picked, eps=1e-9):
    """`compute_dsa_indexer_loss_dsv4`; of tokens before the first entry the kernels count nothing."""
    of_indexer = scores.softmax(dim=-1) * (picked >= 0).any(-1, keepdim=True)
    clean = torch.where(picked == -1, target.shape[-1] - 1, picked)
    y = F.normalize(target, p=1, dim=-1).gather(-1, clean)
    normed = y / (y.sum(-1, keepdim=True) + eps)
    return ((normed.clamp(min=eps).log() - (of_indexer + eps).log()) * y).sum(-1).mean()


def megatron(target, scores, hidden, eps=1e-10):
    """`indexer_loss_from_target` over what is not hidden."""
    log_p = scores.masked_fill(hidden, -torch.inf).log_softmax(dim=-1).masked_fill(hidden, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(eps)
    return (target * (target.clamp_min(eps).log() - log_p)).sum(-1).mean()


def rising(picked, limit):
    """The picks in the order of their rows, unused places last, and where each stood."""
    order = torch.where(picked == -1, limit, picked).argsort(dim=-1)
    return picked.gather(-1, order), order


def case(kind, heads, shared, top, ratio, seed):
    torch.manual_seed(seed)
    queries, dim, many, width = 14, 6, 3, 5
    keys = queries // ratio
    q, k = torch.randn(queries, heads, dim), torch.randn(keys, 1 if shared else heads, dim)
    iq, ik, iw = torch.randn(queries, many, width), torch.randn(keys, width), torch.randn(queries, many)
    # As f32 holds them, for devices of both types.
    q, k, iq, ik, iw = (t.float().double() for t in (q, k, iq, ik, iw))
    operands = [t.requires_grad_() for t in (iq, ik, iw)]
    scores = scores_of(*operands)
    seen = (torch.arange(queries) + 1) // ratio
    unseen = torch.arange(keys)[None] >= seen[:, None]
    best, picked = (scores + torch.where(unseen, -torch.inf, 0.0)).topk(top, dim=-1)
    picked = torch.where(best.isinf(), -1, picked)
    left = torch.zeros(queries, keys + 1, dtype=torch.bool).scatter(-1, torch.where(picked == -1, keys, picked), True)
    hidden = ~left[:, :keys]
    none = hidden.all(-1, keepdim=True)
    target = attention(q, k, 0.4, hidden) * ~none
    of_all = attention(q, k, 0.4, unseen) * ~none
    rows, order = rising(picked, keys)
    out = {"q": q, "k": k, "iq": iq, "ik": ik, "iw": iw, "picks": rows.int(), "target_all": of_all}
    out["target"] = target.gather(-1, rows.clamp(min=0)) * (rows >= 0)
    if ratio == 1:
        forms = {
            "mindspeed": mindspeed_tokens(target, best, picked),
            "megatron_sparse": megatron(target, scores, hidden),
            "megatron_dense": megatron(of_all, scores, unseen),
        }
    else:
        # Here what is not seen has the lowest number for a score.
        forms = {"mindspeed": mindspeed_entries(target, torch.where(best.isinf(), LOW, best), picked)}
    for name, loss in forms.items():
        grads = torch.autograd.grad(loss, operands, retain_graph=True)
        out |= {f"{name}.loss": loss.reshape(1), **{f"{name}.d{n}": g for n, g in zip("qkw", grads)}}
    return {f"{kind}.{name}": t.detach().contiguous() for name, t in out.items()}


def main():
    out = case("tokens", 4, False, 4, 1, 1) | case("entries", 4, True, 2, 3, 2)
    save_file(out, pathlib.Path(__file__).with_name("indexer.safetensors"))
    for name, value in out.items():
        if name.endswith("loss"):
            print(f"{name}: {value.item():.12f}")


if __name__ == "__main__":
    main()
