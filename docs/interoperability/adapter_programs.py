"""Whole programs of other people's kind, small, for torch_npu.py: what they calculate on the device is what the CPU calculates."""
import copy, math, threading
import torch
import torch.nn as nn
import torch.nn.functional as F


def R(*shape, seed=[1000]):
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))


def register(check, near):
    def both(section, name, f, *args, tol=2e-4):
        """f(device, *arguments there) gives tensors: the same on both devices."""
        @check(section, name)
        def _():
            sides = []
            for d in ("cpu", "npu"):
                torch.manual_seed(3)
                given = [copy.deepcopy(a).to(d) if isinstance(a, nn.Module) else a.detach().clone().to(d) if torch.is_tensor(a) else a for a in args]
                sides.append(list(f(d, *given)))
            for a, b in zip(*sides, strict=True):
                near(torch.as_tensor(a), torch.as_tensor(b), tol)

    pictures(both)
    words(both)
    choices(both)
    graphs(both)
    numbers(both)
    higher(both)
    rare(both)
    host(check, near)


def grads(loss, m):
    m.zero_grad()
    loss.backward()
    return [p.grad for p in m.parameters() if p.grad is not None]


class Attend(nn.Module):
    """Attention with rotary positions, grouped keys and a cache."""

    def __init__(self, h=32, n=4, g=2):
        super().__init__()
        self.n, self.g, self.d = n, g, h // n
        self.q, self.kv, self.o = nn.Linear(h, h, bias=False), nn.Linear(h, 2 * g * self.d, bias=False), nn.Linear(h, h, bias=False)

    def forward(self, x, past=None, bias=None):
        b, t, h = x.shape
        at = 0 if past is None else past[0].shape[2]
        q = self.q(x).view(b, t, self.n, self.d).transpose(1, 2)
        k, v = (y.view(b, t, self.g, self.d).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        where = torch.arange(at, at + t, device=x.device, dtype=x.dtype)[:, None] * 10000. ** (-torch.arange(0, self.d, 2, device=x.device) / self.d)
        c, s = where.cos(), where.sin()
        turn = lambda y: torch.stack([y[..., ::2] * c - y[..., 1::2] * s, y[..., ::2] * s + y[..., 1::2] * c], -1).flatten(-2)
        q, k = turn(q), turn(k)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        wide = lambda y: y[:, :, None].expand(b, self.g, self.n // self.g, y.shape[2], self.d).reshape(b, self.n, -1, self.d)
        score = q @ wide(k).transpose(-1, -2) / math.sqrt(self.d)
        if bias is not None:
            score = score + bias
        ahead = torch.arange(at, at + t, device=x.device)[:, None] < torch.arange(at + t, device=x.device)
        score = score.masked_fill(ahead, torch.finfo(score.dtype).min).softmax(-1)
        return self.o((score @ wide(v)).transpose(1, 2).reshape(b, t, h)), (k, v)


class Speaker(nn.Module):
    def __init__(self, v=29, h=32):
        super().__init__()
        self.e, self.n1, self.a, self.n2 = nn.Embedding(v, h), nn.RMSNorm(h), Attend(h), nn.RMSNorm(h)
        self.g, self.u, self.d, self.h = nn.Linear(h, 48, bias=False), nn.Linear(h, 48, bias=False), nn.Linear(48, h, bias=False), nn.Linear(h, v, bias=False)
        self.h.weight = self.e.weight

    def forward(self, ids, past=None, bias=None):
        x = self.e(ids)
        y, past = self.a(self.n1(x), past, bias)
        x = x + y
        y = self.n2(x)
        return self.h(x + self.d(F.silu(self.g(y)) * self.u(y))), past


def pictures(both):
    s = "programs: pictures"

    class Seer(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.first, self.at = nn.Conv2d(3, 24, 4, 4), nn.Parameter(R(1, 1, 24)), nn.Parameter(R(1, 5, 24) * .1)
            self.body, self.out = nn.TransformerEncoderLayer(24, 3, 48, 0., batch_first=True), nn.Linear(24, 6)

        def forward(self, x):
            y = self.cut(x).flatten(2).transpose(1, 2)
            side = int(y.shape[1] ** .5)
            at = F.interpolate(self.at[:, 1:].transpose(1, 2).reshape(1, 24, 2, 2), size=(side, side), mode="bilinear", align_corners=False).flatten(2).transpose(1, 2)
            y = torch.cat([self.first.expand(len(x), -1, -1), y], 1) + torch.cat([self.at[:, :1], at], 1)
            return self.out(self.body(y)[:, 0])
    m = Seer()
    both(s, "patches and positions of another size", lambda d, m, x, t: (lambda y: [y, *grads(F.cross_entropy(y, t, label_smoothing=.1), m)])(m(x)), m, R(2, 3, 16, 16), torch.tensor([1, 4]))

    class U(nn.Module):
        def __init__(self):
            super().__init__()
            block = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU())
            self.a, self.b, self.c = block(3, 8), block(8, 16), block(16, 16)
            self.up, self.e, self.out, self.time = nn.ConvTranspose2d(16, 8, 2, 2), block(16, 8), nn.Conv2d(8, 3, 1), nn.Linear(8, 16)

        def forward(self, x, t):
            f = torch.exp(torch.arange(4, device=x.device) * -2.)
            w = torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], -1)
            a = self.a(x)
            b = self.b(F.max_pool2d(a, 2)) + self.time(w)[:, :, None, None]
            b = b + self.c(b)
            return self.out(self.e(torch.cat([self.up(b), a], 1)))

    def noise(d, m, x, t, e):
        kept = torch.cumprod(1 - torch.linspace(1e-4, .02, 50, device=d), 0)[t][:, None, None, None]
        loss = F.mse_loss(m(kept.sqrt() * x + (1 - kept).sqrt() * e, t.float()), e)
        return [loss, *grads(loss, m)]
    both(s, "noise taken away (a U with skips)", noise, U(), R(2, 3, 8, 8), torch.tensor([3, 41]), R(2, 3, 8, 8), tol=1e-3)

    class Rest(nn.Module):
        def __init__(self, a, b, step):
            super().__init__()
            self.f = nn.Sequential(nn.Conv2d(a, b, 3, step, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
            self.g = nn.Sequential(nn.Conv2d(a, b, 1, step, bias=False), nn.BatchNorm2d(b)) if step > 1 else nn.Identity()

        def forward(self, x):
            return F.relu_(self.f(x) + self.g(x))

    def residual(d, m, x, t):
        o, out = torch.optim.SGD(m.parameters(), .05, momentum=.9, weight_decay=1e-4), []
        for _ in range(3):
            o.zero_grad()
            loss = F.cross_entropy(m(x), t)
            loss.backward()
            o.step()
            out.append(loss.detach())
        return [*out, m.eval()(x), m[1].running_var]
    both(s, "residual blocks, three steps", residual, nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Rest(8, 8, 1), Rest(8, 12, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)),
         R(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0]), tol=5e-3)

    def boxes(d, a, b, score):
        a, b = (torch.cat([t[:, :2], t[:, :2] + t[:, 2:].abs() + .1], 1) for t in (a, b))
        size = lambda t: (t[:, 2:] - t[:, :2]).clamp(min=0).prod(1)
        inside = (torch.minimum(a[:, None, 2:], b[None, :, 2:]) - torch.maximum(a[:, None, :2], b[None, :, :2])).clamp(min=0).prod(2)
        over = inside / (size(a)[:, None] + size(b)[None] - inside)
        best, which = over.max(1)
        order, kept = score.argsort(descending=True), []
        while len(order):
            kept.append(order[0])
            if len(order) == 1:
                break
            i = torch.maximum(a[order[0], :2], a[order[1:], :2])
            j = torch.minimum(a[order[0], 2:], a[order[1:], 2:])
            n = (j - i).clamp(min=0).prod(1)
            order = order[1:][n / (size(a[order[:1]]) + size(a[order[1:]]) - n) < .2]
        return [over, best, which, torch.stack(kept), F.smooth_l1_loss(a, b[which], beta=.3)]
    both(s, "boxes, their overlap, the best of them", boxes, R(9, 4), R(6, 4), R(9))

    def rivals(d, g, c, z, x):
        fake = g(z)
        mixed = (.3 * x + .7 * fake.detach()).requires_grad_()
        slope, = torch.autograd.grad(c(mixed).sum(), mixed, create_graph=True)
        critic = c(fake.detach()).mean() - c(x).mean() + 10 * ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
        first = [t.clone() for t in grads(critic, c)]
        return [critic, *first, *grads(-c(g(z)).mean(), g)]
    both(s, "two networks against each other, with a penalty on slopes", rivals, nn.Sequential(nn.Linear(4, 18), nn.LeakyReLU(.2), nn.Unflatten(1, (2, 3, 3)), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3, padding=1), nn.Tanh()),
         nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(.2), nn.Flatten(), nn.Linear(36, 1)), R(3, 4), R(3, 1, 6, 6), tol=2e-3)

    def hidden(d, m, n, x, e):
        mean, spread = m(x).chunk(2, 1)
        z = mean + e * (spread / 2).exp()
        loss = F.binary_cross_entropy_with_logits(n(z), x.sigmoid(), reduction="sum") - .5 * (1 + spread - mean.square() - spread.exp()).sum()
        normal = torch.distributions.Normal(mean, (spread / 2).exp())
        return [loss, torch.distributions.kl_divergence(normal, torch.distributions.Normal(0., 1.)).sum(), normal.log_prob(z), *grads(loss, m)]
    both(s, "a hidden code and its distribution", hidden, nn.Linear(9, 8), nn.Linear(4, 9), R(5, 9), R(5, 4), tol=1e-3)
    both(s, "pictures changed", lambda d, x: [x.flip(-1), F.pad(x, (2, 2, 2, 2), mode="reflect")[..., 1:7, 1:7], (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True), F.avg_pool2d(x, 3, 1, 1), torch.rot90(x, 1, (2, 3)), F.interpolate(x, size=(5, 9), mode="bicubic", align_corners=False),
                                            F.grid_sample(x, F.affine_grid(torch.tensor([[[.8, .2, 0.], [-.2, .8, .1]]], device=d).expand(2, 2, 3), (2, 3, 6, 6), align_corners=False), align_corners=False), x.clamp(0, 1).mul(255).round().to(torch.uint8)], R(2, 3, 6, 6))


