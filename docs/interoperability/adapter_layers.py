"""Layers, derivatives, indices, matrices, complex numbers and ordinary programs, for torch_npu.py: scripts as one would write them."""
import contextlib, copy, io, os, tempfile, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F


def R(*shape, seed=[0]):
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))


def register(check, near):
    def both(section, name, f, *args, tol=1e-4):
        """f(device, *arguments there) gives tensors, values or gradients: the same on both."""
        @check(section, name)
        def _():
            want, got = (list(f(d, *[a.detach().clone().to(d) if torch.is_tensor(a) else a for a in args])) for d in ("cpu", "npu"))
            assert len(want) == len(got)
            for a, b in zip(want, got):
                near(torch.as_tensor(a), torch.as_tensor(b), tol)

    def module(section, name, make, *inputs, tol=2e-4, call=lambda m, *x: m(*x), train=True):
        """Outputs and the gradients of every parameter and input."""
        @check(section, name)
        def _():
            torch.manual_seed(1)
            base, sides = make().train(train), []
            for device in ("cpu", "npu"):
                m = copy.deepcopy(base).to(device)
                leaves = [x.detach().clone().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
                out = call(m, *leaves)
                out = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(o)]
                sum((o * o).sum() for o in out).backward()
                sides.append([*out, *[x.grad for x in leaves if x.grad is not None], *[p.grad for p in m.parameters()]])
            for a, b in zip(*sides, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    near(a, b, tol)

    layers(both, module)
    derivatives(both, check, near)
    indices(both)
    algebra(both)
    complex_numbers(both)
    ordinary(check, near)
    tracing(check, near)


def small(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5))


