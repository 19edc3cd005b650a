#!/usr/bin/env python3
"""Writes a Hugging Face folder of random weights of any size from a config.json, streaming; needs numpy only.

    tools/make_random_model.py config.json OUT --layers 8 --dtype bf16 --seed 1

Matrices are N(0, initializer_range) by table: 65,536 quantiles looked up with random 16-bit numbers, so the disk is the limit.
Each tensor depends on (seed, its name) alone: neither --layers nor the shard borders change it.
"""

import argparse
import json
import os
import statistics
import struct
import sys
import time
import zlib

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from checkpoint_layout import Config, weight_shapes  # noqa: E402
from safetensors_file import Bf16  # noqa: E402

TYPES = {"bf16": ("BF16", "bfloat16"), "f16": ("F16", "float16"), "f32": ("F32", "float32")}
CHUNK = 1 << 22  # elements made at a time: stays in the cache


def convert(x, dtype):
    return Bf16.from_float(x).bits if dtype == "BF16" else x.astype({"F16": np.float16, "F32": np.float32}[dtype])


def quantiles(std):
    normal = statistics.NormalDist(0, std)
    half = np.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(32768, 65536)])
    return np.concatenate([-half[::-1], half])


def stored_type(name, dtype):
    return "F32" if name.endswith("e_score_correction_bias") else dtype


def chunks(name, shape, seed, dtype, table):
    """The tensor's elements in order, a few megabytes at a time."""
    total = int(np.prod(shape))
    dtype = stored_type(name, dtype)
    if name.endswith("norm.weight"):
        yield convert(np.ones(total, np.float32), dtype)
    elif name.endswith("bias"):
        yield convert(np.zeros(total, np.float32), dtype)
    else:
        bits = np.random.SFC64([seed, zlib.crc32(name.encode())])
        for begin in range(0, total, CHUNK):
            count = min(CHUNK, total - begin)
            yield table[bits.random_raw(-(-count // 4)).view(np.uint16)[:count]]


def size_of(name, shape, dtype):
    return int(np.prod(shape)) * (4 if stored_type(name, dtype) == "F32" else 2)


def plan_shards(shapes, dtype, limit):
    """[[name]] in order of the forward pass, each shard at most `limit` bytes."""
    shards, used = [[]], 0
    for name, shape in shapes.items():
        size = size_of(name, shape, dtype)
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def write_shard(path, names, shapes, seed, dtype, table):
    names = sorted(names, key=lambda n: stored_type(n, dtype) != "F32")  # F32 first: every tensor aligned
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        end = at + size_of(name, shapes[name], dtype)
        header[name] = {"dtype": stored_type(name, dtype), "shape": list(shapes[name]), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            for chunk in chunks(name, shapes[name], seed, dtype, table):
                left = memoryview(chunk).cast("B")
                while left:  # an unbuffered write may take less than it was given
                    left = left[file.write(left) :]
    print(f"{path}: {(at + len(text)) / 1e9:.2f} GB", file=sys.stderr)


def read_config(path, layers, torch_dtype):
    path = os.path.join(path, "config.json") if os.path.isdir(path) else path
    with open(path) as file:
        config = json.load(file)
    if layers is not None:
        config["num_hidden_layers"] = layers
    config["torch_dtype"] = torch_dtype
    return config


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="config.json, or a folder that holds one")
    parser.add_argument("out", help="folder to write")
    parser.add_argument("--layers", type=int, help="instead of num_hidden_layers")
    parser.add_argument("--dtype", choices=TYPES, default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--std", type=float, help="instead of initializer_range")
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000)
    arguments = parser.parse_args()

    dtype, torch_dtype = TYPES[arguments.dtype]
    config = read_config(arguments.config, arguments.layers, torch_dtype)
    shapes = weight_shapes(Config(config))
    std = arguments.std if arguments.std is not None else config.get("initializer_range", 0.02)
    table = convert(quantiles(std), dtype)
    shards = plan_shards(shapes, dtype, arguments.shard_bytes)

    os.makedirs(arguments.out, exist_ok=True)
    start, total = time.monotonic(), sum(size_of(n, s, dtype) for n, s in shapes.items())
    write_json(os.path.join(arguments.out, "config.json"), config)
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(os.path.join(arguments.out, file), names, shapes, arguments.seed, dtype, table)
        weight_map.update({n: file for n in names})
    if len(shards) > 1:
        write_json(os.path.join(arguments.out, "model.safetensors.index.json"),
                   {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
    parameters = sum(int(np.prod(s)) for s in shapes.values())
    print(f"{parameters:,} parameters, {total / 1e9:.2f} GB, {len(shapes)} tensors, {time.monotonic() - start:.1f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