def words(both):
    s = "programs: words"
    m, ids = Speaker(), torch.randint(0, 29, (2, 9), generator=torch.Generator().manual_seed(5))

    def learn(d, m, ids):
        heavy, light = [p for p in m.parameters() if p.dim() > 1], [p for p in m.parameters() if p.dim() <= 1]
        o, out = torch.optim.AdamW([{"params": heavy, "weight_decay": .1}, {"params": light, "weight_decay": 0.}], 1e-2, betas=(.9, .95)), []
        for _ in range(4):
            o.zero_grad(set_to_none=True)
            loss = F.cross_entropy(m(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            out += [loss.detach(), nn.utils.clip_grad_norm_(m.parameters(), 1.)]
            o.step()
        return out
    both(s, "shared weights, grouped keys, turned positions: four steps", learn, m, ids, tol=2e-3)

    def continued(d, m, ids):
        with torch.no_grad():
            whole, (y, past) = m(ids)[0], m(ids[:, :4])
            parts = [y]
            for k in range(4, 9):
                y, past = m(ids[:, k:k + 1], past)
                parts.append(y)
        return [whole, torch.cat(parts, 1)]
    both(s, "with a cache, word by word", continued, m, ids)

    def chosen(d, m, ids):
        """The largest share of the probability, penalties, the best of several lines."""
        with torch.no_grad():
            score = m(ids)[0][:, -1]
            score = score.scatter(1, ids, torch.where(score.gather(1, ids) < 0, score.gather(1, ids) * 1.2, score.gather(1, ids) / 1.2))
            down, which = score.sort(-1, descending=True)
            gone = down.softmax(-1).cumsum(-1) - down.softmax(-1) > .7
            kept = score.masked_fill(gone.scatter(1, which, gone), float("-inf")).softmax(-1)
            lines, sums = ids[:1].repeat(3, 1), torch.tensor([0., -1e9, -1e9], device=d)
            for _ in range(4):
                all = (sums[:, None] + m(lines)[0][:, -1].log_softmax(-1)).flatten()
                sums, at = all.topk(3)
                lines = torch.cat([lines[torch.div(at, 29, rounding_mode="floor")], (at % 29)[:, None]], 1)
        return [kept, lines, sums]
    both(s, "chosen words: penalties, shares, the best lines", chosen, m, ids)

    def slopes(d, m, ids):
        steep = 2. ** -(8 / 4 * torch.arange(1, 5, device=d))
        bias = -steep[:, None, None] * (torch.arange(9, device=d)[:, None] - torch.arange(9, device=d)).abs()
        y = m(ids, bias=bias)[0]
        far = (torch.arange(9, device=d)[:, None] - torch.arange(9, device=d)).clamp(min=0)
        bucket = torch.where(far < 4, far, (4 + (far.float().clamp(min=1) / 4).log() / math.log(4.) * 4).long().clamp(max=7))
        table = torch.arange(32., device=d).reshape(8, 4)
        return [y, bucket, F.embedding(bucket, table).permute(2, 0, 1), *grads(y.square().mean(), m)]
    both(s, "distance as a bias and in buckets", slopes, m, ids)

    def added(d, m, ids):
        """Two thin matrices beside a frozen one."""
        for p in m.parameters():
            p.requires_grad_(False)
        a, b = nn.Parameter(torch.arange(64., device=d).reshape(2, 32).sin()), nn.Parameter(torch.zeros(32, 2, device=d))
        m.a.q.register_forward_hook(lambda layer, x, y: y + x[0] @ a.t() @ b.t() * 2)
        o, out = torch.optim.AdamW([a, b], 1e-2), []
        for _ in range(3):
            loss = F.cross_entropy(m(ids[:, :-1])[0].transpose(1, 2), ids[:, 1:], ignore_index=3)
            o.zero_grad()
            loss.backward()
            o.step()
            out.append(loss.detach())
        return [*out, a, b]
    both(s, "thin matrices beside frozen ones", added, m, ids, tol=1e-3)

    def experts(d, gate, up, x):
        """Two experts of four for every word, by loops over the experts, with a balance."""
        p = (x @ gate).softmax(-1)
        w, k = p.topk(2, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(4):
            row, place = torch.where(k == e)
            out.index_add_(0, row, F.gelu(x[row] @ up[e]) * w[row, place, None])
        share = F.one_hot(k, 4).sum(1).float().mean(0)
        return [out, 4 * (share * p.mean(0)).sum(), (F.one_hot(k.flatten(), 4).cumsum(0) * F.one_hot(k.flatten(), 4)).sum(-1)]

    def routed(d, gate, up, x):
        gate, up, x = (t.requires_grad_() for t in (gate, up, x))
        y = experts(d, gate, up, x)
        return [*y, *torch.autograd.grad(y[0].square().sum() + y[1], (gate, up, x))]
    both(s, "words to experts, by loops", routed, R(8, 4), R(4, 8, 8), R(10, 8), tol=1e-3)

    def chain(d, step, emit, tags):
        """The sum over all lines of tags against one of them, and the best line."""
        step, emit = step.requires_grad_(), emit.requires_grad_()
        total = emit[:, 0]
        for t in range(1, emit.shape[1]):
            total = torch.logsumexp(total[:, :, None] + step, 1) + emit[:, t]
        one = emit.gather(2, tags[..., None]).squeeze(2).sum(1) + step[tags[:, :-1], tags[:, 1:]].sum(1)
        loss = (total.logsumexp(1) - one).mean()
        with torch.no_grad():
            best, back = emit[:, 0], []
            for t in range(1, emit.shape[1]):
                best, i = (best[:, :, None] + step).max(1)
                best = best + emit[:, t]
                back.append(i)
            line = [best.argmax(1)]
            for i in reversed(back):
                line.append(i.gather(1, line[-1][:, None]).squeeze(1))
        return [loss, *torch.autograd.grad(loss, (step, emit)), torch.stack(line[::-1], 1)]
    both(s, "tags in a chain", chain, R(4, 4), R(3, 6, 4), torch.tensor([[0, 1, 2, 3, 0, 1], [2, 2, 1, 0, 3, 3], [1, 0, 1, 0, 1, 0]]))

    def pairs(d, x, y, scale):
        x, y, scale = (t.requires_grad_() for t in (x, y, scale))
        score = scale.exp() * F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t()
        at = torch.arange(5, device=d)
        loss = (F.cross_entropy(score, at) + F.cross_entropy(score.t(), at)) / 2
        anchor = F.triplet_margin_loss(x, y, y.roll(1, 0)) + F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, 1, -1], device=d))
        return [loss, anchor, *torch.autograd.grad(loss + anchor, (x, y, scale))]
    both(s, "pairs that belong together", pairs, R(5, 8), R(5, 8), torch.tensor(1.2))


