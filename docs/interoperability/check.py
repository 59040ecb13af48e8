#!/usr/bin/env python3
"""Shows with the Python packages themselves that they read what ms-tools writes, and the other way round.

    python check.py --bin target/release --models tests/golden/models [MORE ...] [--only PART ...]

Prints Markdown tables and leaves with 1 if a line says FAILED. Needs torch, transformers, safetensors, peft, tokenizers
and megatron-core; nothing is downloaded. Sample models are folders as in tests/golden/models.
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cases import ROWS, Tools, flat, hf_tensors, load_pt, near, one, same
from forms import FORMS
from megatron_core import megatron


# --- (a) Megatron's files through torch.load -------------------------------------------------------------------------


def by_hand(hf, c):
    """Megatron's tensors of a plain decoder, packed here once more from its Hugging Face tensors."""
    heads, groups = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    out = {"embedding.word_embeddings.weight": hf["model.embed_tokens.weight"], "decoder.final_layernorm.weight": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        out["output_layer.weight"] = hf["lm_head.weight"]
    for l in range(c["num_hidden_layers"]):
        h, m = f"model.layers.{l}.", f"decoder.layers.{l}."
        for kind in ("weight", "bias"):
            if h + f"self_attn.q_proj.{kind}" in hf:
                q, k, v = (hf[h + f"self_attn.{p}_proj.{kind}"] for p in "qkv")
                split = lambda t: t.reshape(groups, t.shape[0] // groups, *t.shape[1:])
                out[m + f"self_attention.linear_qkv.{kind}"] = torch.cat([split(q), split(k), split(v)], 1).flatten(0, 1)
            if h + f"self_attn.o_proj.{kind}" in hf:
                out[m + f"self_attention.linear_proj.{kind}"] = hf[h + f"self_attn.o_proj.{kind}"]
        for p in "qk":
            if h + f"self_attn.{p}_norm.weight" in hf:
                out[m + f"self_attention.{p}_layernorm.weight"] = hf[h + f"self_attn.{p}_norm.weight"]
        out[m + "mlp.linear_fc1.weight"] = torch.cat([hf[h + "mlp.gate_proj.weight"], hf[h + "mlp.up_proj.weight"]])
        out[m + "mlp.linear_fc2.weight"] = hf[h + "mlp.down_proj.weight"]
        out[m + "input_layernorm.weight"] = hf[h + "input_layernorm.weight"]
        out[m + "pre_mlp_layernorm.weight"] = hf[h + "post_attention_layernorm.weight"]
    return out


PLAIN = ("aquila", "internlm", "seed_oss", "llama2_mha", "llama3_gqa", "qwen2", "qwen3")


def torch_files(tools, models, scratch):
    part = "torch.load(weights_only=True)"
    for name in [n for n in PLAIN if n in models]:
        source = models[name]
        config, hf = json.loads((source / "config.json").read_text()), hf_tensors(source)
        with one(part, f"{name}: mcore, args as Namespace") as say:
            path = tools.convert("hf mcore", source, scratch / "mcore") / "iter_0000001/mp_rank_00/model_optim_rng.pt"
            try:
                torch.load(path, weights_only=True)
                raise AssertionError("expected that argparse.Namespace is not allowed by itself")
            except Exception as e:
                assert "argparse.Namespace" in str(e), str(e)[-200:]
            count = same(dict(load_pt(path)["model"]), by_hand(hf, config))
            say.append(f"safe_globals([argparse.Namespace]); {count} tensors equal to a packing by hand")
        for flags, what in ((["--no-args"], "without args"), (["--args-as", "dict"], "args as dict")):
            with one(part, f"{name}: mcore, {what}") as say:
                path = tools.convert("hf mcore", source, scratch / "mcore", *flags) / "iter_0000001/mp_rank_00/model_optim_rng.pt"
                say.append(f"no globals needed; {same(dict(torch.load(path, weights_only=True)['model']), by_hand(hf, config))} tensors")
        with one(part, f"{name}: mcore tp 2 pp 1") as say:
            folder = tools.convert("hf mcore", source, scratch / "mcore", "--tp", 2)
            ranks = [dict(load_pt(folder / f"iter_0000001/mp_rank_0{r}/model_optim_rng.pt")["model"]) for r in (0, 1)]
            whole = {}
            for key, want in by_hand(hf, config).items():
                a, b = (r[key] for r in ranks)
                if a.shape == want.shape:
                    assert torch.equal(a, b), key
                    whole[key] = a
                elif "linear_fc1" in key:
                    (ga, ua), (gb, ub) = a.chunk(2), b.chunk(2)
                    whole[key] = torch.cat([ga, gb, ua, ub])
                else:
                    dim = next(d for d in range(want.dim()) if a.shape[d] != want.shape[d])
                    whole[key] = torch.cat([a, b], dim)
            say.append(f"{same(whole, by_hand(hf, config))} tensors, put together again")
    for name, source in models.items():
        with one(part, f"{name}: every file of mcore{' and legacy' if name in PLAIN else ''}") as say:
            files = list(tools.convert("hf mcore", source, scratch / "mcore").rglob("*.pt"))
            if name in PLAIN:
                files += list(tools.convert("hf legacy", source, scratch / "legacy").rglob("*.pt"))
            count = sum(1 for f in files for _, t in flat(load_pt(f)) if torch.is_tensor(t))
            say.append(f"{len(files)} files, {count} tensors")


# --- (b) Hugging Face folders through transformers -------------------------------------------------------------------


def automodel(folder, **more):
    more = {"dtype": torch.float32, "attn_implementation": "eager"} | more
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **more)
    wrong = {k: v for k, v in info.items() if v and k in ("missing_keys", "mismatched_keys", "unexpected_keys")}
    if wrong:
        raise AssertionError(f"{wrong}"[:200])
    return model.float().eval()


def with_zero_experts(folder):
    config, path = json.loads((folder / "config.json").read_text()), next(folder.glob("*.safetensors"))
    tensors, real = load_file(path), config["n_routed_experts"]
    for name in [n for n in tensors if ".experts.0.gate_proj" in n or ".experts.0.up_proj" in n]:
        for e in range(real, real + config["zero_expert_num"]):
            tensors[name.replace(".experts.0.", f".experts.{e}.")] = torch.zeros_like(tensors[name])
    save_file(tensors, path, {"format": "pt"})


def folders(tools, models, scratch):
    part = "transformers.from_pretrained"
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for name, source in models.items():
        kind = json.loads((source / "config.json").read_text())["model_type"]
        if kind not in known:
            continue
        golden, reference = json.loads((source / "golden.json").read_text()), load_file(source / "reference.safetensors")
        ids, tolerance = reference["input_ids"], golden["suggested_atol_float32"]
        for anew in (False, True):
            with one(part, f"{name}: {'configuration and layout written anew' if anew else 'through mcore and back'}") as say:
                mcore = tools.convert("hf mcore", source, scratch / "mcore")
                if anew:
                    for file in ("config.json", "hf_layout.json"):
                        (mcore / file).unlink(missing_ok=True)
                folder = tools.convert("mcore hf", mcore, scratch / "hf")
                if kind == "longcat_flash":
                    say.append("zero matrices added that the class has for experts without weights")
                    with_zero_experts(folder)
                # A class may name a padding token beyond the small vocabularies of samples.
                with torch.no_grad():
                    theirs = automodel(folder, pad_token_id=0)(input_ids=ids, use_cache=False).logits
                say.append(near(tools.logits(folder, ids, scratch), theirs, tolerance))
                if not anew and kind != "longcat_flash":
                    same(hf_tensors(folder), hf_tensors(source))
                    say.append("tensors equal to the source")


def noise(model, ids):
    """Largest change of a logit when every weight changes by one part in a million."""
    g, before = torch.Generator().manual_seed(7), {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        want = model(input_ids=ids, use_cache=False).logits
        for p in model.parameters():
            p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=g))
        moved = (model(input_ids=ids, use_cache=False).logits - want).abs().max().item()
        for n, p in model.named_parameters():
            p.copy_(before[n])
    return want, moved


