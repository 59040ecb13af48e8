"""Scripts of the kind that people run first on a new device, for torch_npu.py: each as one would write it, compared with the CPU."""
import copy, io, os, subprocess, sys, tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def R(*shape, seed=[0]):
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))


def register(check, near):
    memory(check, near)
    randomness(check, near)
    precision(check, near)
    checkpoints(check, near)
    streams(check, near)
    files(check, near)
    learning(check, near)


def memory(check, near):
    s = "scripts: memory"

    @check(s, "peak and current")
    def _():
        torch.npu.synchronize()
        torch.npu.empty_cache()
        torch.npu.reset_peak_memory_stats()
        base = torch.npu.memory_allocated()
        x = torch.empty(4 << 20, dtype=torch.uint8, device="npu")
        y = torch.empty(8 << 20, dtype=torch.uint8, device="npu")
        del y
        assert torch.npu.memory_allocated() - base >= 4 << 20
        assert torch.npu.max_memory_allocated() - base >= 12 << 20
        assert torch.npu.memory_reserved() >= 12 << 20
        del x
        torch.npu.empty_cache()
        assert torch.npu.memory_allocated() == base
        torch.npu.reset_peak_memory_stats()
        assert torch.npu.max_memory_allocated() == base

    @check(s, "statistics and summary")
    def _():
        x = torch.ones(1000, device="npu")
        stats = torch.npu.memory_stats()
        for key in ("allocated_bytes.all.current", "reserved_bytes.all.peak", "num_alloc_retries", "allocation.all.allocated"):
            assert key in stats, key
        text = torch.npu.memory_summary()
        assert "Allocated memory" in text and x.sum().item() == 1000
        assert isinstance(torch.npu.memory_snapshot(), list)

    @check(s, "out of memory is caught and recovered from")
    def _():
        total = torch.npu.mem_get_info()[1]
        x = torch.arange(5., device="npu")
        for _ in range(2):
            try:
                torch.empty(2 * total, dtype=torch.uint8, device="npu")
                raise AssertionError("twice the memory was given")
            except torch.OutOfMemoryError as e:
                assert "out of memory" in str(e)
        torch.npu.empty_cache()
        near(torch.arange(5.) * 2, x * 2, 0)

    @check(s, "a share of the memory")
    def _():
        torch.npu.set_per_process_memory_fraction(.25)
        try:
            torch.empty(torch.npu.mem_get_info()[1] // 2, dtype=torch.uint8, device="npu")
            raise AssertionError("more than the share was given")
        except torch.OutOfMemoryError:
            pass
        finally:
            torch.npu.set_per_process_memory_fraction(1.)


def randomness(check, near):
    s = "scripts: random state"
    draws = lambda: [torch.rand(20, device="npu"), torch.randn(20, device="npu"), torch.randint(0, 99, (20,), device="npu"), F.dropout(torch.ones(64, device="npu"), .5)]
    same = lambda a, b: all(torch.equal(x, y) for x, y in zip(a, b))

    @check(s, "manual_seed")
    def _():
        torch.npu.manual_seed(5)
        a = draws()
        torch.npu.manual_seed(5)
        assert same(a, draws()) and not same(a, draws())
        torch.manual_seed(5)
        b = draws()
        torch.npu.manual_seed_all(5)
        assert same(a, b) and same(b, draws())

    @check(s, "state saved and restored")
    def _():
        state = torch.npu.get_rng_state()
        a = draws()
        torch.npu.set_rng_state(state)
        assert same(a, draws())
        with torch.random.fork_rng(devices=[0], device_type="npu"):
            draws()
        g = torch.Generator(device="npu").manual_seed(3)
        x = torch.rand(9, device="npu", generator=g)
        assert torch.equal(x, torch.rand(9, device="npu", generator=g.manual_seed(3))) and g.initial_seed() == 3

    @check(s, "a network with dropout, twice")
    def _():
        m, x = nn.Sequential(nn.Linear(8, 32), nn.Dropout(.5), nn.Linear(32, 4)).npu(), R(6, 8).npu()
        grads = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            m.zero_grad()
            m(x).square().sum().backward()
            grads.append(m[0].weight.grad.clone())
        # Sums are formed in any order unless determinism is asked for.
        near(grads[0], grads[1], 1e-5)
        assert not torch.allclose(grads[0], grads[2], 1e-3)

    @check(s, "the same bits when determinism is asked for")
    def _():
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            m, x = small().npu(), R(64, 12).npu()
            runs = [torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for _ in range(4)]
            assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))
        finally:
            torch.use_deterministic_algorithms(False)

    @check(s, "distributions")
    def _():
        from torch import distributions as D
        for d, mean in ((D.Normal(torch.tensor(1.).npu(), torch.tensor(2.).npu()), 1.), (D.Bernoulli(torch.tensor(.25).npu()), .25), (D.Uniform(torch.tensor(-1.).npu(), torch.tensor(3.).npu()), 1.),
                        (D.Categorical(torch.tensor([.5, .25, .25]).npu()), .75), (D.Exponential(torch.tensor(2.).npu()), .5)):
            near(torch.tensor(mean), d.sample((8000,)).float().mean(), .1)


