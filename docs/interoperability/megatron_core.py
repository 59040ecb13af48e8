"""Megatron-core's own model and its own sharded checkpoints, on a CPU."""

import argparse
import contextlib
import json
import os
import shutil

import torch
from safetensors.torch import load_file

from cases import hf_tensors, load_pt, near, one, same


SHARDED = ("aquila", "seed_oss", "qwen2", "qwen3", "mixtral", "qwen3_moe")


def sharded(tools, source, model, weights, args, scratch, name):
    """Checkpoints of torch.distributed as Megatron-core writes and reads them."""
    from megatron.core import dist_checkpointing

    part = "megatron-core dist_checkpointing"
    with one(part, f"{name}: written by Megatron-core, read by ms-convert") as say:
        theirs = scratch / "theirs"
        shutil.rmtree(theirs, ignore_errors=True)
        (theirs / "iter_0000001").mkdir(parents=True)
        dist_checkpointing.save({"args": args, "iteration": 1} | model.sharded_state_dict(), str(theirs / "iter_0000001"))
        (theirs / "latest_checkpointed_iteration.txt").write_text("1")
        shutil.copy(source / "config.json", theirs)
        back = hf_tensors(tools.convert("mcore hf", theirs, scratch / "hf"))
        say.append(f"{same(back, {n: t.float() for n, t in hf_tensors(source).items()})} tensors")
    if args.num_experts:
        # Ours has the keys of Megatron's layers with TransformerEngine; its local layers of experts name a norm otherwise.
        return
    with one(part, f"{name}: written by ms-convert, read by Megatron-core") as say:
        ours = tools.convert("hf torch_dist", source, scratch / "ours")
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        torch.serialization.add_safe_globals([argparse.Namespace])
        loaded = dist_checkpointing.load(model.sharded_state_dict(), str(ours / "iter_0000001"))
        got = {n: t.float() for n, t in loaded.items() if torch.is_tensor(t) and not n.endswith("_extra_state")}
        say.append(f"{same({n: got[n] for n in got if n in weights}, {n: weights[n] for n in got if n in weights})} of {len(weights)} tensors")
        assert set(weights) <= set(got), sorted(set(weights) - set(got))[:4]


