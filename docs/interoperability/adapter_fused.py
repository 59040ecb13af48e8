"""What each of two ranks does with the adapter's operators that calculate and communicate at once, for torch_npu.py: products with
sums, gathers and exchanges of rows, and tokens to experts on other ranks and back. The CPU does the two steps apart."""
import torch
import torch.distributed as dist
import torch_npu

N = 2


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def name(group, r):
    return group._get_backend(torch.device("npu")).get_hccl_comm_name(r)


def run(r, near, part):
    dev = f"npu:{r}"
    {"fused": products, "fused exchanges": exchanges, "experts": experts}[part](r, dev, near)


def products(r, dev, near):
    """Weights cut by rows or by columns, sequences cut over the ranks."""
    dist.barrier()
    group = name(dist.group.WORLD, r)
    a, b = [data(4, 256, seed=10 + k) for k in range(N)], [data(256, 6, seed=20 + k) for k in range(N)]
    parts = [(x.float() @ y.float()).half().float() for x, y in zip(a, b)]
    x, y = a[r].to(dev), b[r].to(dev)
    near(sum(parts), torch_npu.npu_mm_all_reduce_base(x, y, group).float(), 2e-2)
    # The weight as torch's linear layers hold it, seen through its strides.
    near(sum(parts), torch_npu.npu_mm_all_reduce_base(x, b[r].t().contiguous().to(dev).t(), group).float(), 2e-2)
    bias, more = data(6, seed=5), data(4, 6, seed=6)
    near(sum(parts) + 2 * bias.float(), torch_npu.npu_mm_all_reduce_base(x, y, group, bias=bias.to(dev)).float(), 2e-2)
    near(sum(parts) + 2 * more.float(), torch_npu.npu_mm_all_reduce_base(x, y, group, x3=more.to(dev)).float(), 2e-2)
    whole = torch.cat(a)
    out, gathered = torch_npu.npu_all_gather_base_mm(x, y, group, N)
    near(whole.float() @ b[r].float(), out.float(), 2e-2)
    near(whole, gathered, 0)
    near(sum(parts)[2 * r:2 * r + 2], torch_npu.npu_mm_reduce_scatter_base(x, y, group, N).float(), 2e-2)


def exchanges(r, dev, near):
    """Rows to all ranks before the product, columns after it."""
    dist.barrier()
    group = name(dist.group.WORLD, r)
    a = [data(4, 8, seed=30 + k) for k in range(N)]
    b = data(16, 6, seed=32)
    out, wide = torch_npu.npu_all_to_all_matmul(a[r].to(dev), b.to(dev), group, N)
    mine = torch.cat([x[2 * r:2 * r + 2] for x in a], 1)
    near(mine, wide, 0)
    near(mine.float() @ b.float(), out.float(), 2e-2)
    c = [data(8, 6, seed=40 + k) for k in range(N)]
    out = torch_npu.npu_matmul_all_to_all(a[r].to(dev), c[r].to(dev), group, N)
    near(torch.cat([(x.float() @ w.float())[:, 3 * r:3 * r + 3] for x, w in zip(a, c)]), out.float(), 2e-2)


def experts(r, dev, near):
    """Four experts, two on each rank; expert e multiplies by e + 1."""
    group = dist.new_group([0, 1])
    # The group's communicator is made with the first question for its name; nothing else may use it.
    named = dict(group_ep=name(group, r), ep_world_size=N, ep_rank_id=r, moe_expert_num=4, comm_alg="fullmesh")
    x, weights = data(3, 64, seed=50 + r), torch.rand(3, 2, generator=torch.Generator().manual_seed(60 + r))
    ids = torch.tensor([[0, 3], [1, 2], [3, 0]], dtype=torch.int32).roll(r, 0)
    rows, _, note, numbers, counts, other, scales = torch_npu.npu_moe_distribute_dispatch_v2(x.to(dev), ids.to(dev), expert_scales=weights.to(dev), **named)
    near(torch.tensor([2, 1] if r == 0 else [1, 2]) * 2, numbers, 0)
    factors = torch.repeat_interleave(torch.tensor([2. * r + 1, 2. * r + 2]), numbers.cpu())
    made = rows.clone()
    made[:len(factors)] = rows[:len(factors)] * factors.half().to(dev)[:, None]
    made[len(factors):] = 0
    back = torch_npu.npu_moe_distribute_combine_v2(made, ids.to(dev), note, counts, weights.to(dev), tp_send_counts=other, expand_scales=scales, **named)
    near(x.float() * (weights * (ids + 1)).sum(1, keepdim=True), back.float(), 2e-2)
