"""Writes small distributed checkpoints with Megatron-Core itself, and loads what ms-convert writes with it.

    python make_torch_dist.py OUT               dense/ (layers stacked, optimizer state) and experts/ (a key for each
                                     layer), with expected.json
    python make_torch_dist.py --load DIR        loads a torch_dist folder of ms-convert into the same dense model and with
                                     torch.distributed.checkpoint; prints what was compared

Made with torch 2.15.0 (CPU, gloo) and megatron-core 0.16.1; dense/ by one process, the others by two, tensor-parallel.
"""
import argparse
import hashlib
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DENSE = dict(num_layers=1, hidden_size=8, ffn_hidden_size=12, num_attention_heads=4, num_query_groups=2)
EXPERTS = dict(DENSE, num_moe_experts=2, moe_ffn_hidden_size=8, moe_layer_freq=[1], moe_router_topk=2)
VOCABULARY = 32
if not torch.cuda.is_available():
    # Megatron waits for a GPU before it writes; there is none to wait for.
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_device = lambda: "cpu"


def args(sizes, tp):
    """The arguments that describe the model, as a training run keeps them."""
    a = argparse.Namespace(
        num_layers=1, hidden_size=8, ffn_hidden_size=12, num_attention_heads=4, num_query_groups=2,
        group_query_attention=True, max_position_embeddings=64, seq_length=64, swiglu=True, normalization="RMSNorm",
        norm_epsilon=1e-5, position_embedding_type="rope", rotary_base=10000, add_bias_linear=False,
        untie_embeddings_and_output_weights=True, padded_vocab_size=VOCABULARY, vocab_size=VOCABULARY,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=1, expert_model_parallel_size=1, bf16=True,
        params_dtype=torch.bfloat16, consumed_train_samples=24, consumed_valid_samples=0)
    if "num_moe_experts" in sizes:
        a.num_experts, a.moe_router_topk, a.moe_intermediate_size = 2, 2, 8
        a.moe_layer_freq, a.norm_topk_prob = 1, True
    return a


def model(sizes):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    config = TransformerConfig(
        **sizes, tensor_model_parallel_size=dist.get_world_size(), add_bias_linear=False, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", use_cpu_initialization=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, bf16=True)
    if "num_moe_experts" in sizes:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    return GPTModel(config, spec, VOCABULARY, 64, share_embeddings_and_output_weights=False,
                    position_embedding_type="rope").to(torch.bfloat16)


def start(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(world, 1)


def fill(m):
    """Values that depend on the name and the rank only."""
    for name, p in m.named_parameters():
        seed = int(hashlib.sha256(f"{name} {dist.get_rank() if 'norm' not in name and 'router' not in name else 0}".encode()).hexdigest()[:8], 16)
        p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p.dtype))


def save(rank, world, name, out, port):
    start(rank, world, port)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    sizes = {"dense": DENSE, "experts": EXPERTS}[name]
    m = model(sizes)
    fill(m)
    state = m.sharded_state_dict()
    if name == "dense":
        # Optimizer state in the geometry of the model, as a run keeps it that is to be resharded.
        from copy import copy
        for key, entry in list(state.items()):
            if not hasattr(entry, "data") or entry.data is None or "_extra_state" in key:
                continue
            for kind, f in [("exp_avg", lambda t: t.float() / 8), ("exp_avg_sq", lambda t: t.float() ** 2),
                            ("fp32_param", lambda t: t.float() + 2.0 ** -20)]:
                other = copy(entry)
                other.key, other.data = f"optimizer.state.{kind}.{entry.key}", f(entry.data.detach())
                if hasattr(other, "dtype"):
                    other.dtype = torch.float32
                state[f"{kind}/{key}"] = other
        state["optimizer"] = {"optimizer": {"param_groups": [
            {"wd_mult": 1.0, "lr_mult": 1.0, "lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "step": 3}]}}
        state["opt_param_scheduler"] = {
            "max_lr": 0.01, "lr_warmup_steps": 8, "num_steps": 24, "lr_decay_style": "cosine",
            "lr_decay_steps": 80, "min_lr": 0.001, "start_wd": 0.1, "end_wd": 0.1,
            "wd_incr_style": "constant", "wd_incr_steps": 80}
    state.update(args=args(sizes, world), iteration=3, checkpoint_version=3.0, num_floating_point_operations_so_far=0)
    folder = f"{out}/{name}/iter_0000003"
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        with open(f"{out}/{name}/latest_checkpointed_iteration.txt", "w") as f:
            f.write("3")
    dist.barrier()
    dist_checkpointing.save(state, folder, sharded_strategy=TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1))
    dist.barrier()
    if rank == 0:
        expect(folder, f"{out}/{name}/expected.json")
    dist.destroy_process_group()


def whole(folder):
    """Every tensor of a folder, assembled by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    metadata = dcp.FileSystemReader(folder).read_metadata()
    state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in metadata.state_dict_metadata.items()
             if isinstance(v, TensorStorageMetadata)}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return state


def expect(folder, path):
    tensors = {k: {"shape": list(t.shape), "sha256": hashlib.sha256(t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()}
               for k, t in sorted(whole(folder).items())}
    with open(path, "w") as f:
        json.dump(tensors, f, indent=1)
        f.write("\n")


def load(rank, folder, port):
    start(rank, 2, port)
    from megatron.core import dist_checkpointing
    m = model(DENSE)
    state = m.sharded_state_dict()
    loaded = dist_checkpointing.load(state, folder)
    keys = m.load_state_dict({k: v for k, v in loaded.items()}, strict=False)
    missing = [k for k in keys.missing_keys if "_extra_state" not in k]
    common = dist_checkpointing.load_common_state_dict(folder)
    if rank == 0:
        full = whole(folder)
        part = m.decoder.layers[0].mlp.linear_fc1.weight
        gate = full["decoder.layers.mlp.linear_fc1.weight"][0][:6]
        assert torch.equal(part[:6], gate), "the first rank's half of the gate"
        assert torch.equal(m.decoder.layers[0].input_layernorm.weight,
                           full["decoder.layers.self_attention.linear_qkv.layer_norm_weight"][0])
        print(f"torch.distributed.checkpoint: {len(full)} tensors")
        print(f"megatron.core.dist_checkpointing: missing {missing}, unexpected {keys.unexpected_keys}")
        print(f"common: iteration {common['iteration']}, hidden_size {common['args'].hidden_size}")
    dist.destroy_process_group()


if __name__ == "__main__":
    port = 20000 + os.getpid() % 20000
    if sys.argv[1] == "--load":
        mp.spawn(load, (sys.argv[2], port), 2)
    else:
        mp.spawn(save, (1, "dense", sys.argv[1], port), 1)
        mp.spawn(save, (2, "experts", sys.argv[1], port + 1), 2)
