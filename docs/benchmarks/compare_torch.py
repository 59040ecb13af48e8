"""Takes turns with PyTorch: a training step, reading a prompt and continuing it, on the same Llama shapes.

    cargo bench -p ms-trainer --bench step --no-run && cargo bench -p ms-generate --bench infer --no-run
    python3 docs/benchmarks/compare_torch.py --step target/release/deps/step-HASH --infer target/release/deps/infer-HASH

Both sides keep their models in memory; a round is one piece of work of each, first one and then the other, in an order that
changes from round to round. Printed are the medians of the rounds' ratios of processor seconds (PyTorch over ours: above 1 we
are faster), their quartiles, the ratio by the clock, and peaks of resident memory in training. PyTorch uses float32 weights with bf16 products (autocast) and AdamW
for training, bf16 weights for inference, scaled_dot_product_attention and as many threads as ours.
`--compile` compiles its model for training first. Its allocator is tuned with `MALLOC_TRIM_THRESHOLD_` and
`MALLOC_MMAP_THRESHOLD_`, so that it does not give memory back to the system after every operation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TUNED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(64 << 20)}
# Plug-ins for other devices stay out.
TUNED["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
VOCAB = 32000
# The sizes of the benchmark `step`.
SIZES = {
    "A": dict(hidden=384, layers=6, heads=6, groups=6, ffn=1024, seq=512, batch=4),
    "B": dict(hidden=768, layers=12, heads=12, groups=4, ffn=2048, seq=1024, batch=2),
}
# That of the benchmark `infer`.
INFER = dict(hidden=1536, layers=20, heads=12, groups=4, ffn=4608)


class Ours:
    """One of our benchmarks, which does a piece of work for every line it reads."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended: code {self.process.wait()}")
        return json.loads(line)

    def run(self, order=""):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        return answer["cpu"], answer["wall"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(work):
    """Processor and wall seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def peak_mib(pid="self"):
    """Peak of resident memory of a process."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


def compare(name, ours, theirs, rounds):
    """Prints the ratios of some rounds; each side returns processor and wall seconds."""
    cpu, wall, own = [], [], []
    theirs()
    for index in range(rounds):
        if index % 2:
            b = theirs()
            a = ours()
        else:
            a = ours()
            b = theirs()
        cpu.append(b[0] / a[0])
        wall.append(b[1] / a[1])
        own.append(a[0])
    quartiles = statistics.quantiles(cpu, n=4)
    print(
        f"{name:34} {statistics.median(cpu):5.2f} [{quartiles[0]:.2f}-{quartiles[2]:.2f}] by processor time, "
        f"{statistics.median(wall):5.2f} by the clock, ours {statistics.median(own):.3f} s of processor time",
        flush=True,
    )


def llama(torch, size, dtype, tied):
    """A plain Llama: RMSNorm, rotary embedding, grouped attention, SwiGLU."""
    nn, F = torch.nn, torch.nn.functional
    hidden, heads, groups, ffn = size["hidden"], size["heads"], size["groups"], size["ffn"]
    dim = hidden // heads

    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            linear = lambda i, o: nn.Linear(i, o, bias=False, dtype=dtype)
            self.norm1, self.norm2 = (nn.RMSNorm(hidden, eps=1e-5, dtype=dtype) for _ in range(2))
            self.qkv = linear(hidden, (heads + 2 * groups) * dim)
            self.out = linear(heads * dim, hidden)
            self.gate_up, self.down = linear(hidden, 2 * ffn), linear(ffn, hidden)

        def forward(self, x, cos, sin, cache=None):
            batch, tokens, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).split([heads * dim, groups * dim, groups * dim], dim=-1)
            q, k, v = (t.view(batch, tokens, -1, dim).transpose(1, 2) for t in (q, k, v))
            q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
            if cache is not None:
                keys, values, at = cache
                keys[:, :, at : at + tokens], values[:, :, at : at + tokens] = k, v
                k, v = keys[:, :, : at + tokens], values[:, :, : at + tokens]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=groups < heads)
            x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, hidden, dtype=dtype)
            self.layers = nn.ModuleList(Layer() for _ in range(size["layers"]))
            self.norm = nn.RMSNorm(hidden, eps=1e-5, dtype=dtype)
            self.head = nn.Linear(hidden, VOCAB, bias=False, dtype=dtype)
            if tied:
                self.head.weight = self.embed.weight

        def forward(self, ids, cos, sin, caches=None, at=0, last=False):
            x = self.embed(ids)
            for i, layer in enumerate(self.layers):
                x = layer(x, cos, sin, None if caches is None else (*caches[i], at))
            x = self.norm(x)
            return self.head(x[:, -1:] if last else x)

    def angles(first, tokens):
        inverse = 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
        turns = torch.outer(torch.arange(first, first + tokens).float(), inverse)
        turns = torch.cat((turns, turns), dim=-1)
        return turns.cos(), turns.sin()

    torch.manual_seed(1)
    model = Llama()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.02)
    return model, angles


