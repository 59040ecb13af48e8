"""What each of four ranks does over `hccl`, for torch_npu.py: every collective in its forms, parts of unequal size, groups of
groups, batches of sends, a model of images and words trained in parts."""
import copy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

N = 4


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(r, near, part):
    dev = f"npu:{r}"
    of = lambda rank, *shape: data(*shape, seed=100 + rank)
    mine = lambda *shape: of(r, *shape).to(dev)
    every = lambda *shape: [of(k, *shape) for k in range(N)]
    if part == "coalesced":
        return many(r, dev, near, mine, every)
    collectives(r, dev, near, of, mine, every)
    unequal(r, dev, near, mine, of)
    points(r, dev, near, mine, of)
    groups(r, dev, near, mine, of)
    training(r, dev, near)


def collectives(r, dev, near, of, mine, every):
    x = mine(3, 5)
    dist.all_reduce(x)
    near(sum(every(3, 5)), x, 1e-5)
    for op, f in ((dist.ReduceOp.MAX, lambda t: t.amax(0)), (dist.ReduceOp.MIN, lambda t: t.amin(0)), (dist.ReduceOp.PRODUCT, lambda t: t.prod(0)), (dist.ReduceOp.AVG, lambda t: t.mean(0))):
        x = mine(7)
        work = dist.all_reduce(x, op, async_op=True)
        work.wait()
        near(f(torch.stack(every(7))), x, 1e-5)
    for dtype, tol in ((torch.bfloat16, 3e-2), (torch.float16, 4e-3), (torch.int32, 0), (torch.int64, 0), (torch.int8, 0)):
        x = (torch.arange(6) + r).to(dtype).to(dev)
        dist.all_reduce(x)
        near((4 * torch.arange(6) + 6).to(dtype).float(), x.float(), tol)
    x = mine(4)
    dist.reduce(x, 2)
    if r == 2:
        near(sum(every(4)), x, 1e-5)
    x = mine(5)
    dist.broadcast(x, 3)
    near(of(3, 5), x, 0)
    parts = [torch.empty(2, 3, device=dev) for _ in range(N)]
    dist.all_gather(parts, mine(2, 3))
    for a, b in zip(every(2, 3), parts):
        near(a, b, 0)
    whole = torch.empty(8, 3, device=dev)
    dist.all_gather_into_tensor(whole, mine(2, 3))
    near(torch.cat(every(2, 3)), whole, 0)
    part = torch.empty(2, 3, device=dev)
    dist.reduce_scatter_tensor(part, mine(8, 3))
    near(sum(every(8, 3))[2 * r:2 * r + 2], part, 1e-5)
    part = torch.empty(2, 3, device=dev)
    dist.reduce_scatter(part, list(mine(8, 3).chunk(4)))
    near(sum(every(8, 3))[2 * r:2 * r + 2], part, 1e-5)
    got = torch.empty(8, device=dev)
    dist.all_to_all_single(got, mine(8))
    near(torch.cat([x[2 * r:2 * r + 2] for x in every(8)]), got, 0)
    dist.barrier()
    objects = [None] * N
    dist.all_gather_object(objects, {"rank": r, "text": "x" * (r + 1)})
    assert objects == [{"rank": k, "text": "x" * (k + 1)} for k in range(N)]