def layers(both, module):
    s = "scripts: layers, forward and backward"
    x, pad = R(3, 7, 16), torch.zeros(3, 7, dtype=torch.bool)
    pad[1, 5:] = pad[2, 3:] = True
    causal = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    here = lambda m, t: t.to(next(m.parameters()).device)
    for first in (True, False):
        module(s, f"TransformerEncoder, norm_first={first}", lambda first=first: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0., batch_first=True, norm_first=first, activation="gelu"), 2, enable_nested_tensor=False), x,
               call=lambda m, x: m(x, mask=here(m, causal), src_key_padding_mask=here(m, pad)))
    module(s, "TransformerDecoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, 0., batch_first=True), 2), x, R(3, 5, 16), call=lambda m, x, y: m(x, y, tgt_mask=here(m, causal)))
    module(s, "Transformer", lambda: nn.Transformer(16, 4, 1, 1, 32, 0., batch_first=True), x, R(3, 5, 16))
    module(s, "MultiheadAttention with weights", lambda: nn.MultiheadAttention(16, 4, batch_first=True), x, call=lambda m, x: m(x, x, x, key_padding_mask=here(m, pad), average_attn_weights=False))
    module(s, "MultiheadAttention of other sizes", lambda: nn.MultiheadAttention(16, 4, kdim=8, vdim=6, add_bias_kv=True, batch_first=True), x, R(3, 5, 8), R(3, 5, 6), call=lambda m, x, k, v: m(x, k, v, need_weights=False)[0])
    for name, f in {
        "without a mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "by a mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool, device=q.device).tril(1)),
        "by numbers": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(36., device=q.device).reshape(6, 6) / 9, scale=.3),
        "grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    }.items():
        def attend(d, q, k, v, f=f):
            q, k, v = (t.requires_grad_() for t in (q, k, v))
            y = f(q, k, v)
            return [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]
        both(s, f"scaled_dot_product_attention {name}", attend, R(2, 4, 6, 8), R(2, 4, 6, 8), R(2, 4, 6, 8))
    for kind in ("RNN", "LSTM", "GRU"):
        for how in ({}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}):
            if kind == "RNN" or "bias" in how and kind == "GRU":
                how = {k: v for k, v in how.items() if k != "bias"}
            module(s, f"{kind} {how}", lambda kind=kind, how=how: getattr(nn, kind)(6, 5, **how), R(4, 3, 6), call=lambda m, x: m(x)[0])
    module(s, "cells", lambda: nn.ModuleList([nn.LSTMCell(6, 5), nn.GRUCell(6, 5), nn.RNNCell(6, 5)]), R(3, 6), call=lambda m, x: [*m[0](x), m[1](x), m[2](x)])

    def packed(m, x):
        # Without the input's own gradient: the adapter fills rows up on the way in, and reads them as not filled up on the way back.
        p = nn.utils.rnn.pack_padded_sequence(x.detach(), torch.tensor([4, 3, 1]))
        y, _ = m(p)
        return nn.utils.rnn.pad_packed_sequence(y)[0]
    module(s, "packed sequences", lambda: nn.LSTM(6, 5), R(4, 3, 6), call=packed)
    for n, size in ((1, (9,)), (2, (9, 8)), (3, (5, 6, 7))):
        conv, back = getattr(nn, f"Conv{n}d"), getattr(nn, f"ConvTranspose{n}d")
        module(s, f"Conv{n}d", lambda conv=conv: conv(4, 6, 3, stride=2, padding=1, groups=2), R(2, 4, *size))
        module(s, f"Conv{n}d with gaps, by channel", lambda conv=conv: conv(4, 4, 2, dilation=2, groups=4, bias=False), R(2, 4, *size))
        module(s, f"ConvTranspose{n}d", lambda back=back: back(4, 6, 3, stride=2, padding=1, output_padding=1), R(2, 4, *size), tol=1e-3)
        norm = getattr(nn, f"BatchNorm{n}d")
        module(s, f"BatchNorm{n}d", lambda norm=norm: norm(4), R(2, 4, *size), tol=1e-3)
        module(s, f"BatchNorm{n}d, evaluated", lambda norm=norm: norm(4), R(2, 4, *size), train=False)
        module(s, f"InstanceNorm{n}d", lambda n=n: getattr(nn, f"InstanceNorm{n}d")(4, affine=True), R(2, 4, *size), tol=1e-3)
    module(s, "Conv2d padded by reflection", lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), R(2, 3, 6, 6))
    for name, make in {"LayerNorm": lambda: nn.LayerNorm([7, 16]), "RMSNorm": lambda: nn.RMSNorm(16), "Bilinear": None, "PReLU": lambda: nn.PReLU(7), "Softmax": lambda: nn.Sequential(nn.Linear(16, 9), nn.LogSoftmax(-1))}.items():
        if make:
            module(s, name, make, x)
    module(s, "Bilinear", lambda: nn.Bilinear(5, 6, 4), R(3, 5), R(3, 6))
    module(s, "GroupNorm", lambda: nn.GroupNorm(2, 6), R(3, 6, 5, 4), tol=1e-3)
    for mode in ("sum", "mean", "max"):
        module(s, f"EmbeddingBag, {mode}", lambda mode=mode: nn.EmbeddingBag(9, 5, mode=mode), torch.tensor([1, 2, 8, 1, 0, 4]), torch.tensor([0, 2, 5]))
    module(s, "Embedding with padding, scaled", lambda: nn.Embedding(9, 5, padding_idx=2, scale_grad_by_freq=True), torch.tensor([[1, 2, 8], [1, 0, 4]]))
    for name, make in {"spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 9)), "weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 9))}.items():
        module(s, f"a parametrization, {name} norm", make, x)
    module(s, "images: unfold, fold, shuffle", lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.Unfold(3, padding=1), nn.Fold((4, 4), 3, padding=1)), R(2, 4, 4, 4), tol=1e-3)
    module(s, "pools", lambda: nn.Conv2d(3, 4, 1), R(2, 3, 8, 8), call=lambda m, x: [F.max_pool2d(m(x), 2), F.avg_pool2d(m(x), 3, 2, 1), F.adaptive_avg_pool2d(m(x), 3), F.lp_pool2d(m(x).abs() + 1, 2., 2)])


