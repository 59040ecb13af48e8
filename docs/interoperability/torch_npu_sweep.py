#!/usr/bin/env python3
"""Every operator that PyTorch tests of its own know, on the emulator by way of the vendor's adapter, against the CPU.

    pip install expecttest packaging    # besides what torch_npu.py needs, with the same variables
    python docs/interoperability/torch_npu_sweep.py [--dtype float32] [--samples 12] [--first N] [--last N] [--only NAME,NAME] [--known]

Takes the sample inputs of `torch.testing._internal.common_methods_invocations.op_db` (no dimensions, empty, broadcast, not
contiguous), compares values, and in float32 gradients. Prints a line for each sample that is not equal, and counts. A task
that fails ends the device, so a worker stops there and the next operator has one of its own. What differs by chance
(random numbers, the order of equal values) is left out or listed in KNOWN with its reason. Complex operands that an operator's page
does not have are refused by the rules NN-09 and NN-11 (element types) and counted. In half precision a sample is equal that equals the CPU's result in f32. Exit code 1 if another differs.
"""
import argparse, contextlib, itertools, os, subprocess, sys, warnings

RANDOM = ("sparse empty rand multinomial normal bernoulli dropout uniform exponential geometric cauchy log_normal rrelu poisson jiterator nested "
          "fractional_max_pool svd_lowrank pca_lowrank").split()
ELSEWHERE = "linalg.eig fft stft as_strided ormqr geqrf lu eig".split()
KNOWN = {
    "the adapter refuses channels-last copies": "to bfloat16 bool byte cdouble cfloat chalf char double float half int long short".split(),
    "the adapter's pool gives a mask for indices": ["nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.max_unpool2d.grad"],
    "the adapter rounds a correction to an integer": ["std", "std_mean", "var", "var_mean"],
    "the sample drops weights at random": ["nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention"],
    "the sample's sizes belong to the host": ["tensor_split"],
    "an index of a type that the operator's page does not have": ["gather"],
    "the adapter cannot reshape an empty product": ["matmul", "__rmatmul__"],
    "equal values in another order": ["sort", "argsort", "topk"],
    "in bfloat16: of the smallest normal divisor the CPU's vector code makes NaN": ["fmod", "remainder"],
    "in complex64: the adapter takes factors of matrices of floats only": "svd pinverse norm.nuc linalg.cond linalg.matrix_norm linalg.matrix_rank linalg.pinv linalg.pinv.hermitian "
    "linalg.svd linalg.svdvals".split(),
    "in complex64: the adapter makes a real result": ["expm1"],
    "not in floats: the adapter miscounts the elements": ["_chunk_cat"],
    "the adapter takes a factor of integers as a float": ["addmm", "addmv", "addbmm", "baddbmm"],
}


def flat(r):
    import torch
    if torch.is_tensor(r):
        return [r]
    if isinstance(r, (tuple, list)):
        return [x for y in r for x in flat(y)]
    return [torch.tensor(r)] if isinstance(r, (bool, int, float, complex)) else []


def on(x, device):
    import torch
    if torch.is_tensor(x):
        y = x.detach().to(device)
        if not x.is_contiguous() and x.numel() and x.layout == torch.strided:
            y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(y)
        return y.requires_grad_(x.requires_grad)
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(on(y, device) for y in x)
    if isinstance(x, dict):
        return {k: on(v, device) for k, v in x.items()}
    return torch.device(device) if isinstance(x, torch.device) else x


def widened(x):
    import torch
    if torch.is_tensor(x):
        return x.detach().float() if x.is_floating_point() else x.detach()
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(widened(y) for y in x)
    return {k: widened(v) for k, v in x.items()} if isinstance(x, dict) else x


def difference(a, b, tol):
    import torch
    a, b = a.detach(), b.detach().cpu()
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)}, on the device {tuple(b.shape)}"
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.numel() and not torch.allclose(a.double(), b.double(), rtol=tol, atol=tol, equal_nan=True):
        return f"differs by {(a.double() - b.double()).abs().nan_to_num().max().item():.3g}"
    return None


def gradients(out, leaves):
    import torch
    leaves = [x for x in flat(leaves) if x.requires_grad]
    out = [x for x in flat(out) if x.grad_fn is not None and x.is_floating_point()]
    return torch.autograd.grad(sum((x * x).sum() for x in out), leaves, allow_unused=True) if out and leaves else []


