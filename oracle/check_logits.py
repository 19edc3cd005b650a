"""Compares `dsmoe logits` with the twin on a small model folder: python oracle/check_logits.py MODEL [--dsmoe build/dsmoe]."""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

import deepseek_twin as twin
import safetensors_file


def pick_tokens(folder, cfg, count, seed):
    """-> tokens, declared context (None: the default)."""
    golden = os.path.join(folder, "golden.safetensors")
    if count is None and os.path.exists(golden):
        tensors, metadata = safetensors_file.read(golden)
        context = int(metadata["context"])
        return tensors["tokens"], context if context != cfg.max_position_embeddings else None
    return np.random.Generator(np.random.PCG64(seed)).integers(0, cfg.vocab_size, count or 24), None


def run_engine(binary, folder, tokens, extra):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out.safetensors")
        command = [binary, "logits", folder, "--tokens", ",".join(map(str, tokens)), "-o", out, *extra]
        subprocess.run(command, check=True)
        return safetensors_file.read(out)[0]


def compare(exact, found, tolerance):
    """Prints one line per tensor. -> did all agree?"""
    good = True

    def line(name, text, passed):
        nonlocal good
        good = good and passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {text}")

    def relative(a, b):
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    error = relative(found["logits"], exact.logits.numpy())
    line("logits", f"relative error {error:.2g}", error <= tolerance)
    for layer, routing in exact.routing.items():
        same = found[f"layers.{layer}.topk_index"] == routing.index.numpy()
        text = f"{(~same).sum()} of {same.size} differ, closest gap {routing.margin:.2g}"
        line(f"layers.{layer}.topk_index", text, bool(same.all()))
        error = np.abs(found[f"layers.{layer}.topk_weight"] - routing.gate.numpy()).max()
        line(f"layers.{layer}.topk_weight", f"largest error {error:.2g}", bool(error <= tolerance))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dsmoe", default="build/dsmoe")
    parser.add_argument("--count", type=int, help="random tokens instead of those of golden.safetensors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, help="declared context, passed on to dsmoe")
    parser.add_argument("--bf16", action="store_true", help="compare with the twin's bf16 rounding points")
    parser.add_argument("--tolerance", type=float, help="default 1e-5, with --bf16 1e-2")
    arguments = parser.parse_args()

    torch.set_grad_enabled(False)
    cfg, weights = twin.load(arguments.model)
    tokens, context = pick_tokens(arguments.model, cfg, arguments.count, arguments.seed)
    context = arguments.context or context
    rounded = twin.to_bf16 if arguments.bf16 else twin.identity
    exact = twin.forward(cfg, weights, torch.tensor(tokens).long(), context=context, rounded=rounded)
    extra = ["--dtype", "bf16" if arguments.bf16 else "fp32"]
    if context:
        extra += ["--context", str(context)]
    found = run_engine(arguments.dsmoe, arguments.model, tokens, extra)
    sys.exit(0 if compare(exact, found, arguments.tolerance or (1e-2 if arguments.bf16 else 1e-5)) else 1)


if __name__ == "__main__":
    main()