def train(args, torch, name, dtype):
    size = SIZES[name]
    model, angles = llama(torch, size, torch.float32, tied=True)
    forward = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = size["seq"] * size["batch"]
    ids = torch.tensor([(t * 7919 + t // 13 * 104729) % VOCAB for t in range(tokens + 1)])
    shape = (size["batch"], size["seq"])
    inputs, labels = ids[:-1].view(shape), ids[1:].view(shape)
    cos, sin = angles(0, size["seq"])

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = forward(inputs, cos, sin)
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, VOCAB), labels.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    ours = Ours([args.step, f"--size={name}", f"--dtype={dtype}", f"--threads={args.threads}", "--by-line"])
    compare(f"train {name} {dtype} ({ours.about['isa']} {ours.about['arithmetic']})", ours.run, lambda: timed(step), args.rounds)
    mine, other = peak_mib(ours.process.pid), peak_mib()
    print(f"  peak of resident memory {mine} MiB, PyTorch's, with what ran before, {other} MiB: {mine / other:.2f}", flush=True)
    ours.close()


def infer(args, torch):
    model, angles = llama(torch, INFER, torch.bfloat16, tied=False)
    prompt, new = args.prompt, args.new
    dim = INFER["hidden"] // INFER["heads"]
    caches = [
        [torch.zeros(1, INFER["groups"], prompt + new, dim, dtype=torch.bfloat16) for _ in range(2)]
        for _ in range(INFER["layers"])
    ]
    ids = (torch.arange(prompt) * 7919 % VOCAB).view(1, -1)
    whole = [t.to(torch.bfloat16) for t in angles(0, prompt)]
    each = [[t.to(torch.bfloat16) for t in angles(prompt + i, 1)] for i in range(new)]

    @torch.inference_mode()
    def prefill():
        model(ids, *whole, caches, last=True).float()

    @torch.inference_mode()
    def decode():
        token = torch.tensor([[5]])
        for i in range(new):
            logits = model(token, *each[i], caches, prompt + i, last=True)
            token = logits.float().argmax(-1)

    prefill()
    ours = Ours([args.infer, f"--threads={args.threads}", f"--prompt={prompt}", f"--new={new}", "--by-line"])
    which = f"({ours.about['isa']} {ours.about['arithmetic']})"
    compare(f"prefill {prompt} {which}", lambda: ours.run("prefill"), lambda: timed(prefill), args.rounds)
    compare(f"decode {new} {which}", lambda: ours.run("decode"), lambda: timed(decode), args.rounds)
    ours.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", help="the built benchmark `step` of ms-trainer")
    parser.add_argument("--infer", help="the built benchmark `infer` of ms-generate")
    parser.add_argument("--sizes", default="A", help="sizes to train, A or A,B")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if any(os.environ.get(key) != value for key, value in TUNED.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED, "OMP_NUM_THREADS": str(args.threads)})
    import torch

    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}{', compiled' if args.compile else ''}, {args.threads} threads, {args.rounds} rounds")
    for name in args.sizes.split(",") if args.step else []:
        for dtype in args.dtypes.split(","):
            train(args, torch, name, dtype)
    if args.infer:
        infer(args, torch)


if __name__ == "__main__":
    main()