def worker(dtype, first, last, most, only):
    warnings.simplefilter("ignore")
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    import torch
    import torch_npu
    from torch.testing._internal.common_methods_invocations import op_db
    dtype = getattr(torch, dtype)
    tol = {torch.float32: 1e-3, torch.complex64: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}.get(dtype, 1e-6)
    for n in range(first, min(last, len(op_db))):
        op = op_db[n]
        name = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        print("@", n, name, flush=True)
        if only and op.name not in only or any(s in name for s in RANDOM + ELSEWHERE) or dtype not in op.supported_dtypes("cpu"):
            continue
        samples = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd and dtype.is_floating_point), most)
        for i, s in enumerate(samples):
            try:
                here = [on(x, "cpu") for x in (s.input, list(s.args), dict(s.kwargs))]
                want = op(here[0], *here[1], **here[2])
            except Exception:
                continue  # the CPU itself refuses this sample
            try:
                there = [on(x, "npu") for x in (s.input, list(s.args), dict(s.kwargs))]
                got = op(there[0], *there[1], **there[2])
                bad = next(filter(None, (difference(a, b, tol) for a, b in zip(flat(want), flat(got)))), None)
                if bad and dtype in (torch.float16, torch.bfloat16):
                    # The CPU rounds between its steps, the device at the end: then f32 on the CPU is the judge.
                    wide = [widened(x) for x in (s.input, list(s.args), dict(s.kwargs))]
                    with contextlib.suppress(Exception):
                        exact = op(wide[0], *wide[1], **wide[2])
                        pairs = [(a.to(b.dtype), b) for a, b in zip(flat(exact), flat(got))]
                        bad = next(filter(None, (difference(a, b, tol) for a, b in pairs)), None)
                if not bad and dtype == torch.float32:
                    try:
                        left = gradients(want, here)
                    except RuntimeError:
                        left = []
                    pairs = zip(left, gradients(got, there) if left else [])
                    found = next(filter(None, (difference(a, b, 5 * tol) for a, b in pairs if a is not None and b is not None)), None)
                    bad = found and "gradient " + found
                print(f"W {name} {i} {bad}" if bad else f"= {name} {i}", flush=True)
            except Exception as e:
                text = str(e).replace("\n", " ")
                print(f"{'R' if 'NN-09' in text or 'NN-11' in text else 'E'} {name} {i} {text[:200]}", flush=True)
                if "507015" in text or "Inner error" in text or "synchronize failed" in text:
                    os._exit(3)
    print("END", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=12, help="of each operator at most")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=1000)
    parser.add_argument("--only", default="", help="names of operators, parted by commas")
    parser.add_argument("--known", action="store_true", help="print what is known to differ, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.dtype, args.first, args.last, args.samples, args.only.split(",") if args.only else None)
    lines, at = [], args.first
    while at < args.last:
        command = [sys.executable, __file__, "--worker", "--dtype", args.dtype, "--samples", str(args.samples), "--first", str(at), "--last", str(args.last), "--only", args.only]
        ran = subprocess.run(command, capture_output=True, text=True)
        text = ran.stdout.splitlines()
        if not text:
            sys.exit(f"the worker did not begin:\n{ran.stderr[-2000:]}")
        lines += text
        begun = [x.split() for x in text if x.startswith("@")]
        if "END" in text or not begun:
            break
        at = int(begun[-1][1]) + 1
        if not text[-1].startswith("E "):
            lines.append(f"E {begun[-1][2]} - the process ended")
    reasons = {name: why for why, names in KNOWN.items() for name in names if why.startswith(f"in {args.dtype}:") or not why.startswith(("in ", "not in floats:"))
               or why.startswith("not in") and "float" not in args.dtype}
    equal = [x.split()[1] for x in lines if x.startswith("= ")]
    other = [x for x in lines if x[:2] in ("W ", "E ")]
    new = [x for x in other if x.split()[1] not in reasons]
    for line in other if args.known else new:
        print(line)
    refused = [x.split()[1] for x in lines if x.startswith("R ")]
    print(f"{args.dtype}: {len(equal)} samples of {len(set(equal))} operators equal, {len(refused)} of {len(set(refused))} refused by their types, "
          f"{len(other) - len(new)} known to differ, {len(new)} other")
    sys.exit(1 if new or not equal else 0)


if __name__ == "__main__":
    main()