def forms(tools, _models, scratch):
    part = "transformers, forms of models"
    ids = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(4))
    for kind, fields in FORMS:
        sizes = ("lora", "head_dim", "linear_", "index_", "intermediate", "n_", "num_", "head", "expand", "state", "shared_expert")
        shown = {k: v for k, v in fields.items() if not any(s in k for s in sizes) or k in ("n_group", "n_inner")}
        with one(part, f"{kind} {', '.join(f'{k}={v}' for k, v in shown.items())}".replace("'", "")) as say:
            model, folder = small(kind, scratch, **fields)
            g = torch.Generator().manual_seed(9)
            with torch.no_grad():
                for n, p in model.named_parameters():
                    if p.dim() == 1 and not n.endswith(("A_log", "dt_bias", ".D")):
                        p.add_(0.2 * torch.randn(p.shape, generator=g))
                for n, b in model.named_buffers():
                    if "correction" in n or "expert_bias" in n:
                        b.copy_(0.3 * torch.rand(b.shape, generator=g))
            shutil.rmtree(folder)
            model.save_pretrained(folder)
            want, moved = noise(model, ids)
            tolerance = max(5e-4, 10 * moved)
            say.append(near(tools.logits(folder, ids, scratch), want, tolerance))
            # Back from Megatron's files the configuration is written by ms-convert.
            mcore = tools.convert("hf mcore", folder, scratch / "mcore")
            for file in ("config.json", "hf_layout.json"):
                (mcore / file).unlink(missing_ok=True)
            back = tools.convert("mcore hf", mcore, scratch / "hf")
            if kind == "longcat_flash":
                with_zero_experts(back)
            with torch.no_grad():
                say.append("written anew: " + near(automodel(back, pad_token_id=0)(input_ids=ids, use_cache=False).logits, want, tolerance))


