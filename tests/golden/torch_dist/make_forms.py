"""Writes the other forms that Megatron-Core's distributed checkpoints have, with Megatron-Core itself.

    python make_forms.py OUT         singletons/  a key for each expert and for each half of a gated layer
                                     stacked/     experts of all layers under one key, the modules without TransformerEngine
                                     latent/      latent attention with a matrix for each half of the down-projection
                                     buckets/     optimizer state as buckets (dp_reshardable), two data-parallel ranks
                                     gathered/    optimizer state gathered by one rank into an object (dp_zero_gather_scatter)
                                     flattened/   optimizer state in flattened fragments (fully_sharded_model_space)
                                     with expected.json: what torch.distributed.checkpoint reads, and SHA-256 of every
                                     optimizer's own tensors
    python make_forms.py --load NAME DIR     loads a torch_dist folder of ms-convert into the model of that name

Made with torch 2.15.0 (CPU, gloo) and megatron-core 0.16.1; flattened/ with 0.14.0, the last release line that writes it.
"""
import hashlib
import json
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import make_torch_dist as small

numpy.product = numpy.prod  # which 0.14 calls

EXPERTS = dict(small.DENSE, num_layers=2, num_moe_experts=2, moe_ffn_hidden_size=4, moe_router_topk=2)
LATENT = dict(num_layers=1, hidden_size=8, ffn_hidden_size=12, num_attention_heads=2, q_lora_rank=6, kv_lora_rank=4,
              qk_head_dim=4, qk_pos_emb_head_dim=2, v_head_dim=4, rope_type="rope", rotary_scaling_factor=1.0)
# name: (sizes, processes, metadata of the saved content)
FORMS = {
    "singletons": (EXPERTS, 1, {"singleton_local_shards": True}),
    "stacked": (EXPERTS, 1, {"singleton_local_shards": False}),
    "latent": (LATENT, 1, {}),
    "buckets": (small.DENSE, 2, {"distrib_optim_sharding_type": "dp_reshardable"}),
    "gathered": (small.DENSE, 2, {"distrib_optim_sharding_type": "dp_zero_gather_scatter"}),
    "flattened": (small.DENSE, 2, {"distrib_optim_sharding_type": "fully_sharded_model_space"}),
}
LAYERS = {"singletons", "stacked", "latent"}


def model(sizes):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    latent = "kv_lora_rank" in sizes
    kind = TransformerConfig
    if latent:
        from megatron.core.transformer import MLATransformerConfig as kind
        # The attention of the modules without TransformerEngine does not know sizes of its own for values.
        from megatron.core.transformer.dot_product_attention import DotProductAttention
        known = DotProductAttention.__init__
        DotProductAttention.__init__ = lambda self, *a, k_channels=None, v_channels=None, **k: known(self, *a, **k)
        import megatron.core.transformer.multi_latent_attention as modules
        import megatron.core.transformer.attention as base
        modules.TELinear = base.TELinear = ()
    config = kind(
        **sizes, add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        normalization="RMSNorm", use_cpu_initialization=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, bf16=True)
    kinds = dict(qk_layernorm=True, multi_latent_attention=True) if latent else {}
    spec = get_gpt_layer_local_spec(num_experts=sizes.get("num_moe_experts"), normalization="RMSNorm", **kinds)
    return GPTModel(config, spec, small.VOCABULARY, 64, share_embeddings_and_output_weights=False,
                    position_embedding_type="rope").to(torch.bfloat16)


def args(sizes):
    a = small.args({k: v for k, v in sizes.items() if k != "num_moe_experts"}, 1)
    a.num_layers = sizes["num_layers"]
    if "num_moe_experts" in sizes:
        a.num_experts, a.moe_router_topk, a.moe_intermediate_size, a.moe_layer_freq = 2, 2, 4, 1
        a.norm_topk_prob, a.moe_grouped_gemm = True, False
    if "kv_lora_rank" in sizes:
        a.multi_latent_attention, a.num_attention_heads, a.num_query_groups = True, 2, 2
        a.group_query_attention = False
        a.q_lora_rank, a.kv_lora_rank, a.qk_nope_head_dim, a.qk_rope_head_dim, a.v_head_dim = 6, 4, 4, 2, 4
        a.qk_layernorm = True
    return a