def unequal(r, dev, near, mine, of):
    """Rank k has k + 1 rows; rank j gives rank k one row, two if k is above j."""
    parts = [torch.empty(k + 1, 3, device=dev) for k in range(N)]
    dist.all_gather(parts, mine(r + 1, 3))
    for k, p in enumerate(parts):
        near(of(k, k + 1, 3), p, 0)
    out = torch.empty(r + 1, 2, device=dev)
    dist.reduce_scatter(out, list(mine(10, 2).split([1, 2, 3, 4])))
    start = r * (r + 1) // 2
    near(sum(of(k, 10, 2) for k in range(N))[start:start + r + 1], out, 1e-5)
    rows = lambda j, k: 1 + (k > j)
    sends, gets = [rows(r, k) for k in range(N)], [rows(j, r) for j in range(N)]
    got = torch.empty(sum(gets), 2, device=dev)
    dist.all_to_all_single(got, mine(sum(sends), 2), gets, sends)
    part = lambda j: of(j, sum(rows(j, k) for k in range(N)), 2).split([rows(j, k) for k in range(N)])[r]
    near(torch.cat([part(j) for j in range(N)]), got, 0)
    # Nothing to send to the next.
    sends, gets = [0 if k == (r + 1) % N else 2 for k in range(N)], [0 if r == (j + 1) % N else 2 for j in range(N)]
    got = torch.empty(sum(gets), device=dev)
    dist.all_to_all_single(got, mine(6), gets, sends)
    place = lambda j: sum(0 if k == (j + 1) % N else 2 for k in range(r))
    near(torch.cat([of(j, 6)[place(j):place(j) + 2] for j in range(N) if r != (j + 1) % N]), got, 0)
    outs = [torch.empty(rows(j, r), device=dev) for j in range(N)]
    dist.all_to_all(outs, [torch.full((rows(r, k),), 10. * r + k, device=dev) for k in range(N)])
    for j, t in enumerate(outs):
        near(torch.full((rows(j, r),), 10. * j + r), t, 0)


