#!/usr/bin/env python3
"""PyTorch's adapter for Ascend, as its vendor compiled it, on the emulator: every case is compared with the CPU.

    cargo xtask cann-emu DIR            # prints the variables to export
    pip install --no-deps torch==2.7.1 torch_npu==2.7.1.post4   # CPython 3.11, x86-64, and what torch imports
    python docs/interoperability/torch_npu.py [--only SECTION] [--verbose]

Prints a row per section (cases, equal, refused by the emulator, wrong) and a line per case that is not equal. The section
`processes` starts two and four processes that talk over the `hccl` backend. Exit code 1 if a case is wrong or refused, but for those that the adapter cannot run
with a toolkit of 8.1 (`OLDER`).
"""
import argparse, copy, importlib.util, math, os, subprocess, sys, tempfile, traceback

# This file has the adapter's name: its own folder must not be searched for it.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _here]
import torch
import torch_npu
import torch.nn as nn
import torch.nn.functional as F



def beside(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(_here, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


adapter_cases, adapter_inference = beside("adapter_cases"), beside("adapter_inference")
adapter_scripts, adapter_layers, adapter_ranks = beside("adapter_scripts"), beside("adapter_layers"), beside("adapter_ranks")
adapter_fused, adapter_programs = beside("adapter_fused"), beside("adapter_programs")

CASES = {}


def case(section, name, f, *args, tol=2e-5, grad=False):
    CASES.setdefault(section, []).append((name, lambda: compare(f, args, tol, grad)))


def check(section, name):
    """A case of its own: a function that raises when it is not equal."""
    def add(f):
        CASES.setdefault(section, []).append((name, f))
        return f
    return add


# Cases that this adapter cannot run on a toolkit of 8.1, and why: expected to fail, each in a process of its own, since an
# operator by type name that fails ends the adapter's launching thread.
EXCHANGES = "aclnnAlltoAllMatmul came with 9.0, and the adapter has no other way"
ROUTES = "aclnnMoeDistributeDispatchV2 came with 8.5, and the adapter has no other way"
SCALER = "aclnnAmpUpdateScale came with 9.1, and the adapter has no other way"
OLDER = {
    ("processes", "four processes, several collectives in one call"): "HcclGroupStart came with 8.5, and the adapter has no other way",
    ("processes", "two processes, products fused with exchanges"): EXCHANGES,
    ("processes", "two processes, tokens to experts and back"): ROUTES,
    ("scripts: mixed precision", "five steps with autocast in torch.float16 and a scaler"): SCALER,
    ("scripts: mixed precision", "an overflow skips the step and halves the scale"): SCALER,
    ("scripts: complex numbers", "angles"): "aclnnAngleV2 came with 9.0, and the adapter has no other way",
    ("scripts: algebra", "singular vectors"): "without aclnnSvd the adapter runs Svd by type name and never copies its third result",
    ("scripts: layers, forward and backward", "packed sequences"): "without aclnnLSTM the adapter runs DynamicRNN with a mask of steps, which the emulator has not",
    ("indices and sets", "gradient of repeating"): "aclnnRepeatInterleaveGrad came with 8.5, and the adapter has no other way",
    ("inference", "npu_quant_matmul and npu_trans_quant_param"): "aclnnQuantMatmulV5 came with 8.5, and the adapter has no other way",
    ("matrices", "pinv"): "without aclnnSvd the adapter runs Svd by type name and never copies its third result",
    ("pools, padding, resizing", "adaptive_max_pool2d"): "without aclnnAdaptiveMaxPool2dBackward the adapter runs MaxPoolGradWithArgmaxV1 by type name on "
    "the indices of another operator, which are no mask",
}


def is_older():
    home = os.environ.get("ASCEND_HOME_PATH", "")
    return os.path.exists(f"{home}/version.cfg") and "=8.1" in open(f"{home}/version.cfg").read()


def fails_elsewhere(section, name):
    env = dict(os.environ, TORCH_NPU_HERE="1")
    return subprocess.run([sys.executable, __file__, "--only", section, "--case", name], env=env, capture_output=True).returncode != 0


def flat(r):
    if torch.is_tensor(r):
        return [r]
    if isinstance(r, (tuple, list)):
        return [x for y in r for x in flat(y)]
    return [torch.tensor(r)]


def near(a, b, tol=2e-5):
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.shape != b.shape:
        raise AssertionError(f"shape {tuple(a.shape)}, on the device {tuple(b.shape)}")
    if not torch.allclose(a.double(), b.double(), rtol=tol, atol=tol, equal_nan=True):
        raise AssertionError(f"differs by {(a.double() - b.double()).abs().max().item():.3g}")


def compare(f, args, tol, grad):
    leaf = lambda a, d: a.detach().clone().to(d).requires_grad_(grad and a.is_floating_point()) if torch.is_tensor(a) else a
    sides = []
    for device in ("cpu", "npu"):
        given = [leaf(a, device) for a in args]
        out = flat(f(*given))
        if grad:
            sum((x * x).sum() for x in out if x.is_floating_point()).backward()
            out = out + [a.grad for a in given if torch.is_tensor(a) and a.grad is not None]
        sides.append(out)
    for x, y in zip(*sides, strict=True):
        near(x, y, tol)


def operators():
    torch.manual_seed(0)
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    p = a.abs() + 0.5
    i, j = torch.randint(-9, 9, (5, 7)), torch.randint(1, 9, (5, 7))
    s = "one operand"
    for n in ("abs acos asin atan ceil cos cosh erf erfc exp exp2 expm1 floor frac neg reciprocal round sigmoid sign sin sinc "
              "sinh tan tanh trunc relu isfinite isnan isinf logical_not square signbit").split():
        case(s, n, getattr(torch, n), a * 0.4)
    for n in "log log2 log10 log1p sqrt rsqrt acosh lgamma digamma".split():
        case(s, n, getattr(torch, n), p + 0.6, tol=1e-4)
    s = "two operands"
    for n in ("add sub mul div floor_divide fmod remainder pow maximum minimum atan2 eq ne lt le gt ge logical_and logical_or "
              "logical_xor hypot logaddexp").split():
        case(s, n, getattr(torch, n), p, b.abs() + 0.3)
    for n in ("add sub mul div floor_divide fmod remainder eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor maximum").split():
        case(s, f"{n} of integers", getattr(torch, n), i, j)
    for n in "add sub mul div floor_divide fmod remainder pow eq ne lt le gt ge".split():
        case(s, f"{n} with a number", lambda x, n=n: getattr(torch, n)(x, 2.5), p)
    case(s, "broadcast", lambda x, y: x[:, :1] + y[:1], a, b)
    case(s, "strides", lambda x: x.t()[1:5:2] * 2 + x.t()[2:6:2], a)
    case(s, "number first", lambda x: [1 - x, 2 / x, 2 ** x], p)
    case(s, "where", lambda x, y: torch.where(x > 0, x, y), a, b)
    case(s, "clamp", lambda x: [x.clamp(-.5, .5), x.clamp(min=.1), x.clamp(max=.1)], a)
    case(s, "masked_fill", lambda x: x.masked_fill(x > 0, 3.), a)
    case(s, "nan_to_num", lambda x: torch.nan_to_num(x / 0), a)
    case(s, "addcmul addcdiv lerp", lambda x, y: [torch.addcmul(x, y, y, value=.5), torch.addcdiv(x, y, y.abs() + 1, value=.5), torch.lerp(x, y, .3)], a, b)
    case(s, "in place", lambda x: x.clone().mul_(2).add_(1).sub_(.5).div_(3).neg_().exp_().sqrt_().clamp_(0, 1), a)
    s = "reductions"
    for n in "sum mean prod amax amin max min std var norm all any argmax argmin median count_nonzero".split():
        if n not in ("amax", "amin"):
            case(s, n, lambda x, n=n: getattr(torch, n)(x), a)
        if n not in ("norm", "argmax", "std", "count_nonzero"):
            case(s, f"{n} of a dimension", lambda x, n=n: getattr(torch, n)(x, 1), a)
    case(s, "logsumexp", lambda x: torch.logsumexp(x, 1), a)
    case(s, "sum of integers", lambda x: x.sum(0), i)
    case(s, "sum keepdim", lambda x: [x.sum((0, 1), keepdim=True), x.mean(-1, keepdim=True)], a)
    case(s, "var_mean aminmax vector_norm", lambda x: [*torch.var_mean(x, 1), *torch.aminmax(x), torch.linalg.vector_norm(x), x.norm(dim=1)], a)
    for n in "cumsum cumprod cummax cummin logcumsumexp".split():
        case(s, n, lambda x, n=n: getattr(torch, n)(x, 1), a)
    s = "shapes and indices"
    case(s, "cat stack split chunk", lambda x, y: [torch.cat([x, y], 1), torch.stack([x, y], 1), *x.split([2, 5], 1), *x.chunk(3, 1)], a, b)
    case(s, "tril triu flip roll repeat", lambda x: [x.tril(), x.triu(1), x.flip(0, 1), x.roll(2, 1), x.repeat(2, 3)], a)
    case(s, "permute expand contiguous", lambda x: [x.reshape(5, 7, 1).permute(2, 0, 1).contiguous(), x[:, :1].expand(5, 4).contiguous()], a)
    case(s, "gather", lambda x, k: x.gather(1, k), a, torch.randint(0, 7, (5, 3)))
    k = torch.tensor([3, 1, 1])
    case(s, "index_select", lambda x, k: x.index_select(0, k), a, k)
    case(s, "index", lambda x, k: [x[k], x[k, k], x[x > 0], x[:, -1], x[:, k], x[:, None, k]], a, k)

    def put(x, k, v):
        y, z, w = x.clone(), x.clone(), x.clone()
        y[k] = 1.5
        z[x > 0] = 0
        w[1:3, ::2] = 7
        return [y, z, w, x.clone().index_put_((k,), v, accumulate=True)]
    case(s, "index_put", put, a, k, torch.randn(3, 7))
    case(s, "scatter", lambda x, k, v: [x.scatter(1, k, v), x.scatter(1, k, 2.), x.scatter_add(1, k, v)], a, torch.tensor([[0, 1], [2, 3], [4, 5], [6, 0], [1, 2]]), torch.randn(5, 2))
    case(s, "index_add index_copy index_fill", lambda x, k, v: [x.index_add(0, k, v), x.index_copy(0, k, v), x.index_fill(0, k, 2.)], a, torch.tensor([1, 3]), torch.randn(2, 7))
    case(s, "sort argsort topk kthvalue", lambda x: [*x.sort(1), x.argsort(1, descending=True), *x.topk(3, 1), *x.kthvalue(2, 1)], a)
    case(s, "nonzero masked_select", lambda x: [(x > 0).nonzero(), x.masked_select(x > 0)], a)
    case(s, "unique bincount histc", lambda x, y, z: [*torch.unique(x, return_inverse=True, return_counts=True), torch.bincount(y.flatten()), torch.histc(z, 5, -1, 1)], i, j, a)
    case(s, "one_hot pad take", lambda x, y: [F.one_hot(x, 9), F.pad(y, (1, 2, 0, 1), value=2.), y.take(x[0])], j - 1, a)
    case(s, "repeat_interleave searchsorted isin", lambda x, y, z: [x.repeat_interleave(2, 0), torch.searchsorted(x.sort(1)[0], y), torch.isin(z, torch.tensor([1, 2], device=x.device))], a, b, i)
    case(s, "arange linspace full eye", lambda x: [torch.arange(3, 19, 2, device=x.device), torch.linspace(0, 1, 7, device=x.device), torch.full((3,), 2.5, device=x.device), torch.eye(3, device=x.device), torch.ones_like(x)], a)
    s = "element types"
    for d in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.int8, torch.bool, torch.int16):
        case(s, f"to {d}".replace("torch.", ""), lambda x, d=d: (x * 3).abs().to(d).float(), a)
    case(s, "products and sums in bf16", lambda x, y: [x.bfloat16() @ y.bfloat16().t(), x.bfloat16() + y.bfloat16()], a, b, tol=2e-2)
    case(s, "softmax in f16", lambda x: F.softmax(x.half(), -1), a, tol=2e-3)
    case(s, "item, equal, allclose", lambda x: [x.sum().item(), x.max().item(), torch.allclose(x, x), torch.equal(x, x)], a)
    s = "products"
    case(s, "mm", lambda x, y: x @ y.t(), a, b, grad=True)
    case(s, "bmm", lambda x: torch.bmm(x.reshape(1, 5, 7), x.t().reshape(1, 7, 5)), a, grad=True)
    case(s, "mv dot outer", lambda x, y: [x @ y[0], torch.dot(x[0], y[0]), torch.outer(x[0], y[0])], a, b)
    case(s, "addmm baddbmm", lambda x, y: [torch.addmm(x[:, :5], x, y.t(), beta=.5, alpha=2), torch.baddbmm(torch.ones(1, 5, 5, device=x.device), x[None], x.t()[None])], a, b)
    case(s, "einsum", lambda x, y: torch.einsum("ij,kj->ik", x, y), a, b, grad=True)
    case(s, "matmul of 4 dimensions", lambda x: x.reshape(1, 5, 1, 7) @ x.t().reshape(1, 1, 7, 5), a)
    case(s, "linear", lambda x, y: F.linear(x, y, x[:, 0]), a, b, grad=True)
    s = "activations, forward and backward"
    for n in ("relu gelu silu elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus mish logsigmoid tanhshrink softsign "
              "relu6 hardshrink softshrink").split():
        case(s, n, getattr(F, n), a * 2, grad=True, tol=1e-4)
    # The adapter calls aclnnGelu for both forms.
    case(s, "gelu by tanh", lambda x: F.gelu(x, approximate="tanh"), a, tol=1e-3)
    case(s, "glu", lambda x: F.glu(x[:, :6], 1), a, grad=True)
    case(s, "prelu threshold", lambda x: [F.prelu(x, torch.tensor([.3], device=x.device)), F.threshold(x, .1, 3.)], a)
    for n in "sigmoid tanh exp sqrt rsqrt log".split():
        case(s, n, getattr(torch, n), p, grad=True, tol=1e-4)
    s = "softmax, losses, norms, embedding"
    t = torch.tensor([1, 2, 0, 6, 3])
    case(s, "softmax", lambda x: F.softmax(x, -1), a, grad=True)
    case(s, "log_softmax", lambda x: F.log_softmax(x, 0), a, grad=True)
    case(s, "cross_entropy", lambda x, t: F.cross_entropy(x, t), a, t, grad=True)
    case(s, "cross_entropy smoothed", lambda x, t: F.cross_entropy(x, t, label_smoothing=.1, ignore_index=0), a, t, grad=True)
    case(s, "cross_entropy none", lambda x, t: F.cross_entropy(x, t, reduction="none"), a, t, grad=True)
    case(s, "nll_loss", lambda x, t: F.nll_loss(x, t, reduction="sum"), a, t, grad=True)
    for n in "mse_loss l1_loss smooth_l1_loss".split():
        case(s, n, getattr(F, n), a, b, grad=True)
    case(s, "bce", lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y.detach())), a, b, grad=True)
    case(s, "bce with logits", lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y.detach())), a, b, grad=True)
    case(s, "kl_div", lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y.detach(), 1), reduction="batchmean"), a, b, grad=True)
    case(s, "layer_norm", lambda x, y: F.layer_norm(x, (7,), y[0], y[1]), a, b, grad=True, tol=1e-4)
    case(s, "rms_norm", lambda x, y: F.rms_norm(x, (7,), y[0]), a, b, grad=True, tol=1e-4)
    case(s, "group_norm", lambda x, y: F.group_norm(x[:, :6].reshape(5, 6, 1), 2, y[0, :6], y[1, :6]), a, b, tol=1e-4)
    case(s, "embedding", lambda w, k: [F.embedding(k, w), F.embedding(k, w, padding_idx=1)], a, torch.tensor([[1, 2], [0, 1]]), grad=True)
    q = torch.randn(2, 3, 5, 8)
    case(s, "scaled_dot_product_attention", lambda q: F.scaled_dot_product_attention(q, q, q), q, grad=True, tol=1e-4)
    case(s, "the same, causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q, grad=True, tol=1e-4)
    s = "lists of tensors"
    for name, f in {
        "add": lambda x, y: torch._foreach_add([x, y], [y, x], alpha=2), "mul": lambda x, y: torch._foreach_mul([x, y], 2.),
        "sqrt": lambda x, y: torch._foreach_sqrt([x.abs(), y.abs()]), "norm": lambda x, y: torch._foreach_norm([x, y]),
        "div": lambda x, y: torch._foreach_div([x], [y]), "addcdiv": lambda x, y: torch._foreach_addcdiv([x], [y], [y.abs() + 1], .3),
        "addcmul": lambda x, y: torch._foreach_addcmul([x], [y], [y], .3), "lerp": lambda x, y: torch._foreach_lerp([x], [y], .3),
        "neg exp": lambda x, y: [*torch._foreach_neg([x]), *torch._foreach_exp([x])], "maximum": lambda x, y: torch._foreach_maximum([x], .3),
        "pow": lambda x, y: torch._foreach_pow([x.abs()], 2.), "sub": lambda x, y: torch._foreach_sub([x], [y]),
        "reciprocal": lambda x, y: torch._foreach_reciprocal([y])}.items():
        case(s, name, f, a, b)


@check("random numbers", "moments of rand, randn, dropout; ranges")
def _():
    x, y = torch.rand(20000, device="npu"), torch.randn(20000, device="npu")
    near(x.mean(), torch.tensor(.5), .02), near(y.mean(), torch.tensor(0.), .03), near(y.std(), torch.tensor(1.), .03)
    near(F.dropout(torch.ones(20000, device="npu"), .3).mean(), torch.tensor(1.), .03)
    near(torch.randperm(50, device="npu").sort()[0], torch.arange(50))
    k = torch.randint(2, 5, (500,), device="npu")
    assert k.min().item() == 2 and k.max().item() == 4


@check("memory and streams", "streams overlap by events")
def _():
    s, a = torch.npu.Stream(), torch.randn(64, 64).npu()
    e0, e1 = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    e0.record()
    s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        b = a @ a
        b.record_stream(s)
    torch.npu.current_stream().wait_stream(s)
    c = b + 1
    e1.record()
    e1.synchronize()
    near(a.cpu() @ a.cpu() + 1, c, 1e-4)
    assert e0.elapsed_time(e1) >= 0 and e1.query()


@check("memory and streams", "pinned copies")
def _():
    h, o = torch.randn(1000).pin_memory(), torch.empty(1000).pin_memory()
    d = h.to("npu", non_blocking=True)
    o.copy_(d, non_blocking=True)
    torch.npu.synchronize()
    near(h, o, 0)


@check("memory and streams", "allocator statistics")
def _():
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, device="npu")
    assert torch.npu.memory_allocated() - before >= 4 << 20 and torch.npu.max_memory_allocated() >= 4 << 20
    del x
    assert torch.npu.memory_allocated() == before and torch.npu.memory_stats()["allocation.all.current"] >= 0
    torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total


