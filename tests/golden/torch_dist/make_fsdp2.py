"""Writes a distributed checkpoint of a transformers model that FSDP2 shards over two ranks, as torch.distributed.checkpoint
makes it of {"model": weights, "optimizer": state}.

    python make_fsdp2.py OUT       OUT/.metadata, OUT/__R_0.distcp, config.json and expected.json (SHA-256 of every tensor)

Made with torch 2.15.0 (CPU, gloo) and transformers 5.23.0.
"""
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def digest(t):
    return hashlib.sha256(t.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def main(rank, out, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=31, max_position_embeddings=64, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = torch.arange(1, 17).reshape(2, 8)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(out))
    expected = {}
    for name, p in sorted(model.named_parameters()):
        own = optimizer.state[p]
        expected[name] = {"weight": digest(p.full_tensor())} | {
            kind: digest(own[kind].full_tensor()) for kind in ("exp_avg", "exp_avg_sq")}
    if rank == 0:
        config.save_pretrained(out)
        with open(f"{out}/expected.json", "w") as f:
            json.dump(expected, f, indent=1)
            f.write("\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1], 20000 + os.getpid() % 20000), 2)
