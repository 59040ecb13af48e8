"""Writes small training checkpoints with Megatron-Core's own optimizers: one step from known gradients.

    python make.py OUT       OUT/iter_0000001/mp_rank_00/{model_optim_rng,distrib_optim}.pt and OUT/expected.json;
                             OUT/experts, of a model with experts one by one; OUT/ordinary, not distributed, in one file

Made with torch 2.15.0 (CPU, gloo) and megatron-core 0.16.1, whose optimizer is told that CPU tensors are CUDA ones.
"""
import hashlib
import json
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "torch_dist"))
import make_torch_dist as small


def on_cpu(make):
    return lambda *a, **k: make(*a, **{**k, "device": "cpu"} if str(k.get("device")).startswith("cuda") else k)


for name in ["tensor", "zeros", "empty", "full", "ones", "zeros_like", "empty_like"]:
    setattr(torch, name, on_cpu(getattr(torch, name)))
kind = torch.Tensor.type
torch.Tensor.type = lambda t, *a, **k: kind(t, *a, **k) if a or k else kind(t).replace("torch.", "torch.cuda.")
torch.Tensor.cuda = lambda t, *a, **k: t
torch.cuda.current_device = lambda: "cpu"


def drawn(name, shape):
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def main(out, sizes, distributed):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    model = small.model(sizes)
    for name, p in model.named_parameters():
        p.data.copy_(drawn(name, p.shape).to(p.dtype))
    ddp = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
                        use_distributed_optimizer=distributed, clip_grad=0.0), [ddp])
    for name, p in model.named_parameters():
        p.main_grad.copy_(drawn(f"gradient of {name}", p.shape))
    optimizer.step()
    folder = f"{out}/iter_0000001/mp_rank_00"
    os.makedirs(folder, exist_ok=True)
    if distributed:
        optimizer.save_parameter_state(f"{folder}/distrib_optim.pt")
    args = small.args(sizes, 1)
    args.use_distributed_optimizer, args.overlap_grad_reduce, args.data_parallel_size = distributed, False, 1
    schedule = {"max_lr": 0.01, "lr_warmup_steps": 0, "num_steps": 8, "lr_decay_style": "constant",
                "lr_decay_steps": 80, "min_lr": 0.0, "start_wd": 0.1, "end_wd": 0.1,
                "wd_incr_style": "constant", "wd_incr_steps": 80}
    torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 1, "model": model.state_dict_for_save_checkpoint(),
                "optimizer": optimizer.state_dict(), "opt_param_scheduler": schedule}, f"{folder}/model_optim_rng.pt")
    with open(f"{out}/latest_checkpointed_iteration.txt", "w") as f:
        f.write("1")
    one = getattr(optimizer, "chained_optimizers", [optimizer])[0]
    digest = lambda t: hashlib.sha256(t.detach().float().contiguous().numpy().tobytes()).hexdigest()
    expected = {}
    for name, p in model.named_parameters():
        state = one._get_main_param_and_optimizer_states(p) if distributed else {"param": p.main_param, **one.optimizer.state[p.main_param]}
        expected[name] = {k: digest(state[v]) for k, v in
                          [("fp32_param", "param"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")]}
    with open(f"{out}/expected.json", "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    small.start(0, 1, 20000 + os.getpid() % 20000)
    main(sys.argv[1], small.DENSE, True)
    main(f"{sys.argv[1]}/experts", small.EXPERTS, True)
    main(f"{sys.argv[1]}/ordinary", small.DENSE, False)
