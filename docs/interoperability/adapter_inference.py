"""Further cases of torch_npu.py: attention over caches, products of integers, cells, scripts of a training kind."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

R = torch.randn


def attend(q, k, v, scale, sees=None, sink=None):
    """`[b,n,s,d]` by `[b,g,r,d]`; `sees` holds True where a key counts."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * scale
    if sees is not None:
        scores = scores.masked_fill(~sees, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)
    return weights[..., :k.shape[2]] @ v


def inference(check, near):
    s = "inference"
    import torch_npu

    def halves(*shapes):
        return [R(*x).half() for x in shapes]

    @check(s, "npu_fused_infer_attention_score: prompts, causal, of different lengths")
    def _():
        q, k, v = halves((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16))
        mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1).npu()
        out, lse = torch_npu.npu_fused_infer_attention_score(
            q.npu(), k.npu(), v.npu(), atten_mask=mask, actual_seq_lengths=[7, 4], actual_seq_lengths_kv=[9, 5], num_heads=4,
            num_key_value_heads=2, scale=.25, input_layout="BNSD", sparse_mode=3, softmax_lse_flag=True)
        for b, (m, n) in enumerate(((7, 9), (4, 5))):
            sees = torch.arange(n)[None] <= torch.arange(m)[:, None] + n - m
            near(attend(*[t[b:b + 1].float() for t in (q[:, :, :m], k[:, :, :n], v[:, :, :n])], .25, sees), out[b:b + 1, :, :m].float(), 4e-3)
        assert lse.shape == (2, 4, 7, 1)

    def paged():
        blocks, size, lengths = 8, 16, [19, 5]
        k, v = halves((blocks, size, 2 * 16), (blocks, size, 2 * 16))
        table = torch.tensor([[5, 2], [0, 0]], dtype=torch.int32)
        rows = lambda c, b: torch.cat([c[i] for i in table[b]])[:lengths[b]].reshape(1, -1, 2, 16).transpose(1, 2).float()
        return k, v, table, lengths, rows

    @check(s, "npu_fused_infer_attention_score: steps over pages")
    def _():
        k, v, table, lengths, rows = paged()
        q = R(2, 1, 4 * 16).half()
        out = torch_npu.npu_fused_infer_attention_score(q.npu(), k.npu(), v.npu(), block_table=table.npu(), actual_seq_lengths_kv=lengths,
                                                        num_heads=4, num_key_value_heads=2, scale=.25, input_layout="BSH", block_size=16)[0]
        for b in range(2):
            near(attend(q[b].reshape(1, 1, 4, 16).transpose(1, 2).float(), rows(k, b), rows(v, b), .25).transpose(1, 2).reshape(1, -1), out[b].float(), 4e-3)

    @check(s, "npu_incre_flash_attention over pages")
    def _():
        k, v, table, lengths, rows = paged()
        q = R(2, 1, 4 * 16).half()
        out = torch_npu.npu_incre_flash_attention(q.npu(), k.npu(), v.npu(), block_table=table.npu(), actual_seq_lengths=lengths, num_heads=4,
                                                  num_key_value_heads=2, scale_value=.25, input_layout="BSH", block_size=16)
        for b in range(2):
            near(attend(q[b].reshape(1, 1, 4, 16).transpose(1, 2).float(), rows(k, b), rows(v, b), .25).transpose(1, 2).reshape(1, -1), out[b].float(), 4e-3)

    @check(s, "npu_prompt_flash_attention")
    def _():
        q, k, v = halves((1, 4, 6, 16), (1, 4, 6, 16), (1, 4, 6, 16))
        out = torch_npu.npu_prompt_flash_attention(q.npu(), k.npu(), v.npu(), num_heads=4, scale_value=.25, input_layout="BNSD", next_tokens=65535)
        near(attend(q.float(), k.float(), v.float(), .25), out.float(), 4e-3)

    @check(s, "npu_fusion_attention_v2 with biases of slopes")
    def _():
        q, k, v = (R(1, 4, 6, 16) for _ in range(3))
        slopes = torch.tensor([.5, .25, .125, .0625])
        out = torch_npu.npu_fusion_attention_v2(q.npu(), k.npu(), v.npu(), 4, "BNSD", pse=slopes.npu(), pse_type=2, scale=.25)[0]
        far = (torch.arange(6)[:, None] - torch.arange(6)[None]).abs()
        scores = q @ k.transpose(-1, -2) * .25 - slopes[None, :, None, None] * far
        near(scores.softmax(-1) @ v, out, 1e-4)

    @check(s, "npu_quant_matmul and npu_trans_quant_param")
    def _():
        x, w = torch.randint(-9, 9, (5, 32), dtype=torch.int8), torch.randint(-9, 9, (32, 7), dtype=torch.int8)
        scale = torch.full((7,), .25)
        packed = torch_npu.npu_trans_quant_param(scale.npu())
        y = torch_npu.npu_quant_matmul(x.npu(), w.npu(), packed, output_dtype=torch.float16)
        near((x.int() @ w.int()).float() * .25, y.float(), 2e-3)

    @check(s, "npu_dynamic_quant")
    def _():
        x = R(5, 32).half()
        y, scale = torch_npu.npu_dynamic_quant(x.npu())
        near(x.float(), y.cpu().float() * scale.cpu()[:, None], 2e-2)

    @check(s, "npu_weight_quant_batchmatmul")
    def _():
        x, w = R(5, 32).half(), torch.randint(-9, 9, (32, 8), dtype=torch.int8)
        scale, offset = R(8).half(), R(8).half()
        y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), w.npu(), scale.npu(), offset.npu())
        near(x.float() @ ((w.float() + offset.float()) * scale.float()), y.float(), 1e-2)

    @check(s, "npu_anti_quant")
    def _():
        x, scale, offset = torch.randint(-9, 9, (5, 32), dtype=torch.int8), R(32), R(32)
        near((x.float() + offset) * scale, torch_npu.npu_anti_quant(x.npu(), scale.npu(), offset=offset.npu()).float(), 1e-2)


