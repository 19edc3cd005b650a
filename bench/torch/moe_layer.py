"""Milliseconds of PyTorch for the products of one MoE layer in bf16: python bench/torch/moe_layer.py CONFIG [--threads N].

What layer_bench measures, less router, gathering and combining: for every expert its rows through gate, up and down as
bf16 linears with SwiGLU between, rows spread evenly over the experts; and the shared experts. Eager and torch.compile.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as F


def expert(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def measure(config, tokens, step, clock, runs=9):
    """-> median seconds"""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    torch.manual_seed(1)
    weight = lambda rows, columns: torch.randn(rows, columns, dtype=torch.bfloat16) * 0.02
    count = config["n_routed_experts"]
    experts = [(weight(width, hidden), weight(width, hidden), weight(hidden, width)) for _ in range(count)]
    shared_width = width * config["n_shared_experts"]
    shared = (weight(shared_width, hidden), weight(shared_width, hidden), weight(hidden, shared_width))
    rows = tokens * config["num_experts_per_tok"] // count
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16)
    parts = [torch.randn(rows, hidden, dtype=torch.bfloat16) for _ in range(count)]
    seconds = []
    with torch.no_grad():
        for run in range(runs + 2):
            start = clock()
            for part, weights in zip(parts, experts):
                step(part, *weights)
            step(x, *shared)
            if run > 1:  # the first ones compile and warm up
                seconds.append(clock() - start)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("tokens", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    with open(arguments.config) as file:
        config = json.load(file)
    width = config["num_experts_per_tok"] * config["moe_intermediate_size"] + config["n_shared_experts"] * config["moe_intermediate_size"]
    for name, step in (("eager", expert), ("torch.compile", torch.compile(expert, dynamic=False))):
        for tokens in arguments.tokens:
            flops = 6 * tokens * config["hidden_size"] * width
            try:
                seconds = measure(config, tokens, step, clock)
                print(f"PyTorch {torch.__version__} bf16 {name}, {arguments.threads} threads, {tokens} tokens: {seconds * 1e3:.1f} ms, {flops / seconds / 1e9:.0f} GFLOP/s", flush=True)
            except Exception as error:  # a variant that does not run here is no result
                print(f"PyTorch {torch.__version__} bf16 {name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
