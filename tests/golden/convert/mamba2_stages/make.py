#!/usr/bin/env python3
"""Makes hf and mg next to this file: a tiny Mamba2 and what upstream's converter writes of it for tp 2 and pp 2.

    UPSTREAM=FOLDER python make.py      FOLDER: a checkout of MindSpeed-LLM of 2026

(transformers 5.24.0, torch 2.15.0). That converter's files say nothing of the cut, and every stage has the embedding, the output
layer and the layers before its own, under negative numbers.
"""

import argparse
import importlib.util
import json
import os
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
SIZES = dict(vocab_size=16, hidden_size=8, expand=2, head_dim=4, num_heads=4, n_groups=2, state_size=2, num_hidden_layers=2, conv_kernel=4, chunk_size=4)

file = pathlib.Path(os.environ["UPSTREAM"]) / "mindspeed_llm/tasks/checkpoint/convert_ckpt_mamba2.py"
spec = importlib.util.spec_from_file_location("upstream", file)
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)

torch.manual_seed(20261128)
model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SIZES, use_bias=False, tie_word_embeddings=False))
for p in model.parameters():
    p.data = torch.randn_like(p)
model.to(torch.bfloat16).save_pretrained(HERE / "hf")
(HERE / "hf/generation_config.json").unlink()
args = argparse.Namespace(
    hidden_size=8, mamba_head_dim=4, mamba_num_groups=2, mamba_state_dim=2, num_layers=2, target_tensor_parallel_size=2,
    target_pipeline_parallel_size=2, load_model_type="hf", save_model_type="mg", load_dir=str(HERE / "hf"), save_dir=str(HERE / "mg"),
)
upstream.MambaConverter(args).run()