def derivatives(both, check, near):
    s = "scripts: derivatives"

    def second(d, x):
        x.requires_grad_()
        g, = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
        h, = torch.autograd.grad(g.square().sum(), x)
        return [g, h]
    both(s, "a gradient of a gradient", second, R(4, 5))
    both(s, "jacobian and hessian", lambda d, x: [torch.autograd.functional.jacobian(lambda t: t.cumsum(0) * t, x), torch.autograd.functional.hessian(lambda t: (t ** 3).sum(), x)], R(4))
    both(s, "func: grad, vmap, jacrev, jvp", lambda d, x: [torch.func.grad(lambda t: (t.tanh() ** 2).sum())(x), torch.func.vmap(lambda t: t @ t)(x), torch.func.jacrev(lambda t: t.exp() * t.sum())(x[0]),
                                                       torch.func.jvp(lambda t: t.sin(), (x,), (x,))[1]], R(4, 5))
    both(s, "gradients by sample", lambda d, w, x: [torch.func.vmap(torch.func.grad(lambda w, x: (x @ w).tanh().sum()), (None, 0))(w, x)], R(5, 3), R(4, 5))

    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(-.5, .5)

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            return g * (x.abs() < 1)

    def own(d, x):
        x.requires_grad_()
        (Clipped.apply(x) ** 2).sum().backward()
        return [x.grad]
    both(s, "a function of one's own", own, R(4, 5))

    def hooked(d, x):
        seen = []
        x.requires_grad_()
        y = x * 3
        y.register_hook(lambda g: g * 2)
        y.retain_grad()
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
        y.square().sum().backward()
        return [x.grad, y.grad, *seen]
    both(s, "hooks", hooked, R(4, 5))

    def checked(d, x):
        f = lambda t: (t @ t.t()).tanh().sum()
        x.requires_grad_()
        g, = torch.autograd.grad(f(x), x)
        e = torch.zeros_like(x)
        e[1, 2] = 1e-2
        with torch.no_grad():
            return [(f(x + e) - f(x - e)) / 2e-2, g[1, 2]]
    both(s, "a gradient against differences", checked, R(3, 4) * .3, tol=1e-3)

    @check(s, "anomalies are found")
    def _():
        x = torch.zeros(3, device="npu", requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.autograd.detect_anomaly():
                    (x.sqrt() * 0).sum().backward()
                raise AssertionError("a NaN was not found")
            except RuntimeError as e:
                assert "nan" in str(e).lower()


def indices(both):
    s = "scripts: indices"
    x, k = R(6, 5, 4), torch.tensor([[0, 3, 3], [5, 1, 0]])

    def written(d, x, k):
        a, b, c, e = x.clone(), x.clone(), x.clone(), x.clone()
        a[k] = 2.
        b[:, 1, ::2] += 1
        c[c > .5] = -c[c > .5]
        e[..., -1], e[0, None] = 0, 3.
        return [a, b, c, e, x.clone().index_put_((k, k % 5), torch.tensor(1.5, device=d), accumulate=True)]
    both(s, "writing", written, x, k)
    both(s, "reading", lambda d, x, k: [x[k], x[:, k % 5], x[k, k % 5], x[..., None, 1], x[[1, 4]], x[x[:, 0, 0] > 0], x[-1, -2:], x[torch.tensor(2, device=d)], x.flip(0)[::2]], x, k)

    def gradients(d, x, k):
        x.requires_grad_()
        y = sum(t.square().sum() for t in (x[k], x[:, k % 5, 1], x.gather(0, k[:, :, None].expand(2, 3, 4)), x.index_select(1, k[0] % 5), x.take(k), x[x > 0]))
        return torch.autograd.grad(y, x)
    both(s, "gradients", gradients, x, k)
    both(s, "scatter in every way", lambda d, x, k: [*(torch.zeros(6, 5, 4, device=d).scatter_reduce(0, k[:, :, None].expand(2, 3, 4), x, r, include_self=False) for r in ("sum", "mean", "amax", "amin", "prod")),
                                                  x.scatter(0, k[:1, :, None].expand(1, 3, 4)[:, :1], 9.), x.scatter_add(0, k[:, :, None].expand(2, 3, 4), x), x.index_reduce(0, k[0], x[:3], "amax")], x, k)
    both(s, "sorting", lambda d, x, k: [*x.sort(dim=1, stable=True), *x.topk(2, 0), *x.topk(3, -1, largest=False), x.argsort(2, descending=True), *x.kthvalue(2, 1), *x.median(0), *x.mode(1), torch.msort(x), *x.cummax(0)], x, k)
    both(s, "sets and counts", lambda d, x, k: [*torch.unique(k, return_counts=True), *torch.unique(k, dim=0, return_inverse=True), *torch.unique_consecutive(k.flatten(), return_counts=True), torch.bincount(k.flatten(), minlength=9), torch.isin(k, k[0]),
                                               k.flatten().histc(5, 0, 5) if k.is_floating_point() else x.histc(5, -1, 1), torch.bucketize(x, torch.tensor([-1., 0., 1.], device=d)), torch.count_nonzero(k, 1)], x, k)
    both(s, "where things are", lambda d, x, k: [(x > 0).nonzero(), *torch.where(x > 1), x.masked_select(x > 0), *torch.nonzero(k, as_tuple=True), torch.argwhere(k > 2), x.argmax(1), x.argmin()], x, k)
    both(s, "running values", lambda d, x, k: [x.cumsum(0), x.cumprod(1), x.logcumsumexp(2), k.cumsum(1), x.diff(dim=0), torch.trapezoid(x, dim=1), torch.cumulative_trapezoid(x, dim=1), x.cumsum(1).flip(1)], x, k)
    both(s, "shapes", lambda d, x, k: [x.unfold(0, 3, 2), x.movedim(0, 2), x.swapaxes(0, 1).reshape(-1, 3), torch.block_diag(x[0], x[1]), torch.kron(x[0], x[1, :2]), x.tile(2, 1, 1), x.roll((1, -1), (0, 2)), x.rot90(1, (0, 2)), x.as_strided((2, 3), (7, 2), 3), torch.meshgrid(x[:, 0, 0], x[0, :, 0], indexing="ij")[1],
                                       torch.cartesian_prod(k[0], k[1]), torch.combinations(k[0]), torch.diag_embed(x[0]), x.diagonal(1, 0, 1), x[0].tril(-1), torch.vander(x[0, :, 0])], x, k)


def algebra(both):
    s = "scripts: algebra"
    a = R(2, 5, 5)
    p = a @ a.transpose(-1, -2) + 5 * torch.eye(5)
    b = R(2, 5, 3)
    both(s, "einsum", lambda d, a, b: [torch.einsum(e, *t) for e, t in (("bij,bjk->bik", (a, b)), ("bij->bji", (a,)), ("bii->bi", (a,)), ("bij,bkj->", (a, a)), ("...ij,...j->...i", (a, b[..., 0])), ("bij,bjk,bkl->bil", (a, a, b)), ("i,j->ij", (a[0, 0], b[0, 0])))], a, b, tol=1e-3)
    both(s, "products", lambda d, a, b: [a @ b, torch.linalg.multi_dot([a[0], a[1], b[0]]), torch.tensordot(a, b, ([2], [1])), torch.linalg.matrix_power(a, 3), torch.outer(a[0, 0], b[0, 0]), torch.linalg.vecdot(a, a), torch.cross(b, b.flip(1), -1), torch.chain_matmul(a[0], b[0]), F.bilinear(a[0], a[1], p.to(d)[:1])], a, b, tol=1e-3)
    both(s, "cholesky and triangles", lambda d, p, b: [torch.linalg.cholesky(p), torch.linalg.solve_triangular(torch.linalg.cholesky(p), b, upper=False), torch.cholesky_solve(b, torch.linalg.cholesky(p))], p, b, tol=1e-3)
    both(s, "norms", lambda d, a, b: [torch.linalg.norm(a[0]), torch.linalg.norm(a, dim=(1, 2)), torch.linalg.vector_norm(a, 3, dim=1), torch.linalg.matrix_norm(a, "fro"), torch.linalg.matrix_norm(a, 1), a.norm(p=1, dim=0), F.normalize(a, dim=1), torch.cdist(a, a), torch.pdist(a[0])], a, b, tol=1e-3)
    both(s, "solve, inv, det", lambda d, p, b: [torch.linalg.solve(p, b), torch.linalg.inv(p), torch.linalg.det(p).log(), *torch.linalg.slogdet(p)], p, b, tol=1e-3)
    both(s, "singular vectors", lambda d, b: [(lambda u, s, v: u @ torch.diag_embed(s) @ v)(*torch.linalg.svd(b, full_matrices=False))], b, tol=5e-3)
    both(s, "qr and singular values", lambda d, a, b: [(lambda q, r: q @ r)(*torch.linalg.qr(a)), torch.linalg.svdvals(a), torch.linalg.matrix_rank(b), torch.linalg.cond(a)], a, b, tol=5e-3)
    both(s, "eigh and lstsq", lambda d, p, b: [torch.linalg.eigvalsh(p), torch.linalg.lstsq(p, b).solution], p, b, tol=1e-3)


def complex_numbers(both):
    s = "scripts: complex numbers"
    z, w = torch.complex(R(3, 4), R(3, 4)), torch.complex(R(3, 4), R(3, 4)) + 2
    flat = lambda *all: [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in all]
    both(s, "arithmetic", lambda d, z, w: flat(z + w, z - w, z * w, z / w, -z, z * 2, 1 - z, z * 2j, z + (1 + 2j), z.reciprocal(), z ** 2, torch.addcmul(z, z, w), torch.lerp(z, w, .25)), z, w)
    both(s, "parts", lambda d, z, w: flat(z.real, z.imag, z.abs(), z.conj(), z.conj().resolve_conj(), torch.conj_physical(z), z.mH if z.dim() == 2 else z, torch.view_as_real(z), torch.view_as_complex(torch.view_as_real(z)), torch.polar(z.abs(), z.real), torch.complex(z.real, z.imag), z.sgn()), z, w)
    both(s, "angles", lambda d, z, w: [z.angle(), z.real.angle()], z, w)
    both(s, "functions", lambda d, z, w: flat(z.exp(), z.log(), z.sqrt(), z.rsqrt(), z.sin(), z.cos(), z.tanh(), z.sigmoid(), torch.pow(w, z)), z, w)
    both(s, "sums and comparisons", lambda d, z, w: flat(z.sum(), z.sum(1), z.mean(0), z.prod(1), z.cumsum(1), z.cumprod(0), z == w, z != w, z.isfinite(), torch.isclose(z, z)), z, w)
    both(s, "moved", lambda d, z, w: flat(torch.cat([z, w], 1), torch.stack([z, w]), z.t().contiguous(), z[1:, ::2].clone(), z.flip(0), torch.where(z.real > 0, z, w), z[[2, 0]], z.index_select(1, torch.tensor([3, 0], device=d)), z.masked_fill(z.real > 0, 1j), torch.zeros_like(z), z.to(torch.complex128), z.tril(), z.repeat(2, 1), torch.full((3,), 1 + 2j, device=d, dtype=torch.complex64)), z, w)

    def refused(d, z, w):
        """Products have no complex type on their pages; transforms of Fourier run on the host, by the adapter's doing."""
        if d == "npu":
            for f, words in ((lambda: z @ w.t(), "NN-09"), (lambda: torch.linalg.inv(z @ w.t()), "NN-09"), (lambda: z.norm(), "NN-09"), (lambda: torch.stft(z.real.flatten(), 4, return_complex=True), "aclStft")):
                try:
                    f()
                    raise AssertionError(f"{words} was expected")
                except RuntimeError as e:
                    assert words in str(e), e
        return flat(torch.fft.fft(z), torch.fft.ifft2(z))
    both(s, "refused by name, or on the host", refused, z, w)

    def gradients(d, z, w):
        z.requires_grad_()
        y = (z * w).abs().square().sum() + z.exp().real.sum() + (z / w).imag.sum()
        g, = torch.autograd.grad(y, z)
        return flat(g)
    both(s, "gradients", gradients, z, w)

    def rotary(d, x):
        angles = torch.outer(torch.arange(6.), 1. / 10 ** torch.arange(4.))
        turn = torch.polar(torch.ones_like(angles), angles).to(d)
        return [torch.view_as_real(torch.view_as_complex(x.reshape(2, 6, 3, 4, 2)) * turn[None, :, None]).flatten(3)]
    both(s, "rotary embedding by complex products", rotary, R(2, 6, 3, 8))


def ordinary(check, near):
    s = "scripts: ordinary use"

    @check(s, "a network of images learns")
    def _():
        torch.manual_seed(0)
        m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(.1), nn.Linear(16, 3)).npu()
        x, t = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
        x += t[:, None, None, None] * 1.5
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, t), 8, shuffle=True, pin_memory=True)
        o, losses = torch.optim.Adam(m.parameters(), 1e-2), []
        for _ in range(4):
            for a, b in loader:
                o.zero_grad()
                loss = F.cross_entropy(m(a.npu(non_blocking=True)), b.npu(non_blocking=True))
                loss.backward()
                o.step()
                losses.append(loss.item())
        m.eval()
        with torch.inference_mode():
            right = (m(x.npu()).argmax(1).cpu() == t).float().mean().item()
        assert sum(losses[-3:]) < sum(losses[:3]) and right > .5, (losses, right)

    @check(s, "words one after another, greedy and drawn")
    def _():
        torch.manual_seed(0)
        e, m, h = nn.Embedding(11, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 11)
        said = []
        for d in ("cpu", "npu"):
            a, b, c = (copy.deepcopy(x).to(d).eval() for x in (e, m, h))
            with torch.no_grad():
                ids, state = torch.tensor([[3, 1]], device=d), None
                for _ in range(6):
                    y, state = b(a(ids if state is None else ids[:, -1:]), state)
                    ids = torch.cat([ids, c(y[:, -1]).argmax(-1, keepdim=True)], 1)
                p = c(y[:, -1]).div(.7).softmax(-1)
                kept = p.topk(3).indices
                assert torch.isin(torch.multinomial(p.masked_fill(~torch.zeros_like(p, dtype=torch.bool).scatter(1, kept, True), 0.), 1), kept).all()
            said.append(ids.cpu())
        near(*said, 0)

    @check(s, "a module moved, cast, frozen, counted")
    def _():
        m = small().npu()
        assert all(p.is_npu for p in m.parameters()) and sum(p.numel() for p in m.parameters()) == 645
        h = copy.deepcopy(m).half()
        assert h(R(2, 12).npu().half()).dtype == torch.float16
        m[0].requires_grad_(False)
        m(R(2, 12).npu()).sum().backward()
        assert m[0].weight.grad is None and m[3].weight.grad is not None
        near(m[0].weight, m.cpu()[0].weight, 0)
        with torch.device("npu"):
            assert nn.Linear(3, 2).weight.is_npu and torch.zeros(2).is_npu
        lazy = nn.LazyLinear(4).npu()
        assert lazy(R(2, 7).npu()).shape == (2, 4)

    @check(s, "what is written in place")
    def _():
        x = torch.arange(12.).reshape(3, 4)
        for d in ("cpu", "npu"):
            y = x.clone().to(d)
            v = y[1]
            v += 5
            y.t()[0].mul_(2)
            y.clamp_(max=9).sub_(1)
            y[:, 1].copy_(torch.tensor([7., 8., 9.]))
            y.add_(y[:1].clone(), alpha=.5)
            out = torch.empty(3, 4, device=d)
            torch.mul(y, y, out=out)
            want = out if d == "cpu" else want
        near(want, out, 0)
        q = torch.ones(3, device="npu", requires_grad=True)
        try:
            z = q.exp()
            z.add_(1)
            z.sum().backward()
            raise AssertionError("a value that the gradient needs was overwritten")
        except RuntimeError as e:
            assert "modified by an inplace operation" in str(e)

    @check(s, "mistakes are told as on other devices")
    def _():
        x = torch.ones(3, 4, device="npu")
        for f, words in ((lambda: x @ x, ""), (lambda: x + torch.ones(3, 4), "device"), (lambda: x.reshape(5, 2), "shape"), (lambda: torch.cat([x, x[:, :2]]), ""), (lambda: x.cpu() + x, "device"), (lambda: x[5], "out of")):
            try:
                f()
                raise AssertionError("no error")
            except (RuntimeError, IndexError) as e:
                assert words in str(e), e
        near(torch.full((3, 4), 2.), x + 1, 0)

    @check(s, "a compiler that changes nothing")
    def _():
        f = torch.compile(lambda t: (t.sin() + 1) @ t.t(), backend="eager")
        x = R(4, 5)
        near((x.sin() + 1) @ x.t(), f(x.npu()), 1e-4)


