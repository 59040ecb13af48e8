#!/usr/bin/env python3
"""Makes schedules.json: learning rates and weight decays of Megatron's own scheduler, iteration by iteration.

Usage: python3 make.py SCHEDULER, the file `optimizer_param_scheduler.py` of Megatron-LM at the tag core_r0.8.0. Nothing
else is needed: what the file imports is replaced, since only arithmetic of the standard library is used. The way from
flags to its arguments is that of `get_optimizer_param_scheduler` in `megatron/training/training.py`.

A case holds `flags` (of ms-train, without the model), and for each iteration the `lr` and `weight_decay` that its step
uses: those after the samples of the iterations before.
"""
import importlib.util
import json
import sys
import types
from pathlib import Path

GLOBAL = 4


def scheduler_class(path):
    for name in ["megatron", "megatron.core", "megatron.core.optimizer", "megatron.core.utils", "megatron.training",
                 "megatron.training.utils"]:
        module = types.ModuleType(name)
        module.print_rank_0 = module.log_single_rank = lambda *_: None
        module.MegatronOptimizer = object
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("megatron.core.optimizer_param_scheduler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OptimizerParamScheduler


def case(cls, name, iterations=30, samples=None, **given):
    """`given`: flags by their names in Python."""
    flags = {"lr": 1e-3, "min_lr": 1e-4, "lr_decay_style": "linear", "weight_decay": 0.1, **given}
    unit = GLOBAL if samples is None else 1
    word = "iters" if samples is None else "samples"
    length = lambda key: None if flags.get(f"{key}_{word}") is None else flags[f"{key}_{word}"] * unit
    total = iterations * GLOBAL if samples is None else samples
    decay = length("lr_decay") or total
    if "lr_warmup_fraction" in flags:
        warmup = flags["lr_warmup_fraction"] * decay
    else:
        warmup = length("lr_warmup") or 0
    style = flags.get("weight_decay_incr_style", "constant")
    start = flags.get("start_weight_decay", flags["weight_decay"])
    end = flags.get("end_weight_decay", flags["weight_decay"])
    optimizer = types.SimpleNamespace(param_groups=[{}])
    scheduler = cls(
        optimizer, init_lr=flags.get("lr_warmup_init", 0.0), max_lr=flags["lr"], min_lr=flags["min_lr"],
        lr_warmup_steps=warmup, lr_decay_steps=decay, lr_decay_style=flags["lr_decay_style"], start_wd=start, end_wd=end,
        wd_incr_steps=total, wd_incr_style=style, use_checkpoint_opt_param_scheduler=False,
        wsd_decay_steps=length("lr_wsd_decay"), lr_wsd_decay_style=flags.get("lr_wsd_decay_style", "exponential"))
    group, rates, decays = optimizer.param_groups[0], [], []
    for _ in range(total // GLOBAL):
        rates.append(group["lr"])
        decays.append(group["weight_decay"])
        scheduler.step(increment=GLOBAL)
    flags |= {"train_iters": iterations} if samples is None else {"train_samples": samples}
    words = [w for key, value in flags.items() for w in ("--" + key.replace("_", "-"), str(value))]
    return {"name": name, "flags": words, "lr": rates, "weight_decay": decays}


def main():
    cls = scheduler_class(sys.argv[1])
    cases = []
    for style in ["constant", "linear", "cosine", "inverse-square-root"]:
        cases.append(case(cls, f"{style}, warm-up in iterations", lr_decay_style=style, lr_warmup_iters=5))
    for style in ["linear", "cosine", "exponential"]:
        cases.append(case(cls, f"WSD {style}", lr_decay_style="WSD", lr_wsd_decay_style=style, lr_wsd_decay_iters=8,
                          lr_warmup_iters=3))
    cases += [
        case(cls, "warm-up from a rate", lr_warmup_iters=6, lr_warmup_init=2e-4),
        case(cls, "a share that is not whole", lr_decay_style="cosine", lr_warmup_fraction=0.13),
        case(cls, "decay that ends early", lr_decay_iters=20, lr_warmup_iters=2),
        case(cls, "decay that lasts longer", lr_decay_iters=50, lr_decay_style="cosine", lr_warmup_iters=2),
        case(cls, "samples", samples=118, lr_warmup_samples=17, lr_decay_samples=101),
        case(cls, "samples, WSD", samples=120, lr_warmup_samples=10, lr_decay_style="WSD", lr_wsd_decay_samples=33),
        case(cls, "weight decay, linear", lr_warmup_iters=4, weight_decay_incr_style="linear", start_weight_decay=0.0,
             end_weight_decay=0.3),
        case(cls, "weight decay, cosine", lr_warmup_iters=4, weight_decay_incr_style="cosine", start_weight_decay=0.05,
             end_weight_decay=0.2),
        case(cls, "no warm-up"),
    ]
    lines = ",\n".join(json.dumps(c) for c in cases)
    head = f'{{"made_with": "Megatron-LM core_r0.8.0", "global_batch_size": {GLOBAL}, "cases": [\n'
    Path(__file__).with_name("schedules.json").write_text(f"{head}{lines}\n]}}\n")


main()