# --- (c) adapters through peft -----------------------------------------------------------------------------------------


def small(kind, scratch, **more):
    """A small random model made here, with its folder."""
    base = dict(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    known = transformers.AutoConfig.for_model(kind)
    config = transformers.AutoConfig.for_model(kind, **{k: v for k, v in base.items() if hasattr(known, k)} | more)
    config._attn_implementation = "eager"
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 1.2 / math.sqrt(p.shape[-1]))
            p.copy_(p.bfloat16().float())
    folder = scratch / kind
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    return model, folder


def adapters(tools, _models, scratch):
    import peft

    part = "peft"
    ids = torch.randint(3, 300, (2, 16), generator=torch.Generator().manual_seed(3))
    for kind in ("llama", "qwen2", "qwen3"):
        model, folder = small(kind, scratch)
        config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")
        with torch.no_grad():
            wrapped = peft.get_peft_model(model, config).eval()
            for n, p in wrapped.named_parameters():
                if "lora_" in n:
                    p.normal_(0, 0.2)
            want = wrapped(input_ids=ids, use_cache=False).logits
        theirs = scratch / f"{kind}-adapter"
        shutil.rmtree(theirs, ignore_errors=True)
        wrapped.save_pretrained(theirs)
        with one(part, f"{kind}: an adapter of peft, merged by ms-convert") as say:
            mcore = tools.convert("hf mcore", folder, scratch / "mcore", "--lora-load", theirs)
            say.append(near(tools.logits(tools.convert("mcore hf", mcore, scratch / "merged"), ids, scratch), want, 5e-4))
            with torch.no_grad():
                say.append("transformers: " + near(automodel(scratch / "merged")(input_ids=ids, use_cache=False).logits, want, 5e-4))
        with one(part, f"{kind}: an adapter folder written by ms-convert") as say:
            mcore = tools.convert("hf mcore", folder, scratch / "mcore")
            ours = tools.convert("mcore hf", mcore, scratch / "ours", "--lora-load", theirs, "--save-lora-to-hf")
            base = automodel(folder)
            again = peft.PeftModel.from_pretrained(base, ours).eval()
            with torch.no_grad():
                say.append(near(again(input_ids=ids, use_cache=False).logits, want, 1e-5))


# --- (d) what torch.save writes ------------------------------------------------------------------------------------------