def two(f, *args, tol=5e-5):
    """f(device, *leaves) on both devices: outputs and gradients."""
    sides = []
    for device in ("cpu", "npu"):
        leaves = [x.clone().to(device).requires_grad_() for x in args]
        out = f(device, *leaves)
        out.float().square().sum().backward()
        sides.append([out, *[x.grad for x in leaves]])
    for x, y in zip(*sides):
        near(x.float(), y.float(), tol)


@check("fused operators", "npu_rms_norm and backward")
def _():
    two(lambda d, x, g: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g if d == "cpu" else torch_npu.npu_rms_norm(x, g, 1e-6)[0], torch.randn(4, 16), torch.rand(16))


@check("fused operators", "npu_swiglu and backward")
def _():
    two(lambda d, x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1] if d == "cpu" else torch_npu.npu_swiglu(x, dim=-1), torch.randn(4, 16))


@check("fused operators", "npu_rotary_mul and backward")
def _():
    c, s = torch.randn(1, 5, 1, 64), torch.randn(1, 5, 1, 64)
    half = lambda x: torch.cat([-x[..., 32:], x[..., :32]], -1)
    two(lambda d, x: x * c + half(x) * s if d == "cpu" else torch_npu.npu_rotary_mul(x, c.npu(), s.npu()), torch.randn(2, 5, 3, 64))