def small(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5))


def precision(check, near):
    s = "scripts: mixed precision"
    for dtype in (torch.bfloat16, torch.float16):
        @check(s, f"five steps with autocast in {dtype} and a scaler")
        def _(dtype=dtype):
            m, data = small(), [(R(8, 12), torch.randint(0, 5, (8,))) for _ in range(5)]
            sides = []
            for d in ("cpu", "npu"):
                n = copy.deepcopy(m).to(d)
                o, scaler, losses = torch.optim.AdamW(n.parameters(), 1e-2), torch.amp.GradScaler(d, init_scale=256., enabled=dtype == torch.float16), []
                for x, t in data:
                    o.zero_grad(set_to_none=True)
                    with torch.autocast(d, dtype=dtype):
                        y = n(x.to(d))
                        assert y.dtype == dtype
                        loss = F.cross_entropy(y.float(), t.to(d))
                    scaler.scale(loss).backward()
                    scaler.unscale_(o)
                    nn.utils.clip_grad_norm_(n.parameters(), 1.)
                    scaler.step(o)
                    scaler.update()
                    losses.append(loss.detach())
                sides.append(torch.stack(losses))
            near(*sides, 5e-2)

    @check(s, "an overflow skips the step and halves the scale")
    def _():
        n = nn.Linear(4, 4).npu()
        o, scaler = torch.optim.SGD(n.parameters(), .1), torch.amp.GradScaler("npu", init_scale=1024., growth_interval=2)
        before = n.weight.detach().clone()
        scaler.scale((n(torch.ones(2, 4).npu()) * float("inf")).sum()).backward()
        scaler.step(o)
        scaler.update()
        assert torch.equal(before, n.weight) and scaler.get_scale() == 512.
        for _ in range(2):
            o.zero_grad()
            scaler.scale(n(torch.ones(2, 4).npu()).sum()).backward()
            scaler.step(o)
            scaler.update()
        assert not torch.equal(before, n.weight) and scaler.get_scale() == 1024.

    @check(s, "which operators autocast lowers")
    def _():
        a = torch.randn(4, 4).npu()
        with torch.autocast("npu", dtype=torch.float16):
            assert (a @ a).dtype == torch.float16 and a.softmax(-1).dtype == torch.float32 and (a + a).dtype == torch.float32
            with torch.autocast("npu", enabled=False):
                assert (a @ a).dtype == torch.float32
        assert torch.npu.is_bf16_supported()

    @check(s, "weights in bf16, a copy in f32")
    def _():
        m = small()
        n = copy.deepcopy(m).npu().bfloat16()
        wide = [p.detach().float().clone().requires_grad_() for p in n.parameters()]
        o, x = torch.optim.AdamW(wide, 1e-2), R(8, 12).npu().bfloat16()
        losses = []
        for _ in range(5):
            n.zero_grad()
            loss = n(x).float().square().mean()
            loss.backward()
            for w, p in zip(wide, n.parameters()):
                w.grad = p.grad.float()
            o.step()
            with torch.no_grad():
                torch._foreach_copy_([p for p in n.parameters()], wide)
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def checkpoints(check, near):
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
    s = "scripts: recomputation"
    for reentrant in (False, True):
        @check(s, f"with dropout, use_reentrant={reentrant}")
        def _(reentrant=reentrant):
            m, x = nn.Sequential(nn.Linear(8, 32), nn.Dropout(.5), nn.Tanh(), nn.Linear(32, 8)).npu(), R(4, 8).npu()
            grads = []
            for f in (m, lambda t: checkpoint(m, t, use_reentrant=reentrant)):
                torch.manual_seed(7)
                y = x.clone().requires_grad_()
                m.zero_grad()
                f(y).square().sum().backward()
                grads.append([y.grad, *[p.grad.clone() for p in m.parameters()]])
            for a, b in zip(*grads):
                near(a, b, 1e-6)

        @check(s, f"segments and autocast, use_reentrant={reentrant}")
        def _(reentrant=reentrant):
            m, x = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)]).npu(), R(4, 8).npu()
            grads = []
            for f in (m, lambda t: checkpoint_sequential(m, 2, t, use_reentrant=reentrant)):
                y = x.clone().requires_grad_()
                with torch.autocast("npu", dtype=torch.bfloat16):
                    out = f(y)
                out.float().square().sum().backward()
                grads.append(y.grad)
            near(*grads, 1e-2)

    @check(s, "activations on the host")
    def _():
        m, x = small().npu(), R(4, 12).npu()
        plain = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
        with torch.autograd.graph.save_on_cpu():
            y = m(x).square().sum()
        for a, b in zip(plain, torch.autograd.grad(y, list(m.parameters()))):
            near(a, b, 1e-5)


