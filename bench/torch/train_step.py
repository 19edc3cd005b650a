"""Training tokens/s of PyTorch on the step that train_bench measures: python bench/torch/train_step.py CONFIG [--threads N].

The same model, rows, losses and AdamW; {fp32, bf16 autocast} x {eager, torch.compile}, the fastest named last. Experts get
their tokens by index_select and give them back by index_add, which is the best plain PyTorch has without custom kernels.
A variant that has not finished after --limit seconds is left out.
"""

import argparse
import json
import signal
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from turns import Turns


def rope_tables(config, length):
    half = config["head_dim"] // 2
    frequency = config["rope_theta"] ** (-torch.arange(half) / half)
    angle = torch.arange(length).unsqueeze(1) * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class SwiGlu(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@torch.compiler.disable(recursive=False)  # reads the counts on the host, which torch.compile cannot; experts are compiled
def through_experts(experts, rows, counts):
    parts = rows.split(counts.tolist())
    for part in parts:  # or it compiles for the counts of the first step, and then once more
        torch._dynamo.maybe_mark_dynamic(part, 0)
    return torch.cat([expert(part) for expert, part in zip(experts, parts)])


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.top_k, self.alpha = c["num_experts_per_tok"], c["aux_loss_alpha"]
        self.router = nn.Linear(c["hidden_size"], c["n_routed_experts"], bias=False)
        self.experts = nn.ModuleList(SwiGlu(c["hidden_size"], c["moe_intermediate_size"]) for _ in range(c["n_routed_experts"]))
        self.shared = SwiGlu(c["hidden_size"], c["n_shared_experts"] * c["moe_intermediate_size"])

    def forward(self, x):
        """x [rows, length, hidden] -> output, balance loss per row averaged."""
        rows, length, hidden = x.shape
        flat = x.reshape(-1, hidden)
        with torch.autocast("cpu", enabled=False):
            affinity = self.router(flat.float()).softmax(-1)
        gate, index = affinity.topk(self.top_k, -1)
        count = F.one_hot(index, affinity.shape[1]).sum(1).view(rows, length, -1).sum(1)
        f = count * affinity.shape[1] / (self.top_k * length)
        balance = self.alpha * (f * affinity.view(rows, length, -1).mean(1)).sum(1).mean()
        order = index.flatten().argsort(stable=True)
        token = order // self.top_k
        weight = gate.flatten().index_select(0, order).unsqueeze(1)
        gathered = flat.index_select(0, token)
        done = through_experts(self.experts, gathered, count.sum(0))
        out = torch.zeros_like(flat, dtype=torch.float32).index_add(0, token, done.float() * weight)
        return (out + self.shared(flat)).view_as(x), balance


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.qkv = nn.Linear(c["hidden_size"], (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        qkv = self.qkv(x).view(rows, length, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, -1))


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c["hidden_size"])), c["rms_norm_eps"]

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        blocks = []
        for layer in range(c["num_hidden_layers"]):
            dense = layer < c["first_k_dense_replace"]
            ffn = SwiGlu(c["hidden_size"], c["intermediate_size"]) if dense else Moe(c)
            blocks.append(nn.ModuleList([Norm(c), Attention(c), Norm(c), ffn]))
        self.blocks, self.norm = nn.ModuleList(blocks), Norm(c)
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=c["initializer_range"])

    def forward(self, tokens, targets, cos, sin):
        x, balance = self.embedding(tokens), 0.0
        for norm, attention, ffn_norm, ffn in self.blocks:
            x = x + attention(norm(x), cos, sin)
            y = ffn(ffn_norm(x))
            if isinstance(ffn, Moe):
                y, loss = y
                balance = balance + loss
            x = x + y
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + balance


def measure(config, arguments, autocast, compiled):
    """-> tokens per second, median of the steps after those that compile and warm up"""
    clock = time.process_time if arguments.threads == 1 else time.perf_counter  # as train_bench does
    torch.manual_seed(1)
    model = Model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    cos, sin = rope_tables(config, arguments.seq)
    warm_up = 3 if compiled else 1
    batch = torch.randint(0, config["vocab_size"], (warm_up + arguments.steps, arguments.batch, arguments.seq + 1))
    seconds = []
    with Turns() as turns:
        for number, tokens in enumerate(batch):
            if number >= warm_up:
                turns.take()
            start = clock()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = run(tokens[:, :-1], tokens[:, 1:], cos, sin)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(clock() - start)
    return arguments.batch * arguments.seq / statistics.median(seconds[warm_up:])


def out_of_time(*_):
    raise TimeoutError("out of time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--variants", nargs="+", choices=["eager", "compile"], default=["eager", "compile"])
    parser.add_argument("--types", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--limit", type=int, default=600, help="seconds for each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with open(arguments.config) as file:
        config = json.load(file)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    results = {}
    signal.signal(signal.SIGALRM, out_of_time)
    for variant in arguments.variants:
        for kind in arguments.types:
            name = f"{kind}{' autocast' if kind == 'bf16' else ''}, {variant}"
            try:
                signal.alarm(arguments.limit)
                results[name] = measure(config, arguments, kind == "bf16", variant == "compile")
                print(f"PyTorch {torch.__version__} {name}: {results[name]:.0f} tokens/s", flush=True)
            except Exception as error:  # a variant that does not run here is no result
                print(f"PyTorch {torch.__version__} {name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}", flush=True)
            signal.alarm(0)
    if not results:
        raise SystemExit("PyTorch: no variant ran")
    best = max(results, key=results.get)
    print(f"PyTorch's fastest: {best}, {results[best]:.0f} tokens/s with {arguments.threads} threads")


if __name__ == "__main__":
    main()