def choices(both):
    s = "programs: choices"

    def clipped(d, m, x, a, old, reward, value):
        gain, last = torch.zeros_like(reward), torch.tensor(0., device=d)
        for t in reversed(range(len(reward))):
            after = value[t + 1] if t + 1 < len(reward) else 0.
            last = reward[t] + .99 * after - value[t] + .99 * .95 * last
            gain[t] = last
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        p = torch.distributions.Categorical(logits=m(x))
        ratio = (p.log_prob(a) - old).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(.8, 1.2) * gain).mean() - .01 * p.entropy().mean()
        return [gain, loss, ((ratio - 1).abs() > .2).float().mean(), *grads(loss, m)]
    both(s, "a clipped step of a policy", clipped, nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), R(12, 4), torch.arange(12) % 3, -R(12).abs(), R(12), R(12), tol=1e-3)

    def preferred(d, m, ids):
        with torch.no_grad():
            fixed = copy.deepcopy(m)
            for p in fixed.parameters():
                p.mul_(.9)
        value = lambda n, x: n(x[:, :-1])[0].log_softmax(-1).gather(2, x[:, 1:, None]).squeeze(2).sum(1)
        good, bad = ids, ids.flip(1)
        with torch.no_grad():
            a, b = value(fixed, good), value(fixed, bad)
        loss = -F.logsigmoid(.1 * ((value(m, good) - a) - (value(m, bad) - b))).mean()
        return [loss, *grads(loss, m)]
    both(s, "one answer preferred to another", preferred, Speaker(), torch.randint(0, 29, (3, 7), generator=torch.Generator().manual_seed(9)))

    def replay(d, m, x, a, r):
        slow, o = copy.deepcopy(m), torch.optim.Adam(m.parameters(), 1e-2)
        for _ in range(3):
            with torch.no_grad():
                goal = r + .9 * slow(x.roll(1, 0)).max(1)[0]
            loss = F.huber_loss(m(x).gather(1, a[:, None]).squeeze(1), goal)
            o.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(m.parameters(), .5)
            o.step()
            with torch.no_grad():
                for p, q in zip(slow.parameters(), m.parameters()):
                    p.lerp_(q, .05)
        return [loss, *m.parameters(), *slow.parameters()]
    both(s, "values learned against a slow copy", replay, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), R(10, 4), torch.arange(10) % 3, R(10), tol=1e-3)