def megatron(tools, models, scratch):
    part = "megatron-core GPTModel"
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29611")
    # Megatron asks for these without a way round.
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    import megatron.core.tensor_parallel.random as randomness
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.multi_latent_attention as latent
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)  # named there also without TransformerEngine
    from megatron.core.models.backends import LocalSpecProvider

    class PlainAttention(torch.nn.Module):
        """Stands in for TransformerEngine's, the only one of Megatron-core whose keys and values may differ in size."""

        def __init__(self, config, softmax_scale=None, **_):
            super().__init__()
            self.scale = softmax_scale

        def forward(self, q, k, v, attention_mask, **_):
            scores = torch.einsum("sbnd,tbnd->bnst", q, k) * self.scale
            weights = torch.softmax(scores.masked_fill(attention_mask, -torch.inf), -1)
            return torch.einsum("bnst,tbnd->sbnd", weights, v).flatten(2)

    for name in [n for n, v in vars(latent).items() if n.startswith("TE") and not isinstance(v, type)]:
        setattr(latent, name, ())  # isinstance asks for these also without TransformerEngine
    of_megatron = LocalSpecProvider.core_attention
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    randomness.CudaRNGStatesTracker.fork = lambda self, *_, **__: contextlib.nullcontext()
    for name in ("aquila", "internlm", "seed_oss", "gpt2", "llama2_mha", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "kimi_k2"):
        if name not in models:
            continue
        with one(part, f"{name}: load_state_dict(strict=True), logits") as say:
            source = models[name]
            folder = tools.convert("hf mcore", source, scratch / "mcore", "--upstream", "head")
            saved = load_pt(folder / "iter_0000001/mp_rank_00/model_optim_rng.pt")
            a = saved["args"]
            given = lambda name: getattr(a, name, None)
            more, kind = {}, TransformerConfig
            if a.num_experts:
                width = a.moe_intermediate_size or a.ffn_hidden_size
                shared = given("moe_shared_expert_intermediate_size") or (a.n_shared_experts or 0) * width
                more |= dict(
                    num_moe_experts=a.num_experts, moe_router_topk=a.moe_router_topk, moe_ffn_hidden_size=width, moe_token_dispatcher_type="allgather",
                    moe_router_load_balancing_type="none", moe_grouped_gemm=False, moe_shared_expert_intermediate_size=shared or None,
                    moe_shared_expert_gate=bool(a.shared_expert_gate), moe_router_dtype="fp32",
                )
                if name == "qwen2_moe":  # weights that are not divided by their sum
                    more |= dict(moe_router_pre_softmax=True)
                if name == "kimi_k2":  # one group of experts; with more, Megatron scores groups by their best top_k / groups experts
                    more |= dict(
                        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=a.moe_router_topk_scaling_factor,
                        moe_layer_freq=[int(l >= (a.first_k_dense_replace or 0)) for l in range(a.num_layers)],
                    )
            if a.multi_head_latent_attention:
                kind = MLATransformerConfig
                more |= dict(
                    multi_latent_attention=True, q_lora_rank=a.q_lora_rank, kv_lora_rank=a.kv_lora_rank, qk_head_dim=a.qk_nope_head_dim,
                    qk_pos_emb_head_dim=a.qk_rope_head_dim, v_head_dim=a.v_head_dim, rope_type="yarn", rotary_base=a.rotary_base,
                    rotary_scaling_factor=a.rope_scaling_factor, original_max_position_embeddings=a.rope_scaling_original_max_position_embeddings,
                    mscale=a.rope_scaling_mscale, mscale_all_dim=a.rope_scaling_mscale_all_dim,
                )
            gelu = lambda x: torch.nn.functional.gelu(x, approximate="tanh")
            config = kind(
                num_layers=a.num_layers, hidden_size=a.hidden_size, num_attention_heads=a.num_attention_heads, num_query_groups=a.num_query_groups,
                kv_channels=a.kv_channels, ffn_hidden_size=a.ffn_hidden_size, gated_linear_unit=a.swiglu,
                activation_func=torch.nn.functional.silu if a.swiglu else gelu, add_bias_linear=a.add_bias_linear or a.add_dense_bias,
                add_qkv_bias=a.add_qkv_bias, normalization=a.normalization, layernorm_epsilon=a.norm_epsilon, qk_layernorm=a.qk_layernorm,
                attention_dropout=0.0, hidden_dropout=0.0, params_dtype=torch.float32, use_cpu_initialization=True, perform_initialization=False,
                bias_dropout_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, apply_rope_fusion=False, **more,
            )
            LocalSpecProvider.core_attention = (lambda _: PlainAttention) if a.multi_head_latent_attention else of_megatron
            if given("first_k_dense_replace"):
                spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=a.normalization)
            else:
                spec = get_gpt_layer_local_spec(num_experts=a.num_experts, qk_layernorm=a.qk_layernorm, normalization=a.normalization)
            model = GPTModel(
                config, spec, vocab_size=a.padded_vocab_size, max_sequence_length=a.max_position_embeddings, rotary_base=a.rotary_base,
                position_embedding_type=a.position_embedding_type, rotary_percent=a.rotary_percent, parallel_output=False,
                share_embeddings_and_output_weights=not a.untie_embeddings_and_output_weights,
            ).float().eval()
            weights = {n: t.float() for n, t in saved["model"].items()}
            if a.add_dense_bias and not a.add_bias_linear:  # Megatron has one switch for all of these biases
                for n, p in model.state_dict().items():
                    if n.endswith("linear_fc1.bias") or n.endswith("linear_fc2.bias"):
                        weights[n] = torch.zeros_like(p)
            for n in [n for n in weights if a.multi_head_latent_attention and n.endswith("linear_qkv.weight")]:
                # Upstream's layout has both down-projections in one matrix, Megatron-core's has two.
                both = weights.pop(n)
                weights[n.replace("linear_qkv", "linear_q_down_proj")] = both[: a.q_lora_rank]
                weights[n.replace("linear_qkv", "linear_kv_down_proj")] = both[a.q_lora_rank :]
            model.load_state_dict(weights, strict=False)
            missing = {n for n in model.state_dict() if not n.endswith("_extra_state")} ^ set(weights)
            assert not missing, f"names differ: {sorted(missing)[:4]}"
            reference = load_file(source / "reference.safetensors")
            ids = reference["input_ids"]
            s = ids.shape[1]
            with torch.no_grad():
                theirs = model(ids, torch.arange(s)[None].expand_as(ids), torch.ones(1, 1, s, s, dtype=torch.bool).triu(1))
            tolerance = json.loads((source / "golden.json").read_text())["suggested_atol_float32"]
            say.append(near(theirs, reference["logits"], tolerance))
        if name in SHARDED:
            sharded(tools, source, model, weights, saved["args"], scratch, name)
    torch.distributed.destroy_process_group()
