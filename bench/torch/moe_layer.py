"""Milliseconds of PyTorch for the products of one MoE layer in bf16: python bench/torch/moe_layer.py CONFIG [--threads N].

What layer_bench measures, less router, gathering and combining: for every expert its rows through gate, up and down as
bf16 linears with SwiGLU between, rows spread evenly over the experts; and the shared experts. Eager and torch.compile; a
variant that has not measured anything after --limit seconds is left out.
"""

import argparse
import json
import signal
import statistics
import time

import torch
import torch.nn.functional as F
from turns import Turns


def expert(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def random_weights(config):
    """-> experts, shared: slices of one block of random numbers at places of their own"""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    shared_width = width * config["n_shared_experts"]
    torch.manual_seed(1)
    block = (torch.randn(2 * hidden * max(width, shared_width)) * 0.02).to(torch.bfloat16)
    place = 0

    def weight(rows, columns):
        nonlocal place
        place = (place + 1234568) % (len(block) - rows * columns)
        return block[place : place + rows * columns].view(rows, columns).clone()

    mlp = lambda width: (weight(width, hidden), weight(width, hidden), weight(hidden, width))
    return [mlp(width) for _ in range(config["n_routed_experts"])], mlp(shared_width)


def measure(config, experts, shared, tokens, step, clock, runs):
    """-> seconds of each run"""
    rows = tokens * config["num_experts_per_tok"] // config["n_routed_experts"]
    x = torch.randn(tokens, config["hidden_size"], dtype=torch.bfloat16)
    parts = [torch.randn(rows, config["hidden_size"], dtype=torch.bfloat16) for _ in experts]
    seconds = []
    with torch.no_grad(), Turns() as turns:
        for run in range(runs + 1):
            if run > 0:  # the first one compiles and warms up
                turns.take()
            start = clock()
            for part, weights in zip(parts, experts):
                step(part, *weights)
            step(x, *shared)
            seconds.append(clock() - start)
    return seconds[1:]


def out_of_time(*_):
    raise TimeoutError("out of time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("tokens", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--variants", nargs="+", choices=["eager", "compile"], default=["eager", "compile"])
    parser.add_argument("--limit", type=int, default=600, help="seconds for one variant at one number of tokens")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    with open(arguments.config) as file:
        config = json.load(file)
    width = config["num_experts_per_tok"] * config["moe_intermediate_size"] + config["n_shared_experts"] * config["moe_intermediate_size"]
    experts, shared = random_weights(config)
    steps = {"eager": expert, "compile": torch.compile(expert, dynamic=False)}
    signal.signal(signal.SIGALRM, out_of_time)
    for name in arguments.variants:
        for tokens in arguments.tokens:
            flops = 6 * tokens * config["hidden_size"] * width
            what = f"PyTorch {torch.__version__} bf16 {name}, {arguments.threads} threads, {tokens} tokens"
            try:
                signal.alarm(arguments.limit)
                seconds = measure(config, experts, shared, tokens, steps[name], clock, arguments.runs)
                median = statistics.median(seconds)
                print(f"{what}: {median * 1e3:.1f} ms ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}), {flops / median / 1e9:.0f} GFLOP/s", flush=True)
            except Exception as error:  # a variant that does not run here is no result
                print(f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}", flush=True)
            signal.alarm(0)


if __name__ == "__main__":
    main()