def streams(check, near):
    s = "scripts: streams and devices"

    @check(s, "copies and work on streams of their own")
    def _():
        x = [R(64, 64).pin_memory() for _ in range(4)]
        copying, out = torch.npu.Stream(), []
        ahead = None
        for i in range(5):
            ready = ahead
            if i < 4:
                with torch.npu.stream(copying):
                    t = x[i].to("npu", non_blocking=True)
                    e = copying.record_event()
                ahead = (t, e)
            if ready is not None:
                t, e = ready
                torch.npu.current_stream().wait_event(e)
                t.record_stream(torch.npu.current_stream())
                out.append((t @ t).sum())
        for a, b in zip(x, out):
            near((a @ a).sum(), b, 1e-3)

    @check(s, "timing by events")
    def _():
        a, b = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
        x = torch.randn(128, 128).npu()
        a.record()
        for _ in range(3):
            x = x @ x / 100
        b.record()
        torch.npu.synchronize()
        assert a.query() and b.query() and a.elapsed_time(b) > 0 and b.elapsed_time(a) < 0

    @check(s, "what a stream knows of itself")
    def _():
        one = torch.npu.Stream(priority=-1)
        assert torch.npu.current_stream() == torch.npu.default_stream() and one != torch.npu.default_stream()
        with torch.npu.stream(one):
            assert torch.npu.current_stream() == one
            torch.ones(9, device="npu").add_(1)
        one.synchronize()
        assert one.query() and one.device.index == 0

    @check(s, "several devices")
    def _():
        assert torch.npu.device_count() > 1
        x = R(5, 5)
        with torch.npu.device(1):
            a = torch.ones(5, 5, device="npu")
            assert a.get_device() == 1 and torch.npu.current_device() == 1
        assert torch.npu.current_device() == 0
        b = x.to("npu:0").to("npu:1") + a
        near(x + 1, b, 0)
        near(x + 1, b.npu(0), 0)
        p = torch.npu.get_device_properties(0)
        assert p.total_memory > 0 and "910" in torch.npu.get_device_name(0)

    @check(s, "one model on two devices, gradients brought together")
    def _():
        m, x, t = small(), R(8, 12), torch.randint(0, 5, (8,))
        F.cross_entropy(m(x), t, reduction="sum").backward()
        parts = [copy.deepcopy(m).to(f"npu:{d}") for d in (0, 1)]
        for d, n in enumerate(parts):
            n.zero_grad()
            F.cross_entropy(n(x[4 * d:4 * d + 4].to(f"npu:{d}")), t[4 * d:4 * d + 4].to(f"npu:{d}"), reduction="sum").backward()
        for p, q, r in zip(m.parameters(), *(n.parameters() for n in parts)):
            near(p.grad, q.grad + r.grad.to("npu:0"), 1e-4)

    @check(s, "a model cut over two devices")
    def _():
        m = small()
        a, b, x = copy.deepcopy(m[:2]).to("npu:0"), copy.deepcopy(m[2:]).to("npu:1"), R(8, 12)
        m(x).square().sum().backward()
        b(a(x.to("npu:0")).to("npu:1")).square().sum().backward()
        near(m[0].weight.grad, a[0].weight.grad, 1e-4), near(m[3].weight.grad, b[1].weight.grad, 1e-4)

    @check(s, "graph capture is refused by name")
    def _():
        # In a process of its own: the adapter's generators stay as if a capture went on.
        text = """
import torch, torch_npu
x, g = torch.ones(4, device="npu"), torch.npu.NPUGraph()
torch.npu.synchronize()
try:
    with torch.npu.graph(g):
        x + 1
except RuntimeError as e:
    assert "aclmdlRICapture" in str(e) or "capture" in str(e).lower(), e
    torch.npu.synchronize()
    assert (x + 1).sum().item() == 8
    print("refused")
"""
        out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=tempfile.gettempdir())
        assert "refused" in out.stdout, out.stdout + out.stderr[-500:]