def written_by_torch(tools, _models, scratch):
    part = "torch.save"
    model, folder = small("llama", scratch, tie_word_embeddings=False)
    state = {n: t.detach().clone() for n, t in model.state_dict().items()}

    def awkward(t):
        """The same values as a view into something larger, in another order."""
        if t.dim() == 2:
            big = torch.full((t.shape[1] + 3, t.shape[0] + 5), 7.0, dtype=t.dtype)
            big[2:-1, 1:-4] = t.t()
            return big[2:-1, 1:-4].t()
        big = torch.full((2 * t.numel() + 1,), 7.0, dtype=t.dtype)
        big[1::2] = t
        return big[1::2]

    def shared(state):
        state = dict(state)
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        return state

    def sliced(state):
        """All tensors as slices of one storage."""
        one_ = torch.cat([t.flatten() for t in state.values()])
        out, at = {}, 0
        for n, t in state.items():
            out[n], at = one_[at : at + t.numel()].view(t.shape), at + t.numel()
        return out

    to = lambda dtype: lambda s: {n: t.to(dtype) for n, t in s.items()}
    forms = {
        "float32": lambda s: s, "bfloat16": to(torch.bfloat16), "float16": to(torch.float16),
        "tied storages": shared, "strided views": lambda s: {n: awkward(t) for n, t in s.items()},
        "slices of one storage": sliced, "OrderedDict of Parameters": lambda s: torch.nn.ParameterDict({n.replace(".", "/"): t for n, t in s.items()}),
    }
    for what, form in forms.items():
        for new in (True, False):
            with one(part, f"pytorch_model.bin, {what}, {'zip' if new else 'before 1.6'}") as say:
                made = form(state)
                if isinstance(made, torch.nn.ParameterDict):
                    import collections

                    made = collections.OrderedDict((n.replace("/", "."), p) for n, p in made.items())
                there = scratch / "bin"
                shutil.rmtree(there, ignore_errors=True)
                there.mkdir()
                shutil.copy(folder / "config.json", there)
                torch.save(made, there / "pytorch_model.bin", _use_new_zipfile_serialization=new)
                mcore = tools.convert("hf mcore", there, scratch / "mcore")
                (mcore / "hf_layout.json").unlink(missing_ok=True)
                got = hf_tensors(tools.convert("mcore hf", mcore, scratch / "hf"))
                say.append(f"{same(got, {n: t.detach() for n, t in made.items()})} tensors")
    with one(part, "a Megatron checkpoint saved again by torch, then read") as say:
        path = tools.convert("hf mcore", folder, scratch / "mcore") / "iter_0000001/mp_rank_00/model_optim_rng.pt"
        torch.save(load_pt(path), path)
        say.append(f"{same(hf_tensors(tools.convert('mcore hf', scratch / 'mcore', scratch / 'hf')), state)} tensors")


def eight_bit(tools, _models, scratch):
    part = "torch.float8_e4m3fn"
    for kind, scale_type in (("llama", torch.float32), ("qwen3", torch.bfloat16)):
        with one(part, f"{kind}: blocks of 16 x 24 with {str(scale_type)[6:]} scales") as say:
            model, folder = small(kind, scratch)
            codes, want = {}, {}
            for name, t in load_file(folder / "model.safetensors").items():
                if not name.endswith("_proj.weight"):
                    codes[name] = want[name] = t.bfloat16()
                    continue
                rows, columns = (-(-n // b) for n, b in zip(t.shape, (16, 24)))
                spread = lambda s: s.float().repeat_interleave(16, 0).repeat_interleave(24, 1)[: t.shape[0], : t.shape[1]]
                scale = (torch.rand(rows, columns, generator=torch.Generator().manual_seed(len(codes))) / 200 + 1e-3).to(scale_type)
                codes[name] = (t / spread(scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
                codes[name + "_scale_inv"] = scale
                want[name] = (codes[name].float() * spread(scale)).bfloat16()
            save_file(codes, folder / "model.safetensors", {"format": "pt"})
            config = json.loads((folder / "config.json").read_text())
            config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 24]}
            (folder / "config.json").write_text(json.dumps(config))
            back = tools.convert("mcore hf", tools.convert("hf mcore", folder, scratch / "mcore", "--tp", 2), scratch / "hf")
            say.append(f"{same(hf_tensors(back), want)} tensors as torch dequantises them")
            automodel(back)


# --- (e) safetensors ---------------------------------------------------------------------------------------------------------


def containers(tools, models, scratch):
    part = "safetensors"
    for name, source in models.items():
        with one(part, f"{name}: toolchain form and Hugging Face folder") as say:
            ours = tools.convert("hf mcore", source, scratch / "own", "--format", "safetensors")
            count = 0
            for path in ours.rglob("*.safetensors"):
                with safe_open(path, "pt") as f:
                    count += sum(f.get_tensor(k).numel() > 0 for k in f.keys())
            folder = tools.convert("mcore hf", ours, scratch / "hf")
            meta = set()
            for path in folder.glob("*.safetensors"):
                with safe_open(path, "pt") as f:
                    meta.add(json.dumps(f.metadata()))
            say.append(f"{count} tensors of our form; back: {same(hf_tensors(folder), hf_tensors(source))}, metadata {', '.join(sorted(meta)) or 'as .bin'}")


# --- folders and generation of transformers ---------------------------------------------------------------------------------------


def saved_by_transformers(tools, _models, scratch):
    part = "transformers.save_pretrained"
    ids = torch.randint(3, 300, (2, 16), generator=torch.Generator().manual_seed(4))

    def variants(model, folder):
        yield "one file", lambda f: model.save_pretrained(f)
        yield "shards of 20 kB", lambda f: model.save_pretrained(f, max_shard_size="20KB")
        yield "bfloat16", lambda f: model.bfloat16().save_pretrained(f)
        model.float()

        def other_metadata(f):
            model.save_pretrained(f)
            save_file(load_file(f / "model.safetensors"), f / "model.safetensors", {"format": "pt", "made by": "somebody", "ünïcode": "é" * 300})

        yield "other metadata", other_metadata

        def no_metadata(f):
            model.save_pretrained(f)
            save_file(load_file(f / "model.safetensors"), f / "model.safetensors")

        yield "no metadata", no_metadata

    for kind, more in (("llama", {}), ("gemma", {"tie_word_embeddings": True}), ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16})):
        model, folder = small(kind, scratch, **more)
        for what, save in variants(model, folder):
            with one(part, f"{kind}: {what}") as say:
                there = scratch / "saved"
                shutil.rmtree(there, ignore_errors=True)
                save(there)
                with torch.no_grad():
                    want = automodel(there)(input_ids=ids, use_cache=False).logits
                say.append(near(tools.logits(there, ids, scratch), want, 5e-4))
                mcore = tools.convert("hf mcore", there, scratch / "mcore")
                back = tools.convert("mcore hf", mcore, scratch / "hf")
                files = {p.name: p.read_bytes() for p in there.glob("*.safetensors*")}
                equal = files == {p.name: p.read_bytes() for p in back.glob("*.safetensors*")}
                same(hf_tensors(back), hf_tensors(there))
                say.append(f"through mcore and back: {'same bytes' if equal else 'same tensors'}")