def attention(layout, causal=True, groups=4):
    B, N, S, D = 2, 4, 7, 16
    to = {"BNSD": lambda t: t, "BSND": lambda t: t.transpose(1, 2).contiguous(), "BSH": lambda t: t.transpose(1, 2).reshape(B, S, -1),
          "SBH": lambda t: t.permute(2, 0, 1, 3).reshape(S, B, -1)}[layout]
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1).npu() if causal else None

    def f(d, q, k, v):
        if d == "cpu":
            k, v = (t.repeat_interleave(N // groups, 1) for t in (k, v))
            return to(F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        return torch_npu.npu_fusion_attention(to(q), to(k), to(v), head_num=N, input_layout=layout, scale=D ** -.5, atten_mask=mask, sparse_mode=2 if causal else 0)[0]
    two(f, torch.randn(B, N, S, D), torch.randn(B, groups, S, D), torch.randn(B, groups, S, D))


for _layout in ("BNSD", "BSND", "BSH", "SBH"):
    check("fused operators", f"npu_fusion_attention {_layout}, causal, and backward")(lambda l=_layout: attention(l))
check("fused operators", "npu_fusion_attention without a mask")(lambda: attention("BSND", False))
check("fused operators", "npu_fusion_attention with grouped keys")(lambda: attention("BSH", True, 2))


@check("fused operators", "npu_fusion_attention of packed sequences (TND)")
def _():
    ends = [4, 9]
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1).npu()

    def f(d, q, k, v):
        if d != "cpu":
            return torch_npu.npu_fusion_attention(q, k, v, head_num=2, input_layout="TND", scale=.25, atten_mask=mask, sparse_mode=2, actual_seq_qlen=ends, actual_seq_kvlen=ends)[0]
        out, s = [], 0
        for e in ends:
            out.append(F.scaled_dot_product_attention(*[t[s:e].transpose(0, 1)[None] for t in (q, k, v)], scale=.25, is_causal=True)[0].transpose(0, 1))
            s = e
        return torch.cat(out)
    two(f, torch.randn(9, 2, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 16))


@check("fused operators", "npu_grouped_matmul")
def _():
    a, w = torch.randn(6, 8), torch.randn(3, 8, 5)
    y = torch_npu.npu_grouped_matmul([a.npu()], [w.npu()], group_list=torch.tensor([2, 3, 6]).npu(), split_item=3, group_type=0)[0]
    near(torch.cat([a[:2] @ w[0], a[2:3] @ w[1], a[3:] @ w[2]]), y)


@check("fused operators", "npu_moe_token_permute, unpermute and backward")
def _():
    i = torch.randint(0, 4, (5, 2))

    def f(d, t, p):
        t, p = t.bfloat16(), p.bfloat16()
        if d == "cpu":
            return (t.float() * p.float().sum(1, keepdim=True))
        x, order = torch_npu.npu_moe_token_permute(t, i.npu())
        return torch_npu.npu_moe_token_unpermute(x, order, p)
    two(f, torch.randn(5, 8), torch.rand(5, 2), tol=4e-2)


@check("fused operators", "npu_moe_gating_top_k_softmax")
def _():
    x = torch.randn(3, 8)
    y, e, r = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), k=2)
    wy, we = x.softmax(-1).topk(2)
    near(wy, y), near(we, e), near(torch.arange(6).reshape(2, 3).t(), r)