def files(check, near):
    s = "scripts: files and copies"

    @check(s, "saved on one device, loaded on another")
    def _():
        x = {"a": R(3, 4).to("npu:1"), "b": [R(2).npu(), torch.arange(3)], "n": 7}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.pt")
            torch.save(x, path)
            for where in ("cpu", "npu:0", {"npu:1": "npu:0"}, torch.device("npu:1")):
                y = torch.load(path, map_location=where, weights_only=True)
                near(x["a"], y["a"], 0), near(x["b"][0], y["b"][0], 0)
                assert y["n"] == 7 and (where != "cpu" or y["a"].device.type == "cpu")

    @check(s, "a run is taken up again")
    def _():
        data = [(R(8, 12).npu(), torch.randint(0, 5, (8,)).npu()) for _ in range(6)]

        def steps(n, o, schedule, data):
            for x, t in data:
                o.zero_grad()
                F.cross_entropy(n(x), t).backward()
                o.step()
                schedule.step()
        make = lambda: (lambda n: (n, o := torch.optim.AdamW(n.parameters(), 1e-2), torch.optim.lr_scheduler.CosineAnnealingLR(o, 6)))(small().npu())
        whole = make()
        steps(*whole, data)
        first = make()
        steps(*first, data[:3])
        with io.BytesIO() as f:
            torch.save([x.state_dict() for x in first], f)
            f.seek(0)
            states = torch.load(f, weights_only=True)
        second = make()
        for x, state in zip(second, states):
            x.load_state_dict(state)
        steps(*second, data[3:])
        for p, q in zip(whole[0].parameters(), second[0].parameters()):
            near(p, q, 1e-4)

    @check(s, "there and back in every element type")
    def _():
        for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64):
            x = (R(5, 7) * 9).to(d)
            for y in (x, x.t(), x[1:4, ::2], x[:0]):
                z = y.npu()
                assert z.dtype == d and z.shape == y.shape and torch.equal(z.cpu(), y), d
        near(torch.tensor([1, 2]), torch.tensor([1, 2], device="npu"), 0)

    @check(s, "pinned memory and copies that do not wait")
    def _():
        h = R(1000).pin_memory()
        assert h.is_pinned()
        d = h.to("npu", non_blocking=True) * 2
        back = torch.empty(1000, pin_memory=True)
        back.copy_(d, non_blocking=True)
        torch.npu.current_stream().synchronize()
        near(h * 2, back, 0)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(20.)), 4, pin_memory=True, pin_memory_device="npu")
        near(torch.arange(20.), torch.cat([b.to("npu", non_blocking=True) for b, in loader]), 0)

    @check(s, "numbers, lists, text, numpy")
    def _():
        x = torch.arange(6.).reshape(2, 3).npu()
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and x[1, 2].item() == 5 and "device='npu:0'" in repr(x)
        assert x.cpu().numpy().sum() == 15 and [r.sum().item() for r in x] == [3, 12] and bool((x > -1).all())
        assert float(x.mean()) == 2.5 and int(x.argmax()) == 5 and len(x) == 2 and x.is_npu
        near(x, copy.deepcopy(x), 0)
        torch.testing.assert_close(x, x.clone())