def graphs(both):
    s = "programs: graphs and sets"
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 3, 0, 5]])

    def spread(d, w, x, e):
        w, x = w.requires_grad_(), x.requires_grad_()
        degree = torch.zeros(6, device=d).index_add_(0, e[1], torch.ones(8, device=d)).clamp(min=1)
        norm = degree.rsqrt()
        y = torch.zeros_like(x).index_add(0, e[1], x[e[0]] * (norm[e[0]] * norm[e[1]])[:, None]) @ w
        score = F.leaky_relu((y[e[0]] * y[e[1]]).sum(1), .2)
        top = torch.full((6,), float("-inf"), device=d).scatter_reduce(0, e[1], score.detach(), "amax")
        part = (score - top[e[1]]).exp()
        part = part / torch.zeros(6, device=d).scatter_add(0, e[1], part)[e[1]]
        z = torch.zeros_like(y).index_add(0, e[1], part[:, None] * y[e[0]])
        return [z, *torch.autograd.grad(z.square().sum(), (w, x))]
    both(s, "messages over edges, weighted", spread, R(5, 4), R(6, 5), edges)

    def middles(d, x):
        c = x[:3].clone()
        for _ in range(4):
            which = torch.cdist(x, c).argmin(1)
            count = torch.bincount(which, minlength=3).clamp(min=1)
            c = torch.zeros_like(c).index_add_(0, which, x) / count[:, None]
        return [c, which, count]
    both(s, "middles of clusters", middles, torch.cat([R(8, 3), R(8, 3) + 4, R(8, 3) - 5])[torch.randperm(24, generator=torch.Generator().manual_seed(1))])

    def nearest(d, x, y, label):
        distance, at = torch.cdist(x, y).topk(3, largest=False)
        votes = torch.zeros(len(x), 4, device=d).scatter_add_(1, label[at], 1 / (distance + .1))
        confusion = torch.zeros(4, 4, dtype=torch.long, device=d).index_put_((label[:len(x)], votes.argmax(1)), torch.ones(len(x), dtype=torch.long, device=d), accumulate=True)
        return [distance, at, votes, confusion, confusion.diag() / confusion.sum(1).clamp(min=1)]
    both(s, "neighbours that vote", nearest, R(6, 5), R(12, 5), torch.arange(12) % 4)