@check("fused operators", "npu_apply_adam_w")
def _():
    p, g = torch.randn(8), torch.randn(8)
    x, m, v = p.npu(), torch.zeros(8).npu(), torch.zeros(8).npu()
    torch_npu.npu_apply_adam_w(1., 1., 1e-2, .01, .9, .999, 1e-8, g.npu(), None, False, False, out=(x, m, v))
    q = nn.Parameter(p.clone())
    q.grad = g
    torch.optim.AdamW([q], 1e-2).step()
    near(q, x)


class Block(nn.Module):
    def __init__(self, h, n):
        super().__init__()
        self.n, self.l1, self.l2 = n, nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.o, self.u, self.d = nn.Linear(h, 3 * h), nn.Linear(h, h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.l1(x)).reshape(b, t, 3, self.n, h // self.n).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2)) / math.sqrt(h // self.n)
        a = a.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1), float("-inf")).softmax(-1)
        x = x + self.o((a @ v).transpose(1, 2).reshape(b, t, h))
        return x + self.d(F.gelu(self.u(self.l2(x))))


class Model(nn.Module):
    def __init__(self, v=50, h=32, layers=2):
        super().__init__()
        self.e, self.b = nn.Embedding(v, h), nn.ModuleList([Block(h, 4) for _ in range(layers)])
        self.n, self.h = nn.LayerNorm(h), nn.Linear(h, v, bias=False)

    def forward(self, x):
        y = self.e(x)
        for b in self.b:
            y = b(y)
        return self.h(self.n(y))