def cells(case, check, near):
    s = "cells and distances"

    def cell(make, device_state):
        def run():
            torch.manual_seed(5)
            m = make()
            n, sides = copy.deepcopy(m).npu(), []
            for net, d in ((m, "cpu"), (n, "npu")):
                torch.manual_seed(6)
                x, state = [R(3, 5).to(d) for _ in range(4)], device_state(d)
                out = []
                for step in x:
                    state = net(step, state)
                    out.append(state[0] if isinstance(state, tuple) else state)
                sum((o * o).sum() for o in out).backward()
                sides.append([*out, *[p.grad for p in net.parameters()]])
            for a, b in zip(*sides):
                near(a, b, 1e-4)
        return run
    zeros = lambda d: torch.zeros(3, 7, device=d)
    check(s, "LSTMCell, four steps and backward")(cell(lambda: nn.LSTMCell(5, 7), lambda d: (zeros(d), zeros(d))))
    check(s, "LSTMCell without biases")(cell(lambda: nn.LSTMCell(5, 7, bias=False), lambda d: (zeros(d), zeros(d))))
    check(s, "RNNCell")(cell(lambda: nn.RNNCell(5, 7), zeros))
    a, b = R(5, 7), R(4, 7)
    for p in (1., 2., 3., float("inf")):
        case(s, f"cdist of order {p} and its gradient", lambda x, y, p=p: torch.cdist(x, y, p), a, b, tol=1e-3, grad=True)
    case(s, "cdist of stacks", lambda x, y: torch.cdist(x.reshape(1, 5, 7).repeat(2, 1, 1), y.reshape(1, 4, 7)), a, b, tol=1e-3)
    case(s, "full factors", lambda x: [torch.linalg.svd(x)[0].abs(), torch.linalg.svd(x)[1]], R(4, 4), tol=1e-3)