def generation(tools, _models, scratch):
    from tokenizers import Tokenizer, decoders, models as kinds, pre_tokenizers, trainers

    part = "transformers.generate"
    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = ["the cat sat on the mat and the dog ran after the cat because the mat was the cat's own mat"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    prompt = "the dog and the cat"
    for kind, more in (("llama", {}), ("qwen3", {"tie_word_embeddings": True}), ("gemma", {}), ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16})):
        with one(part, f"{kind}: 32 tokens, greedy") as say:
            model, folder = small(kind, scratch, **more)
            transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>").save_pretrained(folder)
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            with torch.no_grad():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
            want = tokenizer.decode(out.tolist())
            got = tools.run("ms-infer", "generate", "--load", folder, "--prompt", prompt, "--max-new-tokens", 32, "--temperature", 0, "--dtype", "fp32", "--json")
            got = json.loads(got.strip().splitlines()[-1])
            assert got["text"] == want, f"{got} instead of {want!r}"
            say.append(f"{len(out)} tokens, same text")


PARTS = {
    "torch": torch_files, "transformers": folders, "forms": forms, "peft": adapters, "save": written_by_torch, "fp8": eight_bit, "safetensors": containers, "megatron": megatron,
    "folders": saved_by_transformers, "generate": generation,
}


def report():
    """A table by part and one by sample; every line went to stderr."""
    parts, samples = {}, {}
    for part, what, result, detail in ROWS:
        worst = [float(w.split()[0].rstrip(";")) for w in detail.split("difference ")[1:]]
        parts.setdefault(part, []).append((result == "ok", max(worst, default=None)))
        name, _, case = what.partition(":")
        if case and part in COLUMNS:
            said = f"{max(worst):.0e}" if worst else "ok"
            samples.setdefault(name, {}).setdefault(part, []).append(said if result == "ok" else result)
    print("| with | cases | ok | largest difference of logits |\n|---|---|---|---|")
    for part, results in parts.items():
        worst = max((w for _, w in results if w is not None), default=None)
        print(f"| {part} | {len(results)} | {sum(ok for ok, _ in results)} | {'' if worst is None else f'{worst:.1e}'} |")
    print("\n| sample | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for name, found in samples.items():
        print(f"| {name} | " + " | ".join(", ".join(dict.fromkeys(found.get(c, ["-"]))) for c in COLUMNS) + " |")


COLUMNS = ("torch.load(weights_only=True)", "safetensors", "transformers.from_pretrained", "megatron-core GPTModel")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--models", nargs="+", default=["tests/golden/models"])
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    models = {}
    for root in args.models:
        models |= {p.parent.name: p.parent for p in sorted(pathlib.Path(root).resolve().glob("*/golden.json"))}
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only:
            PARTS[name](Tools(args.bin), models, pathlib.Path(scratch))
    report()
    failed = sum(r[2] != "ok" for r in ROWS)
    print(f"\n{len(ROWS) - failed} of {len(ROWS)} ok.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
