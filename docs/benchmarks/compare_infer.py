"""Takes turns with Hugging Face transformers and llama.cpp: reading a prompt and continuing it, one sequence.

    cargo bench -p ms-generate --bench infer --no-run
    python3 docs/benchmarks/compare_infer.py --infer target/release/deps/infer-HASH --peers hf,bf16,q8_0 --threads 1

Every side has a process of its own with a model of the same shape and random weights, and does a piece of work when it is told to;
the order changes from round to round. A peer `hf` is transformers' LlamaForCausalLM in bf16 (PyTorch's allocator tuned as in
`compare_torch.py`), `bf16` and `q8_0` are llama.cpp with weights of that type, through the Python package `llama_cpp`, which must
have been built for this processor; its line of features is printed. They are compared with our bf16, `q8_0` with our int8. Printed
are medians of the rounds' ratios of processor seconds (the peer's over ours: above 1 we are faster), their quartiles, our rate by
processor seconds, and the peak of resident memory of each process.
Needs Python packages transformers and torch for `hf`, `llama_cpp`, `gguf` and numpy for the others.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from compare_torch import INFER, TUNED, VOCAB, Ours, peak_mib


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def hf(args):
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=INFER["hidden"],
        intermediate_size=INFER["ffn"],
        num_hidden_layers=INFER["layers"],
        num_attention_heads=INFER["heads"],
        num_key_value_heads=INFER["groups"],
        max_position_embeddings=args.prompt + args.new,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = (torch.arange(args.prompt) * 7919 % VOCAB).view(1, -1)

    @torch.inference_mode()
    def prefill():
        cache = transformers.DynamicCache()
        if "num_logits_to_keep" in model.forward.__code__.co_varnames:
            return model(ids, past_key_values=cache, use_cache=True, num_logits_to_keep=1).past_key_values
        return model(ids, past_key_values=cache, use_cache=True).past_key_values

    @torch.inference_mode()
    def decode(cache):
        token = torch.tensor([[5]])
        for i in range(args.new):
            out = model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].float().argmax(-1)

    about = {"about": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    return about, lambda: timed(prefill), lambda: (cache := prefill(), timed(lambda: decode(cache)))[1]


def write_gguf(path, kind, positions):
    """A model of random weights in llama.cpp's format; its matrices in `kind`."""
    import gguf
    import numpy as np

    hidden, heads, groups, ffn = (INFER[name] for name in ("hidden", "heads", "groups", "ffn"))
    dim, draw = hidden // heads, np.random.default_rng(1)
    type_of = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(positions)
    writer.add_embedding_length(hidden)
    writer.add_block_count(INFER["layers"])
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")

    def matrix(name, rows, columns):
        values = draw.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(name, gguf.quants.quantize(values, type_of), raw_dtype=type_of)

    norm = lambda name: writer.add_tensor(name, np.ones(hidden, dtype=np.float32))
    matrix("token_embd.weight", VOCAB, hidden)
    norm("output_norm.weight")
    matrix("output.weight", VOCAB, hidden)
    for layer in range(INFER["layers"]):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight")
        matrix(at + "attn_q.weight", heads * dim, hidden)
        matrix(at + "attn_k.weight", groups * dim, hidden)
        matrix(at + "attn_v.weight", groups * dim, hidden)
        matrix(at + "attn_output.weight", hidden, heads * dim)
        norm(at + "ffn_norm.weight")
        matrix(at + "ffn_gate.weight", ffn, hidden)
        matrix(at + "ffn_up.weight", ffn, hidden)
        matrix(at + "ffn_down.weight", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(args, path):
    import ctypes

    import llama_cpp as lib
    import numpy as np

    lib.llama_backend_init()
    quiet = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = args.prompt + args.new, args.prompt, args.prompt
    params.n_threads = params.n_threads_batch = args.threads
    context = lib.llama_init_from_model(model, params)
    token = lib.llama_token
    ids = (token * args.prompt)(*[t * 7919 % VOCAB for t in range(args.prompt)])

    def run(tokens, count):
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, count)) != 0:
            sys.exit("llama_decode failed")

    def prefill():
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        run(ids, args.prompt)

    def decode():
        last = 5
        for _ in range(args.new):
            run((token * 1)(last), 1)
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(VOCAB,))
            last = int(logits.argmax())

    features = lib.llama_print_system_info().decode()
    about = {"about": f"llama_cpp {lib.__version__}, {features.strip()}", "keep": [quiet, model]}
    return about, lambda: timed(prefill), lambda: (prefill(), timed(decode))[1]


def serve(args):
    """A peer: answers every line, `prefill` or `decode`, with a line of seconds."""
    name, _, path = args.serve.partition(":")
    about, prefill, decode = hf(args) if name == "hf" else llama_cpp(args, path)
    prefill()
    print(json.dumps({"about": about["about"]}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"prefill": prefill, "decode": decode}[line.strip()]()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infer", help="the built benchmark `infer` of ms-generate")
    parser.add_argument("--peers", default="hf,bf16,q8_0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    sizes = [f"--threads={args.threads}", f"--prompt={args.prompt}", f"--new={args.new}"]
    with tempfile.TemporaryDirectory() as folder:
        for peer in args.peers.split(","):
            role, options = "hf", ["--quantization=int8"] if peer == "q8_0" else []
            if peer != "hf":
                path = os.path.join(folder, f"{peer}.gguf")
                write_gguf(path, peer, args.prompt + args.new)
                role = f"llama:{path}"
            tuned = {**TUNED, "OMP_NUM_THREADS": str(args.threads)}
            os.environ.update(tuned if peer == "hf" else {})
            theirs = Ours([sys.executable, os.path.abspath(__file__), "--serve", role, *(s for size in sizes for s in size.split("="))])
            for name in tuned:
                os.environ.pop(name, None)
            ours = Ours([args.infer, *sizes, *options, "--by-line"])
            print(f"{peer}: {theirs.about['about']}; ours {ours.about['isa']} {ours.about['arithmetic']}, {args.threads} threads")
            for work, tokens in (("prefill", args.prompt), ("decode", args.new)):
                ratios, own, clock = [], [], []
                for index in range(args.rounds):
                    sides = [ours, theirs] if index % 2 else [theirs, ours]
                    taken = {id(side): side.run(work) for side in sides}
                    (cpu, wall), (their_cpu, their_wall) = taken[id(ours)], taken[id(theirs)]
                    ratios.append(their_cpu / cpu)
                    own.append(cpu)
                    clock.append(their_wall / wall)
                low, _, high = statistics.quantiles(ratios, n=4)
                print(
                    f"  {work:8} {statistics.median(ratios):5.2f} [{low:.2f}-{high:.2f}] by processor time, "
                    f"{statistics.median(clock):5.2f} by the clock; ours {tokens / statistics.median(own) * args.threads:.1f} tokens/s",
                    flush=True,
                )
            mine, other = peak_mib(ours.process.pid), peak_mib(theirs.process.pid)
            print(f"  peak of resident memory {mine} MiB, theirs {other} MiB: {mine / other:.2f}", flush=True)
            ours.close()
            theirs.close()


if __name__ == "__main__":
    main()
