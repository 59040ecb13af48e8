"""More cases for `torch_npu.py`: networks, functions, indices, matrices, optimizers, streams, two processes.

`register` is called with the functions of that file: `case` compares a function of tensors on both devices, `check` adds a
case of its own, `near` compares two tensors.
"""
import copy, os, tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

R = torch.randn


class Images(nn.Module):
    """A convolutional classifier with everything such have."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.f = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3, stride=2), nn.Linear(16, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b(self.a(x))), 2)
        return self.f(F.adaptive_avg_pool2d(F.relu(self.c(x)), 1).flatten(1))


class Language(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.e, self.l, self.o = nn.Embedding(11, 8), kind(8, 8, 2, batch_first=True), nn.Linear(8, 11)

    def forward(self, x):
        return self.o(self.l(self.e(x))[0])


class Patches(nn.Module):
    """A vision transformer."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.p, self.c, self.q = nn.Conv2d(3, 16, 4, 4), nn.Parameter(R(1, 1, 16)), nn.Parameter(R(1, 10, 16))
        self.t, self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 5)

    def forward(self, x):
        x = self.p(x).flatten(2).transpose(1, 2)
        return self.h(self.t(torch.cat([self.c.expand(x.shape[0], -1, -1), x], 1) + self.q)[:, 0])


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.o = nn.EmbeddingBag(11, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.o(self.e(x))


class Painter(nn.Module):
    """An autoencoder that enlarges in two ways."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.u, self.n = nn.Conv2d(3, 6, 3, 2, 1), nn.ConvTranspose2d(6, 3, 4, 2, 1), nn.Upsample(scale_factor=2), nn.GroupNorm(1, 3)

    def forward(self, x):
        y = torch.sigmoid(self.b(F.leaky_relu(self.a(x))))
        return self.n(y) + F.avg_pool2d(self.u(x), 2)


def flat(r):
    return [r] if torch.is_tensor(r) else [x for y in r for x in flat(y)]


def networks(check, near):
    """Forward, gradients, buffers, and the weights after steps down the gradient."""
    def add(section, name, make, *args, tol=1e-4, steps=1):
        @check(section, name)
        def _():
            torch.manual_seed(2)
            m = make()
            n = copy.deepcopy(m).npu()
            for _ in range(steps):
                a, b = flat(m(*args)), flat(n(*[x.npu() for x in args]))
                for x, y in zip(a, b, strict=True):
                    near(x, y, tol)
                for out in (a, b):
                    sum((x * x).mean() for x in out).backward()
                for p, q in zip(m.parameters(), n.parameters()):
                    near(p.grad, q.grad, tol)
                    with torch.no_grad():
                        p -= 0.1 * p.grad
                        q -= 0.1 * q.grad
                    p.grad = q.grad = None
            for x, y in zip(m.buffers(), n.buffers()):
                near(x, y, tol)

    torch.manual_seed(1)
    image, line, volume, rows = R(2, 3, 12, 12), R(2, 3, 16), R(1, 2, 5, 6, 7), R(5, 7)
    s = "layers"
    add(s, "Conv2d", lambda: nn.Conv2d(3, 8, 3, padding=1), image)
    add(s, "Conv2d with stride and dilation", lambda: nn.Conv2d(3, 4, 3, stride=2, dilation=2, bias=False), image)
    add(s, "Conv2d by channel", lambda: nn.Conv2d(3, 6, 3, groups=3), image)
    add(s, "Conv1d", lambda: nn.Conv1d(3, 5, 4, padding=2), line)
    add(s, "Conv3d", lambda: nn.Conv3d(2, 3, 3), volume)
    add(s, "ConvTranspose2d", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), image)
    add(s, "ConvTranspose1d", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), line)
    add(s, "BatchNorm2d", lambda: nn.BatchNorm2d(3), image, steps=3)
    add(s, "BatchNorm1d", lambda: nn.BatchNorm1d(7), rows, steps=2)
    add(s, "BatchNorm2d in evaluation", lambda: nn.BatchNorm2d(3).eval(), image)
    add(s, "GroupNorm", lambda: nn.GroupNorm(2, 4), R(2, 4, 5, 5))
    add(s, "InstanceNorm2d", lambda: nn.InstanceNorm2d(3, affine=True), image)
    add(s, "LayerNorm", lambda: nn.LayerNorm((5, 7)), R(3, 5, 7))
    add(s, "RMSNorm", lambda: nn.RMSNorm(7), rows)
    add(s, "LSTM", lambda: nn.LSTM(7, 6, 2, batch_first=True), R(3, 5, 7))
    add(s, "LSTM both ways", lambda: nn.LSTM(7, 6, bidirectional=True), R(5, 3, 7))
    add(s, "GRU", lambda: nn.GRU(7, 6, 2, batch_first=True), R(3, 5, 7))
    add(s, "GRU both ways", lambda: nn.GRU(7, 6, bidirectional=True), R(5, 3, 7))
    add(s, "RNN", lambda: nn.RNN(7, 6), R(5, 3, 7))
    add(s, "GRUCell", lambda: nn.GRUCell(7, 6), R(3, 7))
    add(s, "MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), R(2, 5, 8), R(2, 5, 8), R(2, 5, 8))
    add(s, "TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), R(2, 5, 8))
    add(s, "TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0), R(5, 2, 8), R(4, 2, 8))
    add(s, "Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0), R(5, 2, 8), R(4, 2, 8))
    s, words = "networks, some steps", torch.randint(0, 11, (3, 6))
    add(s, "images", Images, image, steps=4, tol=5e-4)
    add(s, "language by LSTM", lambda: Language(nn.LSTM), words, steps=3)
    add(s, "language by GRU", lambda: Language(nn.GRU), words, steps=3)
    add(s, "vision transformer", Patches, image, steps=3, tol=2e-3)
    add(s, "bags of words", Bags, words, steps=3)
    add(s, "autoencoder", Painter, image, steps=3)


def functions(case):
    torch.manual_seed(4)
    a, b, image, line, volume = R(5, 7), R(5, 7), R(2, 3, 12, 12), R(2, 3, 16), R(1, 2, 5, 6, 7)
    s = "pools, padding, resizing"
    for name, x, f in [
        ("max_pool2d", image, lambda x: F.max_pool2d(x, 2)), ("max_pool2d with padding", image, lambda x: F.max_pool2d(x, 3, 2, 1)),
        ("avg_pool2d", image, lambda x: F.avg_pool2d(x, 2)), ("avg_pool2d without padding", image, lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        ("adaptive_avg_pool2d", image, lambda x: F.adaptive_avg_pool2d(x, 5)), ("adaptive_max_pool2d", image, lambda x: F.adaptive_max_pool2d(x, 3)),
        ("max_pool1d", line, lambda x: F.max_pool1d(x, 2)), ("avg_pool1d", line, lambda x: F.avg_pool1d(x, 2)),
        ("adaptive_avg_pool1d", line, lambda x: F.adaptive_avg_pool1d(x, 4)), ("max_pool3d", volume, lambda x: F.max_pool3d(x, 2)),
        ("avg_pool3d", volume, lambda x: F.avg_pool3d(x, 2)), ("local_response_norm", image, lambda x: F.local_response_norm(x, 3)),
        ("interpolate linear", line, lambda x: F.interpolate(x, size=9, mode="linear")),
        ("interpolate corners", image, lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True)),
        ("pad of a line", line, lambda x: F.pad(x, (1, 2), mode="reflect")),
        ("unfold and fold", image, lambda x: [F.unfold(x, 3, padding=1), F.fold(F.unfold(x, 2, stride=2), (12, 12), 2, stride=2)]),
        ("pixel_shuffle", R(1, 4, 4, 4), lambda x: [F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)]),
    ]:
        case(s, name, f, x, tol=1e-4, grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        case(s, f"interpolate {mode}", lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), image, tol=1e-4, grad=True)
    for mode in ("reflect", "replicate", "circular"):
        case(s, f"pad {mode}", lambda x, m=mode: F.pad(x, (1, 2, 2, 1), mode=m), image, grad=True)
    case(s, "grid_sample", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), image, R(2, 4, 4, 2), tol=1e-4, grad=True)
    case(s, "affine_grid", lambda x: F.affine_grid(x, (2, 3, 4, 4), align_corners=False), R(2, 2, 3), tol=1e-4, grad=True)
    case(s, "channel_shuffle", lambda x: F.channel_shuffle(x, 2), R(1, 4, 4, 4))
    s = "functions"
    for n in "relu6 hardswish hardsigmoid hardtanh elu selu celu mish softplus softsign tanhshrink logsigmoid leaky_relu softshrink hardshrink".split():
        case(s, n, getattr(F, n), a * 2, tol=4e-4, grad=True)
    case(s, "rrelu in evaluation", lambda x: F.rrelu(x, training=False), a, grad=True)
    case(s, "prelu", F.prelu, a, torch.tensor([.2]), grad=True)
    for n in "mse_loss l1_loss smooth_l1_loss huber_loss".split():
        for r in ("mean", "sum", "none"):
            case(s, f"{n} {r}", lambda x, y, n=n, r=r: getattr(F, n)(x, y, reduction=r), a, b, grad=True)
    t = torch.tensor([0, 3, 6, 2, 1])
    ones = torch.ones_like
    for name, f in [
        ("binary_cross_entropy", lambda x, y: F.binary_cross_entropy(x.sigmoid(), torch.full_like(x, .3))),
        ("binary_cross_entropy_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, torch.full_like(x, .3), pos_weight=ones(x[0]) * 2)),
        ("kl_div", lambda x, y: F.kl_div(F.log_softmax(x, 1), torch.full_like(x, 1 / 7), reduction="batchmean")),
        ("margins", lambda x, y: [F.margin_ranking_loss(x, y, ones(x)), F.hinge_embedding_loss(x, ones(x)), F.soft_margin_loss(x, ones(x))]),
        ("cosines", lambda x, y: [F.cosine_embedding_loss(x, y, ones(x[:, 0])), F.cosine_similarity(x, y)]),
        ("triplets", lambda x, y: [F.triplet_margin_loss(x, y, x * y), F.pairwise_distance(x, y)]),
        ("likelihoods", lambda x, y: [F.poisson_nll_loss(x, ones(x)), F.gaussian_nll_loss(x, y, ones(x))]),
        ("soft targets", lambda x, y: F.cross_entropy(x, y.softmax(1))),
        ("glu, softmin, normalize", lambda x, y: [F.glu(x[:4], 0), F.softmin(x, 1), F.normalize(y, dim=1)]),
        ("bilinear", lambda x, y: F.bilinear(x, y, ones(x[0])[None, :, None].expand(3, 7, 7) * .1)),
    ]:
        case(s, name, f, a, b, tol=1e-4, grad=True)
    case(s, "cross_entropy with weights and smoothing",
         lambda x, t: F.cross_entropy(x, t, weight=torch.arange(1, 8, device=x.device).float(), label_smoothing=.1), a, t, grad=True)
    case(s, "cross_entropy of images", F.cross_entropy, R(2, 5, 4, 4), torch.randint(0, 5, (2, 4, 4)), grad=True)
    case(s, "ctc_loss", lambda x: F.ctc_loss(F.log_softmax(x, 2), torch.tensor([[1, 2], [2, 1]], device=x.device), torch.tensor([6, 6]), torch.tensor([2, 2])),
         R(6, 2, 4), tol=1e-4, grad=True)
    for mode in ("sum", "mean"):
        case(s, f"embedding_bag {mode}", lambda w, i, m=mode: F.embedding_bag(i, w, mode=m), a, torch.tensor([[0, 1], [4, 4]]), grad=True)
    for name, f in [("plain", {}), ("causal", {"is_causal": True})]:
        case(s, f"scaled_dot_product_attention {name}", lambda q, k, v, f=f: F.scaled_dot_product_attention(q, k, v, **f),
             R(2, 2, 5, 8), R(2, 2, 5, 8), R(2, 2, 5, 8), tol=1e-4, grad=True)


def indices(case):
    torch.manual_seed(5)
    a, b, k = R(5, 7), R(5, 7), torch.tensor([3, 1, 1])
    i, j = torch.randint(-9, 9, (5, 7)), torch.randint(1, 9, (5, 7))
    s = "indices and sets"
    at = torch.randint(0, 7, (5, 3))
    for reduce in ("sum", "amax", "mean"):
        case(s, f"scatter_reduce {reduce}", lambda x, k, r=reduce: x.scatter_reduce(1, k, torch.ones_like(x[:, :3]), r), a, at)
    case(s, "gradients of indexing", lambda x, k: [x[k], x[:, k], x[k, k], x[1:4:2], x.gather(1, k[None]), x.index_select(0, k)], a, k, grad=True)
    case(s, "gradients of writing", lambda x, k, v: [x.index_put((k,), v, accumulate=True), x.index_add(0, k, v, alpha=2)], a, k, R(3, 7), grad=True)
    case(s, "masks", lambda x, v: [x.masked_scatter(x > 0, v), x.masked_select(x > 0), x.masked_fill(x > 0, 2.)], a, R(35))
    case(s, "sets", lambda x: [torch.unique(x), torch.unique_consecutive(x.flatten()), torch.unique(torch.cat([x, x]), dim=0)], j)
    case(s, "order", lambda x: [x.sort(1, descending=True)[0], x.topk(3, 1)[0], torch.msort(x), torch.quantile(x, .3), x.kthvalue(2, 1)[0]], a)
    case(s, "running", lambda x: [x.cumsum(1), x.cumprod(1), x.cummax(1)[0], x.diff(dim=1), torch.trapezoid(x, dim=1)], a)
    case(s, "diagonals", lambda x: [torch.diag(x[0]), torch.diagonal(x), torch.diag_embed(x), x.tril(-1), torch.block_diag(x, x)], a, grad=True)
    case(s, "turned", lambda x: [x.roll((1, 2), (0, 1)), torch.rot90(x), x.fliplr(), x.movedim(0, 1), x.unfold(1, 3, 2)], a, grad=True)
    case(s, "repeated", lambda x: [x.tile(2), x.repeat_interleave(torch.tensor([1, 2, 0, 1, 3], device=x.device), 0), torch.vander(x[0])], a)
    case(s, "gradient of repeating", lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1, 3], device=x.device), 0), a, grad=True)
    case(s, "reductions", lambda x: [*torch.std_mean(x, 1), x.var(1, unbiased=False), x.prod(1), x.amax(1), x.logsumexp(1), x.norm(3, 1)], a, grad=True)
    case(s, "written in place", lambda x: (lambda z: (z[1:3].mul_(2), z[:, 0].zero_(), z[0].copy_(z[1]), z[:, 1:3].fill_(7), z)[-1])(x.clone()), a)
    case(s, "integers", lambda x, y: [x & y, x | y, x ^ y, ~x, x << 1, y >> 1, torch.gcd(x, y), torch.lcm(x, y)], i, j)
    case(s, "mixed types", lambda x, y: [x + y, x.half() + x, x.bfloat16() * x, y / 3, y // 2, y ** 2, x > y], a, j, tol=1e-2)
    case(s, "complex numbers", lambda x, y: [torch.complex(x, y).abs(), torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)), torch.fft.rfft(x).abs()],
         a, b, tol=1e-4)
    m = R(4, 4)
    m = m @ m.t() + 4 * torch.eye(4)
    s = "matrices"
    for name, f in [
        ("inv", torch.linalg.inv), ("det", torch.linalg.det), ("cholesky", torch.linalg.cholesky), ("svdvals", torch.linalg.svdvals),
        ("solve", lambda x: torch.linalg.solve(x, x[:, :2].contiguous())), ("qr", lambda x: [torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1]]),
        ("pinv", torch.linalg.pinv), ("matrix_power", lambda x: torch.linalg.matrix_power(x / 4, 3)), ("eigvalsh", torch.linalg.eigvalsh),
        ("solve_triangular", lambda x: torch.linalg.solve_triangular(x.triu(), x, upper=True)), ("matrix_norm", torch.linalg.matrix_norm),
    ]:
        case(s, name, f, m, tol=2e-3)
    case(s, "cross", lambda x, y: torch.linalg.cross(x[:3, :3], y[:3, :3]), a, b, grad=True)
    case(s, "einsum", lambda x, y: [torch.einsum("ij,kj->ik", x, y), torch.einsum("ij,ij->i", x, y)], a, b, grad=True)
    case(s, "cdist, renorm, kron", lambda x, y: [torch.cdist(x, y), torch.renorm(x, 2, 0, 1.), torch.kron(x[:2, :2], y[:2, :2])], a, b, tol=1e-4)
    case(s, "second derivative", lambda x: torch.autograd.functional.hessian(lambda z: (z ** 3).sum(), x[0, :3]), a, tol=1e-3)


def optimizers(check, near):
    O = torch.optim
    makers = {
        "SGD": lambda p: O.SGD(p, .1, momentum=.9, nesterov=True, weight_decay=.01), "Adam": lambda p: O.Adam(p, .01, amsgrad=True),
        "AdamW": lambda p: O.AdamW(p, .01, foreach=True), "AdamW one by one": lambda p: O.AdamW(p, .01, foreach=False),
        "Adagrad": lambda p: O.Adagrad(p, .05), "RMSprop": lambda p: O.RMSprop(p, .01, momentum=.5), "Adadelta": lambda p: O.Adadelta(p),
        "Adamax": lambda p: O.Adamax(p, .01), "NAdam": lambda p: O.NAdam(p, .01), "RAdam": lambda p: O.RAdam(p, .01), "Rprop": lambda p: O.Rprop(p, .01),
    }

    def add(name, make, other=None):
        @check("optimizers, five steps", name)
        def _():
            torch.manual_seed(3)
            m = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
            n = copy.deepcopy(m).npu()
            x, t = R(6, 7), torch.randint(0, 3, (6,))
            sides = [(m, make(m.parameters()), "cpu"), (n, (other or make)(n.parameters()), "npu")]
            for _ in range(5):
                for net, o, d in sides:
                    o.zero_grad()
                    F.cross_entropy(net(x.to(d)), t.to(d)).backward()
                    o.step()
            for p, q in zip(m.parameters(), n.parameters()):
                near(p, q, 1e-4)

    for name, make in makers.items():
        add(name, make)
    import torch_npu
    add("AdamW fused", lambda p: O.AdamW(p, .01), lambda p: O.AdamW(p, .01, fused=True))
    add("NpuFusedAdamW", lambda p: O.AdamW(p, .01), lambda p: torch_npu.optim.NpuFusedAdamW(p, .01))


def devices(check, near):
    s = "streams, devices, files"

    @check(s, "streams that overlap")
    def _():
        one, two, event = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()
        x = R(64, 64).npu()
        one.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(one):
            y = x @ x
            event.record()
        two.wait_event(event)
        with torch.npu.stream(two):
            z = y + 1
        y.record_stream(two)
        torch.npu.current_stream().wait_stream(two)
        near((x.cpu() @ x.cpu() + 1) * 2, z * 2, 1e-3)

    @check(s, "gradients of two devices")
    def _():
        m, x = nn.Linear(7, 3), R(6, 7)
        parts = [copy.deepcopy(m).to(f"npu:{d}") for d in (0, 1)]
        for d, n in enumerate(parts):
            n(x[d * 3:d * 3 + 3].to(f"npu:{d}")).square().sum().backward()
        m(x).square().sum().backward()
        near(m.weight.grad, parts[0].weight.grad + parts[1].weight.grad.to("npu:0"), 1e-4)

    @check(s, "page-locked batches")
    def _():
        x = R(10, 3)
        got = [q.to("npu", non_blocking=True) for (q,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 4, pin_memory=True)]
        near(x, torch.cat(got))

    @check(s, "saved and loaded")
    def _():
        m = Images().npu()
        o = torch.optim.AdamW(m.parameters())
        m(R(2, 3, 12, 12).npu()).sum().backward()
        o.step()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.pt")
            torch.save({"model": m.state_dict(), "optimizer": o.state_dict()}, path)
            there, here = (torch.load(path, map_location=d, weights_only=True) for d in ("npu", "cpu"))
        n = Images().npu()
        n.load_state_dict(there["model"])
        torch.optim.AdamW(n.parameters()).load_state_dict(there["optimizer"])
        for p, q in zip(m.parameters(), n.parameters()):
            near(p, q, 0)
        near(here["model"]["a.weight"], m.a.weight, 0)

    for dtype in (torch.bfloat16, torch.float16):
        @check(s, f"a network of images in mixed precision, {dtype}")
        def _(dtype=dtype):
            torch.manual_seed(4)
            m, x, losses = Images().npu(), R(2, 3, 12, 12).npu(), []
            o, scaler = torch.optim.SGD(m.parameters(), .1), torch.npu.amp.GradScaler(enabled=dtype == torch.float16)
            for _ in range(4):
                o.zero_grad()
                with torch.autocast("npu", dtype=dtype):
                    loss = F.cross_entropy(m(x), torch.tensor([1, 2]).npu())
                scaler.scale(loss).backward()
                scaler.unscale_(o)
                nn.utils.clip_grad_norm_(m.parameters(), 1.)
                scaler.step(o)
                scaler.update()
                losses.append(loss.item())
            assert losses[-1] < losses[0], losses


def register(case, check, near):
    networks(check, near)
    functions(case)
    indices(case)
    optimizers(check, near)
    devices(check, near)


def processes(r, near):
    """On each of two ranks: FSDP and DistributedDataParallel of a network of images against one process, objects, uneven parts."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    dev = f"npu:{r}"
    what = [{"a": 1}, "x"] if r == 0 else [None, None]
    dist.broadcast_object_list(what, 0)
    assert what == [{"a": 1}, "x"]
    all_of = [None, None]
    dist.all_gather_object(all_of, {"r": r})
    assert all_of == [{"r": 0}, {"r": 1}]
    for op, want in ((dist.ReduceOp.MIN, 1.), (dist.ReduceOp.PRODUCT, 2.), (dist.ReduceOp.AVG, 1.5)):
        x = torch.full((2,), r + 1., device=dev)
        dist.all_reduce(x, op)
        near(torch.full((2,), want), x)
    counts = [2, 1] if r == 0 else [2, 3]
    sends = [2, 2] if r == 0 else [1, 3]
    got = torch.empty(sum(counts), device=dev)
    dist.all_to_all_single(got, torch.arange(4., device=dev) + 10 * r, counts, sends)
    near(torch.tensor([0., 1., 10.] if r == 0 else [2., 3., 11., 12., 13.]), got)

    def train(m, o, data):
        for x in data:
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    torch.manual_seed(0)
    base, data = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), [R(4, 8) for _ in range(3)]
    alone = copy.deepcopy(base)
    train(alone, torch.optim.AdamW(alone.parameters(), .01), data)
    mine = [x[2 * r:2 * r + 2].to(dev) for x in data]
    m = FullyShardedDataParallel(copy.deepcopy(base).to(dev), device_id=torch.device(dev))
    train(m, torch.optim.AdamW(m.parameters(), .01), mine)
    with FullyShardedDataParallel.summon_full_params(m):
        for p, q in zip(alone.parameters(), m.parameters()):
            near(p, q, 1e-4)
    m = copy.deepcopy(base).to(dev)
    fully_shard(m, mesh=init_device_mesh("npu", (2,)))
    train(m, torch.optim.AdamW(m.parameters(), .01), mine)
    for p, q in zip(alone.parameters(), m.parameters()):
        near(p, q.full_tensor(), 1e-4)
    norm, x = nn.BatchNorm2d(3), R(4, 3, 4, 4)
    both = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(norm)).to(dev), device_ids=[r])
    y = both(x[2 * r:2 * r + 2].to(dev))
    near(norm(x)[2 * r:2 * r + 2], y, 1e-4)
    (y * y * y).sum().backward()
    (norm(x) ** 3).sum().backward()
    near(norm.weight.grad / 2, both.module.weight.grad, 1e-3)