def train(make):
    torch.manual_seed(1)
    cpu = Model()
    npu = copy.deepcopy(cpu).npu()
    oc, on = make(cpu.parameters()), make(npu.parameters())
    for step in range(10):
        x = torch.randint(0, 50, (2, 17))
        losses = []
        for model, opt, device in ((cpu, oc, "cpu"), (npu, on, "npu")):
            y = x.to(device)
            opt.zero_grad()
            loss = F.cross_entropy(model(y[:, :-1]).reshape(-1, 50), y[:, 1:].reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.)
            opt.step()
            losses.append(loss.detach().cpu())
        near(*losses, 1e-5)


for _name, _make in {"AdamW": lambda p: torch.optim.AdamW(p, 1e-2, foreach=False), "AdamW, lists": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
                     "AdamW, fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True), "SGD with momentum": lambda p: torch.optim.SGD(p, .1, momentum=.9)}.items():
    check("ten training steps of a small transformer", _name)(lambda m=_make: train(m))


@check("training", "autocast in bf16")
def _():
    l, x = nn.Linear(16, 16), torch.randn(4, 16)
    n = copy.deepcopy(l).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        y = n(x.npu())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = l(x)
    assert y.dtype == torch.bfloat16
    near(z.float(), y.float(), 2e-2)


@check("training", "gradient scaler")
def _():
    l = nn.Linear(16, 4).npu()
    o, s = torch.optim.SGD(l.parameters(), .1), torch.npu.amp.GradScaler(init_scale=64.)
    with torch.autocast("npu", dtype=torch.float16):
        loss = l(torch.randn(4, 16).npu()).float().square().mean()
    before = l.weight.detach().clone()
    s.scale(loss).backward()
    s.step(o)
    s.update()
    assert not torch.equal(before, l.weight)


@check("training", "activation checkpointing")
def _():
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(2)
    l = nn.Linear(16, 16).npu()
    x = torch.randn(4, 16).npu()
    grads = []
    for f in (lambda t: F.gelu(l(t)), lambda t: checkpoint(lambda u: F.gelu(l(u)), t, use_reentrant=False)):
        y = x.clone().requires_grad_()
        f(y).square().sum().backward()
        grads.append(y.grad)
    near(*grads)


@check("training", "profiler writes a trace")
def _():
    folder = tempfile.mkdtemp()
    with torch_npu.profiler.profile(on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(folder)) as p:
        (torch.randn(4, 4).npu() @ torch.randn(4, 4).npu()).sum().item()
        p.step()
    assert any("trace_view.json" in files for _, _, files in os.walk(folder))


def processes(count, port, part="all"):
    home = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK_PART=part)
    ranks = [subprocess.Popen([sys.executable, __file__], env=dict(home, RANK=str(r), LOCAL_RANK=str(r)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(count)]
    texts = [rank.communicate(timeout=400)[0] for rank in ranks]
    for rank, text in zip(ranks, texts):
        if rank.returncode != 0 or "rank done" not in text:
            raise AssertionError(text[-1500:])


check("processes", "two processes over hccl")(lambda: processes(2, 29613))
check("processes", "four processes over hccl")(lambda: processes(4, 29617))
check("processes", "two processes, products fused with collectives")(lambda: processes(2, 29633, "fused"))
check("processes", "two processes, products fused with exchanges")(lambda: processes(2, 29637, "fused exchanges"))
check("processes", "two processes, tokens to experts and back")(lambda: processes(2, 29641, "experts"))
check("processes", "four processes, several collectives in one call")(lambda: processes(4, 29621, "coalesced"))


def rank():
    import torch.distributed as dist
    r = int(os.environ["RANK"])
    torch.npu.set_device(r)
    dist.init_process_group("hccl")
    if dist.get_world_size() == 4:
        adapter_ranks.run(r, near, os.environ["RANK_PART"])
        dist.destroy_process_group()
        print("rank done")
        return
    if os.environ["RANK_PART"] != "all":
        adapter_fused.run(r, near, os.environ["RANK_PART"])
        dist.destroy_process_group()
        print("rank done")
        return
    x = torch.arange(4.).npu() + r
    dist.all_reduce(x)
    near(torch.tensor([1., 3., 5., 7.]), x)
    o = [torch.empty(2).npu() for _ in range(2)]
    dist.all_gather(o, torch.full((2,), float(r)).npu())
    near(torch.tensor([[0., 0.], [1., 1.]]), torch.stack(o))
    b = torch.full((3,), float(r)).npu()
    dist.broadcast(b, 1)
    near(torch.ones(3), b)
    s = torch.empty(2).npu()
    dist.reduce_scatter_tensor(s, torch.arange(4.).npu())
    near(torch.arange(4.)[2 * r:2 * r + 2] * 2, s)
    a = torch.empty(4).npu()
    dist.all_to_all_single(a, torch.arange(4.).npu() + 10 * r)
    near(torch.tensor([0., 1., 10., 11.]) + 2 * r, a)
    t = torch.full((2,), 7.).npu()
    dist.send(t, 1) if r == 0 else dist.recv(t.zero_(), 0)
    near(torch.full((2,), 7.), t)
    got = torch.empty(2).npu()
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), float(r)).npu(), 1 - r), dist.P2POp(dist.irecv, got, 1 - r)]):
        w.wait()
    near(torch.full((2,), 1. - r), got)
    g = dist.new_group([0, 1])
    y = torch.full((1,), float(r)).npu()
    dist.all_reduce(y, op=dist.ReduceOp.MAX, group=g)
    near(torch.ones(1), y)
    dist.barrier()
    # Gradients of the whole batch, half of it on each rank.
    torch.manual_seed(3)
    whole, data = nn.Linear(4, 2), torch.randn(6, 4)
    ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(whole).npu(), device_ids=[r])
    ddp(data[3 * r:3 * r + 3].npu()).square().mean().backward()
    whole(data).square().mean().backward()
    near(whole.weight.grad, ddp.module.weight.grad)
    adapter_cases.processes(r, near)
    dist.destroy_process_group()
    print("rank done")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="sections whose name begins so")
    parser.add_argument("--case", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="names of the cases")
    parser.add_argument("--verbose", action="store_true", help="stack traces")
    args = parser.parse_args()
    operators()
    adapter_cases.register(case, check, near)
    adapter_inference.register(case, check, near)
    adapter_scripts.register(check, near)
    adapter_layers.register(check, near)
    adapter_programs.register(check, near)
    print(f"torch {torch.__version__}, torch_npu {torch_npu.__version__}, {torch.npu.device_count()} devices, available: {torch.npu.is_available()}\n")
    print("| section | cases | equal | refused | wrong |\n|---|---|---|---|---|")
    notes, bad = [], 0
    older = is_older() and not os.environ.get("TORCH_NPU_HERE")
    for section, cases in CASES.items():
        if args.only and not section.startswith(args.only):
            continue
        cases = [c for c in cases if not args.case or args.case in c[0]]
        if args.list:
            print(*[c[0] for c in cases], sep="\n")
            continue
        count = {"equal": 0, "refused": 0, "wrong": 0}
        for name, f in cases:
            why = OLDER.get((section, name)) if older else None
            if why and fails_elsewhere(section, name):
                count["refused"] += 1
                notes.append(f"not with 8.1: {section}, {name}: {why}")
                continue
            try:
                f()
                what = "equal"
            except Exception as e:
                what = "refused" if "561003" in str(e) or "161002" in str(e) else "wrong"
                notes.append(f"{what}: {section}, {name}: {(str(e) or repr(e)).splitlines()[0][:300]}")
                if args.verbose:
                    traceback.print_exc()
            count[what] += 1
            bad += what != "equal"
        print(f"| {section} | {len(cases)} | {count['equal']} | {count['refused']} | {count['wrong']} |", flush=True)
    print()
    for note in notes:
        print(note)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    rank() if os.environ.get("RANK") else main()