def scripts(check, near):
    """Small training scripts, each against the same on the CPU."""
    s = "training scripts"

    def same(steps, make, data, loss, tol=2e-4, optimizer=lambda p: torch.optim.AdamW(p, .01)):
        torch.manual_seed(8)
        m = make()
        n = copy.deepcopy(m).npu()
        nets = [(m, optimizer(m.parameters()), "cpu"), (n, optimizer(n.parameters()), "npu")]
        for step in range(steps):
            torch.manual_seed(100 + step)
            batch = data()
            losses = []
            for net, o, d in nets:
                o.zero_grad()
                value = loss(net, *[x.to(d) for x in batch])
                value.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.)
                o.step()
                losses.append(value.detach().cpu())
            near(*losses, tol)

    @check(s, "gradients of micro-batches summed")
    def _():
        loss = lambda net, x, t: sum(F.cross_entropy(net(a), b) for a, b in zip(x.chunk(3), t.chunk(3))) / 3
        same(6, lambda: nn.Sequential(nn.Linear(9, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5)), lambda: [R(6, 9), torch.randint(0, 5, (6,))], loss)

    @check(s, "recomputed layers, both forms")
    def _():
        from torch.utils.checkpoint import checkpoint

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(9, 16), nn.Linear(16, 16), nn.Linear(16, 5)

            def forward(self, x):
                x = checkpoint(lambda y: F.silu(self.a(y)), x, use_reentrant=False)
                return self.c(checkpoint(lambda y: F.silu(self.b(y)), x, use_reentrant=True))
        same(6, Net, lambda: [R(4, 9), torch.randint(0, 5, (4,))], lambda net, x, t: F.cross_entropy(net(x), t))

    @check(s, "bf16 by autocast, as the CPU does it")
    def _():
        def loss(net, x, t):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return F.cross_entropy(net(x).float(), t)
        same(6, lambda: nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 5)), lambda: [R(8, 9), torch.randint(0, 5, (8,))], loss, tol=5e-2)

    @check(s, "weights in bf16 with a copy in f32")
    def _():
        torch.manual_seed(9)
        m = nn.Linear(16, 4).bfloat16()
        n = copy.deepcopy(m).npu()
        for net, d in ((m, "cpu"), (n, "npu")):
            main = [p.detach().float().requires_grad_() for p in net.parameters()]
            o = torch.optim.AdamW(main, .01)
            torch.manual_seed(10)
            for _ in range(4):
                net(R(5, 16).bfloat16().to(d)).float().square().mean().backward()
                for p, q in zip(net.parameters(), main):
                    q.grad, p.grad = p.grad.float(), None
                o.step()
                with torch.no_grad():
                    for p, q in zip(net.parameters(), main):
                        p.copy_(q)
        near(m.weight.float(), n.weight.float(), 2e-2)

    @check(s, "a learning rate that warms up and decays")
    def _():
        torch.manual_seed(11)
        m = nn.Linear(6, 3)
        n = copy.deepcopy(m).npu()
        for net, d in ((m, "cpu"), (n, "npu")):
            o = torch.optim.SGD(net.parameters(), .1, momentum=.9)
            plan = torch.optim.lr_scheduler.OneCycleLR(o, .2, total_steps=8)
            torch.manual_seed(12)
            for _ in range(8):
                o.zero_grad()
                net(R(4, 6).to(d)).square().mean().backward()
                o.step()
                plan.step()
        near(m.weight, n.weight, 1e-4)

    @check(s, "a recurrent language model")
    def _():
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.e, self.r, self.o = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 11)

            def forward(self, x):
                return self.o(self.r(self.e(x))[0])
        loss = lambda net, x: F.cross_entropy(net(x[:, :-1]).reshape(-1, 11), x[:, 1:].reshape(-1))
        same(5, Net, lambda: [torch.randint(0, 11, (3, 7))], loss)

    @check(s, "generation step by step with a cache")
    def _():
        torch.manual_seed(13)
        e, q, k, v, o = nn.Embedding(17, 16), *[nn.Linear(16, 16) for _ in range(3)], nn.Linear(16, 17)

        def generate(d):
            nets = [copy.deepcopy(m).to(d) for m in (e, q, k, v, o)]
            token, keys, values, out = torch.tensor([[3]], device=d), [], [], []
            with torch.no_grad():
                for _ in range(9):
                    x = nets[0](token)
                    keys.append(nets[2](x))
                    values.append(nets[3](x))
                    y = F.scaled_dot_product_attention(nets[1](x)[:, None], torch.cat(keys, 1)[:, None], torch.cat(values, 1)[:, None])[:, 0]
                    token = nets[4](y).argmax(-1)
                    out.append(token.item())
            return out
        assert generate("cpu") == generate("npu")

    @check(s, "copies on a stream of their own while another computes")
    def _():
        load, host = torch.npu.Stream(), [R(32, 32).pin_memory() for _ in range(6)]
        total, ready = torch.zeros(32, 32).npu(), None
        for i in range(7):
            event, coming = None, None
            if i < 6:
                with torch.npu.stream(load):
                    coming = host[i].to("npu", non_blocking=True)
                    event = load.record_event()
            if ready is not None:
                torch.npu.current_stream().wait_event(ready[1])
                ready[0].record_stream(torch.npu.current_stream())
                total += ready[0] @ ready[0]
            ready = (coming, event) if event else None
        near(sum(h @ h for h in host), total, 1e-3)


def register(case, check, near):
    inference(check, near)
    cells(case, check, near)
    scripts(check, near)
