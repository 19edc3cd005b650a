"""A trained run seen by others: its weights by `safetensors`, its tokenizer by `tokenizers`, its validation loss by the twin.

python oracle/check_trained.py RUN   (a run of `dsmoe train`; its --valid-rows must have covered the whole validation part)
"""

import argparse
import glob
import json
import os
import sys

import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import deepseek_twin as twin
import token_shards
from checkpoint_layout import weight_shapes

TOLERANCE = 1e-4


def load(folder):
    """-> Config, weights in double, all through the package `safetensors`."""
    with open(os.path.join(folder, "config.json")) as file:
        cfg = twin.Config(json.load(file))
    weights = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        with safe_open(path, framework="pt") as file:
            weights.update({name: file.get_tensor(name) for name in file.keys()})
    shapes = weight_shapes(cfg)
    wrong = sorted(n for n in shapes.keys() | weights.keys() if n not in weights or shapes.get(n) != tuple(weights[n].shape))
    if wrong:
        raise ValueError(f"{folder}: {wrong[0]} is missing, unknown or of another shape")
    return cfg, {n: w.double() for n, w in weights.items()}


def identity(folder):
    """What the run was made from: seed, tokens per row, share held out."""
    with safe_open(os.path.join(folder, "train_state.safetensors"), framework="pt") as file:
        values = json.loads(file.metadata()["identity"])
    return values["seed"], values["seq"], float(values["data"].split(",")[1].split()[0])


def check_tokenizer(path, documents, cfg):
    """Text of every document and back. -> documents that came back as they were"""
    tokenizer = Tokenizer.from_file(path)
    special = {cfg.get("bos_token_id"), cfg.get("eos_token_id")}
    same = 0
    for tokens, _ in documents:
        ids = [t for t in tokens.tolist() if t not in special]
        text = tokenizer.decode(ids, skip_special_tokens=False)
        same += tokenizer.encode(text, add_special_tokens=False).ids == ids
    return same


def validation_loss(cfg, weights, documents, seq, rounded):
    """Mean of -log p over counted targets; a document longer than a row is cut, and the parts do not see each other."""
    nats, count = 0.0, 0
    for tokens, counted in documents:
        for begin in range(0, len(tokens) - 1, seq):
            end = min(begin + seq, len(tokens) - 1)
            targets = torch.from_numpy(tokens[begin + 1 : end + 1])
            chosen = torch.from_numpy(counted[begin + 1 : end + 1])
            if not chosen.any():
                continue
            out = twin.forward(cfg, weights, torch.from_numpy(tokens[begin:end]), context=seq, rounded=rounded)
            log_prob = out.logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
            nats -= log_prob[chosen].sum().item()
            count += int(chosen.sum())
    return nats / count, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--cache", help="folder of the token shards; default RUN/cache")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)

    folder = max(glob.glob(os.path.join(arguments.run, "step-*")))
    cfg, weights = load(folder)
    print(f"ok   safetensors: {len(weights)} tensors of {folder}")
    seed, seq, fraction = identity(folder)
    documents = token_shards.read_corpus(arguments.cache or os.path.join(arguments.run, "cache"))
    held_out = token_shards.validation_part(documents, fraction, seed)
    same = check_tokenizer(os.path.join(folder, "tokenizer.json"), held_out, cfg)
    good = same == len(held_out)
    print(f"{'ok  ' if good else 'FAIL'} tokenizers: {same} of {len(held_out)} documents came back from text as they were")

    with open(os.path.join(arguments.run, "metrics.jsonl")) as file:
        expected = json.loads(file.readlines()[-1])["validation_loss"]
    rounded = twin.to_bf16 if cfg.torch_dtype == "bfloat16" else twin.identity
    loss, count = validation_loss(cfg, weights, held_out, seq, rounded)
    close = abs(loss - expected) <= TOLERANCE
    print(f"{'ok  ' if close else 'FAIL'} validation loss: run {expected:.6f}, twin {loss:.6f}, difference "
          f"{abs(loss - expected):.2g}, {count} targets of {len(held_out)} documents")
    sys.exit(0 if good and close else 1)


if __name__ == "__main__":
    main()
