"""Scripts of the kind that people run first on a new device, for torch_npu.py: each as one would write it, compared with the CPU."""
import contextlib, copy, io, os, subprocess, sys, tempfile, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F


def R(*shape, seed=[0]):
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))


def register(case, check, near):
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

    memory(check, near)
    randomness(check, near)
    precision(check, near)
    checkpoints(check, near)
    streams(check, near)
    files(check, near)
    learning(check, near)
    layers(both, module)
    derivatives(both, check, near)
    indices(both)
    algebra(both)
    complex_numbers(both, case)
    ordinary(check, near)
    tracing(check, near)


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


def complex_numbers(both, case):
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