def start(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(1, 1)


def on_cpu():
    """Optimizers ask for a GPU's tensors; there are none."""
    def here(make):
        return lambda *a, **k: make(*a, **{**k, "device": "cpu"} if str(k.get("device")).startswith("cuda") else k)
    for name in ["tensor", "zeros", "empty", "full", "ones", "zeros_like", "empty_like"]:
        setattr(torch, name, here(getattr(torch, name)))
    kind = torch.Tensor.type
    torch.Tensor.type = lambda t, *a, **k: kind(t, *a, **k) if a or k else kind(t).replace("torch.", "torch.cuda.")
    torch.Tensor.cuda = lambda t, *a, **k: t
    torch.cuda.current_device = lambda: "cpu"


def drawn(name, shape):
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def digest(t):
    return hashlib.sha256(t.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def trained(m):
    """One step of Megatron's distributed optimizer from known gradients."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    ddp = DistributedDataParallel(
        m.config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True), m)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
                        use_distributed_optimizer=True, clip_grad=0.0), [ddp])
    for name, p in m.named_parameters():
        p.main_grad.copy_(drawn(f"gradient of {name}", p.shape))
    optimizer.step()
    return optimizer


def save(rank, name, out, port):
    sizes, world, metadata = FORMS[name]
    start(rank, world, port)
    if name not in LAYERS:
        on_cpu()
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core import parallel_state
    m = model(sizes)
    for n, p in m.named_parameters():
        p.data.copy_(drawn(n, p.shape).to(p.dtype))
    metadata = dict(metadata, dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    states = {}
    if name in LAYERS:
        state = m.sharded_state_dict(metadata=metadata)
        weights = {n: digest(p) for n, p in m.named_parameters()}
    else:
        optimizer = trained(m)
        weights = {n: digest(p) for n, p in m.named_parameters()}
        state = dict(m.state_dict_for_save_checkpoint() and m.sharded_state_dict(metadata=metadata))
        one = getattr(optimizer, "chained_optimizers", [optimizer])[0]
        try:
            whole = one.get_parameter_state_dp_zero(use_gloo_comm=False, return_on_all_ranks=True)
        except TypeError:  # 0.14: on the first rank only
            whole = one.get_parameter_state_dp_zero()
        tensors = next(iter(whole[0].values())) if rank == 0 else None
        for n, p in m.named_parameters() if rank == 0 else ():
            first, last, _ = one.buffers[0].param_index_map[p]
            states[n] = {k: digest(tensors[v][first:last]) for k, v in
                         [("fp32_param", "param"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")]}
        of_model = m.sharded_state_dict(metadata=metadata)
        by_name = dict(m.state_dict(keep_vars=True))
        for key, entry in of_model.items():
            if key in by_name and getattr(entry, "data", None) is not None:
                entry.data = by_name[key]
        try:
            state["optimizer"] = optimizer.sharded_state_dict(of_model, metadata=metadata)
        except TypeError:
            kind = metadata["distrib_optim_sharding_type"]
            state["optimizer"] = optimizer.sharded_state_dict(of_model, sharding_type=kind)
        state["opt_param_scheduler"] = {
            "max_lr": 0.01, "lr_warmup_steps": 0, "num_steps": 24, "lr_decay_style": "constant",
            "lr_decay_steps": 80, "min_lr": 0.0, "start_wd": 0.1, "end_wd": 0.1,
            "wd_incr_style": "constant", "wd_incr_steps": 80}
    a = args(sizes)
    if name not in LAYERS:
        a.use_distributed_optimizer, a.overlap_grad_reduce, a.data_parallel_size = True, False, world
    metadata.pop("dp_cp_group")
    state.update(args=a, iteration=3, checkpoint_version=3.0, num_floating_point_operations_so_far=0)
    folder = f"{out}/{name}/iter_0000003"
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        with open(f"{out}/{name}/latest_checkpointed_iteration.txt", "w") as f:
            f.write("3")
    dist.barrier()
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    try:
        dist_checkpointing.save(state, folder, content_metadata=metadata, sharded_strategy=strategy)
    except TypeError:
        dist_checkpointing.save(state, folder, sharded_strategy=strategy)
    dist.barrier()
    if rank == 0:
        keys = {k: list(t.shape) for k, t in sorted(small.whole(folder).items())}
        with open(f"{out}/{name}/expected.json", "w") as f:
            json.dump({"keys": keys, "weights": weights, "states": states}, f, indent=1)
            f.write("\n")
    dist.destroy_process_group()


def load(rank, name, folder, port):
    sizes, _, metadata = FORMS[name]
    start(rank, 1, port)
    from megatron.core import dist_checkpointing, parallel_state
    m = model(sizes)
    for p in m.parameters():
        p.data.zero_()
    metadata = dict(metadata, dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    loaded = dist_checkpointing.load(m.sharded_state_dict(metadata=metadata), folder)
    m.load_state_dict({k: v for k, v in loaded.items() if not k.startswith(("args", "iteration"))}, strict=False)
    wrong = [n for n, p in m.named_parameters() if not torch.equal(p, drawn(n, p.shape).to(p.dtype))]
    print(f"megatron.core.dist_checkpointing, {name}: {sum(1 for _ in m.parameters())} parameters, other values: {wrong}")
    dist.destroy_process_group()


if __name__ == "__main__":
    port = 20000 + os.getpid() % 20000
    if sys.argv[1] == "--load":
        mp.spawn(load, (sys.argv[2], sys.argv[3], port), 1)
    else:
        for number, name in enumerate(sys.argv[2:] or FORMS):
            mp.spawn(save, (name, sys.argv[1], port + number), FORMS[name][1])