def numbers(both):
    s = "programs: numbers"

    def components(d, x):
        x = x - x.mean(0)
        spread = x.t() @ x / (len(x) - 1)
        v = torch.ones(5, device=d)
        for _ in range(60):
            v = spread @ v
            v = v / v.norm()
        return [spread, torch.cov(x.t()), v @ spread @ v, torch.linalg.eigvalsh(spread), torch.linalg.svdvals(x)]
    both(s, "principal parts", components, R(20, 5) * torch.tensor([3., 1., .7, .5, .2]), tol=2e-3)

    def process(d, x, y, new):
        """A regression with a covariance between all points: the width is learned."""
        width = torch.tensor(.3, device=d, requires_grad=True)
        k = lambda a, b: torch.exp(-(a[:, None] - b[None]).square().sum(-1) / (2 * width.exp() ** 2))
        low = torch.linalg.cholesky(k(x, x) + .1 * torch.eye(len(x), device=d))
        w = torch.cholesky_solve(y[:, None], low)
        loss = .5 * (y @ w.squeeze(1)) + low.diagonal().log().sum()
        mean = k(new, x) @ w
        v = torch.linalg.solve_triangular(low, k(x, new), upper=False)
        return [loss, mean, 1 - v.square().sum(0)]
    both(s, "a process with a covariance", process, R(8, 2), R(8), R(4, 2), tol=2e-3)

    def flow(d, m, x):
        """Four steps of Runge and Kutta through a network, and back."""
        x, h = x.requires_grad_(), .25
        y = x
        for _ in range(4):
            a = m(y)
            b = m(y + h / 2 * a)
            c = m(y + h / 2 * b)
            e = m(y + h * c)
            y = y + h / 6 * (a + 2 * b + 2 * c + e)
        g = torch.autograd.grad(y.square().sum(), [x, *m.parameters()])
        return [y, *g]
    both(s, "a flow through time", flow, nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 3)), R(5, 3), tol=1e-3)

    def filtered(d, a, seen):
        x, p, q = torch.zeros(2, device=d), torch.eye(2, device=d), .1 * torch.eye(2, device=d)
        out = []
        for z in seen:
            x, p = a @ x, a @ p @ a.t() + q
            k = p[:, :1] / (p[0, 0] + .5)
            x, p = x + k[:, 0] * (z - x[0]), p - k @ p[:1]
            out.append(x)
        return [torch.stack(out), p]
    both(s, "a filter of what is seen", filtered, torch.tensor([[1., .1], [0., 1.]]), R(12))
    both(s, "statistics", lambda d, x: [torch.quantile(x, torch.tensor([.1, .5, .9], device=d), dim=0), x.nanmean(1), torch.nansum(x, 0), x.nanmedian(), torch.corrcoef(x), x.var(0, correction=0), *torch.std_mean(x, 0), x.softmax(0).log().mul(-1).sum(), torch.histc(x, 6, -2, 2), x.argsort(0).argsort(0), torch.clamp(x, torch.tensor(-.5, device=d), torch.tensor(.7, device=d)), (x > x.mean()).float().mean(0)], R(9, 7))

    def fitted(d, x, y):
        w = torch.zeros(3, device=d)
        for _ in range(6):
            p = (x @ w).sigmoid()
            w = w + torch.linalg.solve(x.t() @ (x * (p * (1 - p))[:, None]) + .1 * torch.eye(3, device=d), x.t() @ (y - p) - .1 * w)
        return [w, torch.linalg.lstsq(x, y[:, None]).solution]
    both(s, "fits by Newton and by least squares", fitted, R(20, 3), (R(20) > 0).float(), tol=2e-3)

    def scanned(d, a, b):
        """A linear recurrence, step by step and by doubling."""
        h, one = torch.zeros_like(b[0]), []
        for t in range(8):
            h = a[t] * h + b[t]
            one.append(h)
        x, y, k = a.clone(), b.clone(), 1
        while k < 8:
            y = torch.cat([y[:k], y[k:] + x[k:] * y[:-k]])
            x = torch.cat([x[:k], x[k:] * x[:-k]])
            k *= 2
        return [torch.stack(one), y, y - torch.stack(one)]
    both(s, "a recurrence in two ways", scanned, R(8, 5).sigmoid(), R(8, 5))