def learning(check, near):
    s = "scripts: optimizers and schedules"
    O, L = torch.optim, torch.optim.lr_scheduler

    def train(make, schedule=None, steps=6, tol=2e-4, after=lambda n: None):
        m, data, sides = small(), [(R(8, 12), torch.randint(0, 5, (8,))) for _ in range(steps)], []
        for d in ("cpu", "npu"):
            n = copy.deepcopy(m).to(d)
            o = make(n)
            plan = schedule(o) if schedule else None
            for x, t in data:
                def closure():
                    o.zero_grad()
                    loss = F.cross_entropy(n(x.to(d)), t.to(d))
                    loss.backward()
                    return loss
                loss = o.step(closure)
                if plan:
                    plan.step(loss.item()) if isinstance(plan, L.ReduceLROnPlateau) else plan.step()
                after(n)
            sides.append([*n.parameters(), torch.tensor([g["lr"] for g in o.param_groups])])
        for a, b in zip(*sides):
            near(a, b, tol)

    for how in ({"foreach": False}, {"foreach": True}):
        for kind in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"):
            check(s, f"{kind} {how}")(lambda kind=kind, how=how: train(lambda n: getattr(O, kind)(n.parameters(), lr=1e-2, **how)))
    for name, make in {
        "Adam amsgrad, maximize": lambda n: O.Adam(n.parameters(), 1e-2, amsgrad=True, maximize=True, weight_decay=.1),
        "SGD nesterov": lambda n: O.SGD(n.parameters(), 1e-2, momentum=.9, nesterov=True, weight_decay=.01),
        "RMSprop centered": lambda n: O.RMSprop(n.parameters(), 1e-2, momentum=.9, centered=True),
        "Adafactor": lambda n: O.Adafactor(n.parameters(), 1e-2),
        "LBFGS": lambda n: O.LBFGS(n.parameters(), 1e-1, max_iter=3),
        "groups with rates of their own": lambda n: O.AdamW([{"params": n[0].parameters(), "lr": 1e-3}, {"params": n[3].parameters(), "weight_decay": 0.}], 1e-2),
    }.items():
        check(s, name)(lambda make=make: train(make, tol=1e-3))
    for kind in ("Adam", "AdamW", "SGD", "Adagrad"):
        @check(s, f"{kind} fused")
        def _(kind=kind):
            m, x, sides = small(), R(8, 12), []
            for d, fused in (("cpu", False), ("npu", kind in ("Adam", "AdamW"))):
                n = copy.deepcopy(m).to(d)
                o = getattr(O, kind)(n.parameters(), lr=1e-2, fused=fused)
                for _ in range(3):
                    o.zero_grad()
                    n(x.to(d)).square().mean().backward()
                    o.step()
                sides.append(list(n.parameters()))
            for a, b in zip(*sides):
                near(a, b, 2e-4)
    sgd = lambda n: O.SGD(n.parameters(), .1, momentum=.9)
    for name, schedule in {
        "StepLR": lambda o: L.StepLR(o, 2, .5), "MultiStepLR": lambda o: L.MultiStepLR(o, [2, 4]), "ExponentialLR": lambda o: L.ExponentialLR(o, .9),
        "CosineAnnealingLR": lambda o: L.CosineAnnealingLR(o, 6), "CosineAnnealingWarmRestarts": lambda o: L.CosineAnnealingWarmRestarts(o, 3),
        "OneCycleLR": lambda o: L.OneCycleLR(o, .2, total_steps=8), "CyclicLR": lambda o: L.CyclicLR(o, .01, .1, 2), "LambdaLR": lambda o: L.LambdaLR(o, lambda e: 1 / (1 + e)),
        "LinearLR": lambda o: L.LinearLR(o, .1, total_iters=4), "PolynomialLR": lambda o: L.PolynomialLR(o, 6), "ReduceLROnPlateau": lambda o: L.ReduceLROnPlateau(o, patience=0),
        "SequentialLR": lambda o: L.SequentialLR(o, [L.ConstantLR(o, .1, 2), L.ExponentialLR(o, .9)], [2]),
    }.items():
        check(s, name)(lambda schedule=schedule: train(sgd, schedule, tol=1e-3))

    @check(s, "clipping by norm and by value, lists and one by one")
    def _():
        for clip in (lambda p: nn.utils.clip_grad_norm_(p, .5, foreach=True), lambda p: nn.utils.clip_grad_norm_(p, .5, foreach=False), lambda p: nn.utils.clip_grad_norm_(p, .5, norm_type=1.), lambda p: nn.utils.clip_grad_value_(p, .05)):
            m, x = small(), R(8, 12)
            n = copy.deepcopy(m).npu()
            for net, d in ((m, "cpu"), (n, "npu")):
                net(x.to(d)).square().sum().backward()
                clip(list(net.parameters()))
            for p, q in zip(m.parameters(), n.parameters()):
                near(p.grad, q.grad, 1e-4)

    @check(s, "averages of weights")
    def _():
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        m, sides = small(), []
        x = R(8, 12)
        for d in ("cpu", "npu"):
            n = copy.deepcopy(m).to(d)
            o, mean, ema = O.SGD(n.parameters(), .1), AveragedModel(n), AveragedModel(n, multi_avg_fn=get_ema_multi_avg_fn(.9))
            for _ in range(4):
                o.zero_grad()
                n(x.to(d)).square().mean().backward()
                o.step()
                mean.update_parameters(n)
                ema.update_parameters(n)
            sides.append([*mean.parameters(), *ema.parameters()])
        for a, b in zip(*sides):
            near(a, b, 2e-4)

    @check(s, "gradients gathered over micro-batches")
    def _():
        m, x, t = small(), R(8, 12), torch.randint(0, 5, (8,))
        n = copy.deepcopy(m).npu()
        F.cross_entropy(m(x), t).backward()
        for a, b in zip(x.npu().chunk(4), t.npu().chunk(4)):
            (F.cross_entropy(n(a), b) / 4).backward()
        for p, q in zip(m.parameters(), n.parameters()):
            near(p.grad, q.grad, 1e-4)