def tracing(check, near):
    import torch_npu
    s = "scripts: profiler"

    @check(s, "a schedule, and a trace")
    def _():
        P, seen = torch_npu.profiler, []
        with tempfile.TemporaryDirectory() as folder:
            write = P.tensorboard_trace_handler(folder)
            with contextlib.redirect_stdout(io.StringIO()), P.profile(activities=[P.ProfilerActivity.CPU, P.ProfilerActivity.NPU], schedule=P.schedule(wait=1, warmup=1, active=2, repeat=1),
                                                                    on_trace_ready=lambda p: (seen.append(1), write(p)), record_shapes=True, with_stack=False) as p:
                for _ in range(5):
                    with torch.autograd.profiler.record_function("one step"):
                        (torch.randn(8, 8).npu() @ torch.randn(8, 8).npu()).relu().sum().item()
                    p.step()
            found = [os.path.join(at, f) for at, _, files in os.walk(folder) for f in files if f == "trace_view.json"]
            assert seen == [1] and found and os.path.getsize(found[0]) > 100

    @check(s, "exported as a trace of Chrome")
    def _():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            path = os.path.join(folder, "trace.json")
            with torch_npu.profiler.profile() as p:
                (torch.randn(8, 8).npu() @ torch.randn(8, 8).npu()).sum().item()
            p.export_chrome_trace(path)
            assert "aten::" in open(path).read()

    @check(s, "PyTorch's own profiler sees the host's side")
    def _():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            torch.ones(9, device="npu").add_(1).sum().item()
        assert any("aten::add_" in e.key for e in p.key_averages())