def higher(both):
    s = "programs: derivatives of derivatives"
    m = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))

    def inner(d, m, x, y):
        """A step inside the loss."""
        names = dict(m.named_parameters())
        f = lambda p: F.mse_loss(torch.func.functional_call(m, p, (x,)).squeeze(1), y)
        step = dict(zip(names, torch.autograd.grad(f(names), list(names.values()), create_graph=True)))
        loss = f({k: p - .1 * step[k] for k, p in names.items()})
        return [loss, *torch.autograd.grad(loss, list(names.values()))]
    both(s, "a step inside the loss", inner, m, R(7, 3), R(7))

    def crowd(d, m, x):
        """Three networks at once."""
        nets = [copy.deepcopy(m).to(d) for _ in range(3)]
        for k, n in enumerate(nets):
            n[0].weight.data.mul_(k + 1)
        p, b = torch.func.stack_module_state(nets)
        return [torch.func.vmap(lambda p, b, x: torch.func.functional_call(nets[0], (p, b), (x,)), (0, 0, None))(p, b, x), torch.stack([n(x) for n in nets])]
    both(s, "networks side by side", crowd, m, R(4, 3))

    def curved(d, m, x):
        f = lambda t: m(t).sum()
        v = torch.ones_like(x)
        return [torch.autograd.functional.hvp(f, x, v)[1], torch.autograd.functional.vjp(m, x, torch.ones(4, 1, device=d))[1], torch.func.hessian(lambda t: m(t).squeeze())(x[0]), torch.func.jacfwd(m)(x[0])]
    both(s, "products with curvatures", curved, m, R(4, 3))

    def physics(d, m, x):
        """A loss of an equation: u'' against the Laplacian of a network."""
        x = x.requires_grad_()
        g, = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        lap = sum(torch.autograd.grad(g[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3))
        loss = (lap - x.sum(1).sin()).square().mean()
        return [loss, *grads(loss, m)]
    both(s, "the loss of an equation", physics, m, R(6, 3), tol=1e-3)

    def flat(d, m, x):
        v = nn.utils.parameters_to_vector(m.parameters())
        nn.utils.vector_to_parameters(v * .5, m.parameters())
        return [v, m(x), sum(p.sum() for p in m.parameters())]
    both(s, "parameters as one vector", flat, m, R(4, 3))


def rare(both):
    s = "programs: rarer operators"
    a, b = R(4, 6), R(4, 6)
    i = torch.tensor([[3, 0, 2, 1, 1, 0]])
    each = {
        "special functions": lambda d, a, b, i: [torch.special.xlog1py(a.abs(), b.abs()), torch.xlogy(a.abs(), b.abs() + .1), torch.special.entr(a.abs()), torch.erfinv(a.tanh() * .9), torch.logit(a.sigmoid()), torch.special.expit(a), torch.special.log_ndtr(a) if d == "cpu" else torch.special.ndtr(a).log(), torch.deg2rad(a), torch.sinc(a), torch.logaddexp2(a, b)],
        "numbers and their bits": lambda d, a, b, i: [torch.heaviside(a, b), torch.copysign(a, b), torch.float_power(a.abs(), 2.).float(), torch.fmod(a, .7), torch.signbit(a), torch.hypot(a, b), torch.trunc(a * 3), a.frac(), torch.fmin(a, b), torch.fmax(a, b), torch.ldexp(a, i), torch.bitwise_left_shift(i, 2), torch.bitwise_not(i)],
        "products with an addend": lambda d, a, b, i: [torch.addmv(a[:, 0], b, a[0]), torch.addr(torch.zeros(4, 6, device=d), a[:, 0], b[0]), torch.addbmm(torch.zeros(4, 4, device=d), a.view(2, 4, 3), b.view(2, 3, 4)), torch.trace(a[:, :4]), torch.dist(a, b), torch.inner(a, b), torch.linalg.vecdot(a, b), a.mv(b[0])],
        "parts put back": lambda d, a, b, i: [torch.take_along_dim(a, i, 1), a.select_scatter(b[0], 0, 1), a.slice_scatter(b[:2], 0, 1, 3), a.diagonal_scatter(torch.ones(4, device=d)), a.clone().put_(i, torch.ones(1, 6, device=d)), a.index_fill(1, i[0, :2], 9.), a.masked_scatter(a > 0, b), a.unsafe_chunk(2, 1)[1], *torch.tensor_split(a, (1, 4), 1), torch.dstack([a, b]), torch.column_stack([a, b]), torch.tril_indices(4, 6, device=d), a.clone().index_put_((i[0, :4],), torch.tensor(2., device=d))],
        "layers seldom met": lambda d, a, b, i: [F.cosine_similarity(a, b), F.pairwise_distance(a, b), F.local_response_norm(a[None, :, :, None], 2), F.hardtanh(a), F.softmin(a, 1), F.gumbel_softmax(a * 0 + torch.tensor([0., 50, 0, 0, 0, 0], device=d), hard=True), F.threshold(a, .1, .2), F.glu(a, 1), F.tanhshrink(a), nn.Softmax2d()(a[None, :, :, None]), F.max_pool1d(a[None], 2, return_indices=True)[0]],
        "losses by class": lambda d, a, b, i: [F.multi_margin_loss(a, i[0, :4]), F.multilabel_soft_margin_loss(a, (b > 0).float()), F.cross_entropy(a, b.softmax(1)), F.cross_entropy(a, i[0, :4], weight=b[0].abs()), F.binary_cross_entropy_with_logits(a, b.sigmoid(), weight=b.abs(), pos_weight=a[0].abs()), F.kl_div(a.log_softmax(1), b.log_softmax(1), log_target=True, reduction="sum"), F.nll_loss(a.log_softmax(1), i[0, :4], ignore_index=0)],
        "in whole numbers, rounded": lambda d, a, b, i: [(lambda q: (q.float() - 3) * .05)((a / .05).round().add(3).clamp(-128, 127).to(torch.int8)), torch.round(a, decimals=2), a.mul(10).to(torch.int32).abs() % 7, torch.div(a.mul(10).int(), 3, rounding_mode="floor"), torch.div(a, .3, rounding_mode="trunc"), i.cumsum(1), i.flip(1).sort(1)[0], i.float().std(), i.prod(), (a > 0).sum(1), (a > 0).cumsum(1), (a > 0).any(0), (a > 0).all(1)],
    }
    for name, f in each.items():
        both(s, name, f, a, b, i, tol=1e-3)

    def straight(d, w, x):
        """Rounded weights; the gradient goes past the rounding."""
        w = w.requires_grad_()
        scale = w.detach().abs().amax(1, keepdim=True) / 7
        q = w + ((w / scale).round().clamp(-8, 7) * scale - w).detach()
        y = x @ q.t()
        return [y, *torch.autograd.grad(y.square().sum(), w)]
    both(s, "rounded weights that learn", straight, R(5, 8), R(3, 8), tol=1e-3)

    def drawn(d):
        n, out = 20000, []
        x = torch.empty(n, device=d)
        for fill, mean, tol in ((lambda: x.uniform_(-1, 3), 1., .05), (lambda: x.normal_(2., .5), 2., .05), (lambda: x.bernoulli_(.3), .3, .05), (lambda: x.exponential_(2.), .5, .05), (lambda: torch.poisson(torch.full_like(x, 3.)), 3., .1), (lambda: torch.multinomial(torch.tensor([.2, .8], device=d), n, replacement=True), .8, .05),
                                (lambda: torch.normal(torch.ones_like(x), 1.), 1., .05), (lambda: torch.randint_like(x, 0, 5), 2., .1), (lambda: nn.init.kaiming_uniform_(torch.empty(100, 200, device=d)), 0., .01), (lambda: nn.init.trunc_normal_(torch.empty(100, 200, device=d), 1., .5, 0., 2.), 1., .02)):
            got = fill().float().mean()
            assert abs(got.item() - mean) < tol, (mean, got)
        once = torch.multinomial(torch.ones(9, device=d), 9).sort()[0]
        return [once, nn.init.eye_(torch.empty(3, 3, device=d)), (lambda q: q @ q.t())(nn.init.orthogonal_(torch.empty(4, 6, device=d)))]
    both(s, "numbers drawn in every way", drawn, tol=1e-3)


def host(check, near):
    s = "programs: around the device"

    class Squares(torch.utils.data.IterableDataset):
        def __iter__(self):
            here = torch.utils.data.get_worker_info()
            for k in range(here.id if here else 0, 24, here.num_workers if here else 1):
                yield torch.full((3,), float(k)), k

    @check(s, "workers that read, a thread that pins, a device that sums")
    def _():
        loader = torch.utils.data.DataLoader(Squares(), 4, num_workers=2, pin_memory=True, persistent_workers=True)
        for _ in range(2):
            total = torch.zeros(3, device="npu")
            for x, k in loader:
                total += x.to("npu", non_blocking=True).sum(0)
            near(torch.full((3,), 276.), total, 0)

    @check(s, "two threads, a stream each")
    def _():
        x, out, failed = R(32, 32), [None, None], []

        def work(k):
            try:
                torch.npu.set_device(0)
                with torch.npu.stream(torch.npu.Stream()):
                    y = x.npu()
                    for _ in range(5):
                        y = (y @ y.t()).tanh() + k
                    out[k] = y.cpu()
            except Exception as e:
                failed.append(e)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not failed, failed
        for k in range(2):
            y = x
            for _ in range(5):
                y = (y @ y.t()).tanh() + k
            near(y, out[k], 1e-3)

    @check(s, "a traced and a scripted function")
    def _():
        m, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), R(3, 6)
        n = copy.deepcopy(m).npu()
        near(m(x), torch.jit.trace(n, x.npu())(x.npu()), 1e-4)

        @torch.jit.script
        def f(x: torch.Tensor) -> torch.Tensor:
            y = x
            for k in range(3):
                if k % 2 == 0:
                    y = y * 2 + x
            return y.sum(0)
        near(f(x), f(x.npu()), 1e-4)

    @check(s, "modules seen, changed and restored")
    def _():
        m, seen = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).npu(), []
        handle = m[1].register_full_backward_hook(lambda layer, gi, go: seen.append((gi[0].is_npu, go[0].shape)))
        state = {k: v.clone() for k, v in m.state_dict().items()}
        m(R(5, 6).npu()).sum().backward()
        handle.remove()
        assert seen == [(True, (5, 8))] and all(v.is_npu for v in state.values())
        near(torch.tensor(1), m.state_dict()["1.num_batches_tracked"], 0)
        m.load_state_dict({k: v.cpu() for k, v in state.items()}, strict=True)
        near(state["1.running_mean"], m[1].running_mean, 0)
        nn.utils.parametrize.register_parametrization(m[2], "weight", nn.Softplus())
        assert (m[2].weight >= 0).all() and m(R(5, 6).npu()).shape == (5, 2)

    @check(s, "garbage, views and shared storage")
    def _():
        x = torch.arange(24., device="npu")
        y = x.view(4, 6)[1:3, ::2]
        assert y.data_ptr() == x.data_ptr() + 24 and y.untyped_storage().data_ptr() == x.data_ptr() and y._base is x
        before = torch.npu.memory_allocated()
        big = [torch.empty(1 << 18, device="npu") for _ in range(4)]
        del big
        assert torch.npu.memory_allocated() == before
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().nbytes() == 0
        z = torch.empty(0, device="npu")
        torch.add(torch.ones(3, device="npu"), 1, out=z)
        near(torch.full((3,), 2.), z, 0)
        with torch.no_grad():
            w = nn.Parameter(torch.ones(3, device="npu"))
            w.data = torch.zeros(5, device="npu")
        assert w.shape == (5,) and torch.empty_like(w, device="cpu").device.type == "cpu"