def points(r, dev, near, mine, of):
    if r % 2 == 0:
        dist.send(mine(3, 2), r + 1)
    else:
        x = torch.empty(3, 2, device=dev)
        dist.recv(x, r - 1)
        near(of(r - 1, 3, 2), x, 0)
    # A ring, both ways at once.
    left, right = torch.empty(4, device=dev), torch.empty(4, device=dev)
    ops = [dist.P2POp(dist.isend, mine(4), (r + 1) % N), dist.P2POp(dist.irecv, left, (r - 1) % N), dist.P2POp(dist.isend, mine(4), (r - 1) % N), dist.P2POp(dist.irecv, right, (r + 1) % N)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    near(of((r - 1) % N, 4), left, 0), near(of((r + 1) % N, 4), right, 0)
    # A pipeline, one stage after another.
    x = torch.ones(3, device=dev)
    if r > 0:
        dist.recv(x, r - 1)
    x = x * (r + 2)
    if r < N - 1:
        dist.send(x, r + 1)
    else:
        near(torch.full((3,), 120.), x, 0)


def groups(r, dev, near, mine, of):
    from torch.distributed.device_mesh import init_device_mesh
    pairs, other = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    three = dist.new_group([0, 1, 3])
    x = mine(4)
    dist.all_reduce(x, group=pairs[r // 2])
    near(of(r // 2 * 2, 4) + of(r // 2 * 2 + 1, 4), x, 1e-5)
    y = mine(4)
    dist.all_reduce(y, group=other[r % 2])
    near(of(r % 2, 4) + of(r % 2 + 2, 4), y, 1e-5)
    if r != 2:
        z = mine(2)
        dist.broadcast(z, 3, group=three)
        near(of(3, 2), z, 0)
        whole = torch.empty(6, device=dev)
        dist.all_gather_into_tensor(whole, mine(2), group=three)
        near(torch.cat([of(k, 2) for k in (0, 1, 3)]), whole, 0)
    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("data", "model"))
    v = torch.full((1,), float(r), device=dev)
    dist.all_reduce(v, group=mesh.get_group("model"))
    near(torch.tensor([4. * (r // 2) + 1]), v, 0)
    # A matrix by columns, then by rows, over the second dimension of the mesh.
    a, b, x = data(6, 8, seed=1), data(8, 6, seed=2), data(3, 6, seed=3)
    k = r % 2
    part = (x.to(dev) @ a[:, 4 * k:4 * k + 4].to(dev)).relu() @ b[4 * k:4 * k + 4].to(dev)
    dist.all_reduce(part, group=mesh.get_group("model"))
    near((x @ a).relu() @ b, part, 1e-4)


def many(r, dev, near, mine, every):
    """Several tensors in one call."""
    from torch.distributed.distributed_c10d import _coalescing_manager
    xs = [mine(3), mine(2, 2)]
    with _coalescing_manager(device=torch.device(dev), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    near(sum(every(3)), xs[0], 1e-5), near(sum(every(2, 2)), xs[1], 1e-5)
    ins, outs = [mine(2), mine(3)], [torch.empty(8, device=dev), torch.empty(12, device=dev)]
    with _coalescing_manager(device=torch.device(dev), async_ops=True) as manager:
        for a, b in zip(outs, ins):
            dist.all_gather_into_tensor(a, b)
    manager.wait()
    near(torch.cat(every(2)), outs[0], 0), near(torch.cat(every(3)), outs[1], 0)
    ins, outs = [mine(8), mine(12)], [torch.empty(2, device=dev), torch.empty(3, device=dev)]
    with _coalescing_manager(device=torch.device(dev), async_ops=True) as manager:
        for a, b in zip(outs, ins):
            dist.reduce_scatter_tensor(a, b)
    manager.wait()
    near(sum(every(8))[2 * r:2 * r + 2], outs[0], 1e-5), near(sum(every(12))[3 * r:3 * r + 3], outs[1], 1e-5)


def training(r, dev, near):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.optim import ZeroRedundancyOptimizer
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 33), nn.GELU(), nn.Linear(33, 5))
    xs, ts = [data(8, 8, seed=k) for k in range(4)], [torch.arange(8) % 5 for _ in range(4)]
    part = slice(2 * r, 2 * r + 2)

    def steps(m, o, d, cut):
        for x, t in zip(xs, ts):
            o.zero_grad()
            F.cross_entropy(m(x[cut].to(d)), t[cut].to(d)).backward()
            o.step()
    alone = copy.deepcopy(base)
    steps(alone, torch.optim.AdamW(alone.parameters(), 1e-2), "cpu", slice(0, 8))
    same = lambda m: [near(p, q, 2e-4) for p, q in zip(alone.parameters(), m)]
    for how in ({}, {"bucket_cap_mb": 1e-4}, {"gradient_as_bucket_view": True, "static_graph": True}):
        ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(base).to(dev), device_ids=[r], **how)
        steps(ddp, torch.optim.AdamW(ddp.parameters(), 1e-2), dev, part)
        same(ddp.module.parameters())
    # Gradients of two micro-batches, summed over the ranks once.
    ddp, whole = nn.parallel.DistributedDataParallel(copy.deepcopy(base).to(dev), device_ids=[r]), copy.deepcopy(base)
    with ddp.no_sync():
        ddp(xs[0][part].to(dev)).square().mean().backward()
    ddp(xs[1][part].to(dev)).square().mean().backward()
    (whole(xs[0]).square().mean() + whole(xs[1]).square().mean()).backward()
    for p, q in zip(whole.parameters(), ddp.module.parameters()):
        near(p.grad, q.grad, 2e-4)
    ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(base).to(dev), device_ids=[r])
    steps(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2), dev, part)
    same(ddp.module.parameters())
    full = FullyShardedDataParallel(copy.deepcopy(base).to(dev), device_id=torch.device(dev))
    steps(full, torch.optim.AdamW(full.parameters(), 1e-2), dev, part)
    with FullyShardedDataParallel.summon_full_params(full):
        same(full.parameters())
    # Cut over one dimension of a mesh, copied over the other.
    cut = copy.deepcopy(base).to(dev)
    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("copies", "parts"))
    fully_shard(cut[0], mesh=mesh)
    fully_shard(cut, mesh=mesh)
    steps(cut, torch.optim.AdamW(cut.parameters(), 1e-2), dev, part)
    same([p.full_tensor() for p in cut.parameters()])
