"""A folder of random integers, as `dsmoe quantize` would write it: make_quantised_model.py CONFIG DIR --weights int4.

For measuring what only files can show, such as loading: 16 B parameters take a minute and little memory. Tensors are slices
of one block of random numbers.
"""

import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from checkpoint_layout import Config, weight_shapes  # noqa: E402

SHARD_BYTES = 5_000_000_000


def stored(name, shape, weights):
    """-> [(name, type, shape)] as files hold it; the head is int8 whatever the rest is"""
    if not (name.endswith("_proj.weight") or name == "lm_head.weight"):
        return [(name, "BF16", list(shape))]
    rows, columns = shape
    scale = (name + "_scale", "BF16", [rows, -(-columns // 32)])
    if weights == "int8" or name == "lm_head.weight":
        return [(name, "I8", list(shape)), scale]
    return [(name, "U8", [rows, -(-columns // 2)]), scale]


def size_of(tensor):
    return int(np.prod(tensor[2], dtype=np.int64)) * (2 if tensor[1] == "BF16" else 1)


def write_shard(path, tensors, pools):
    """Larger types first, then by name."""
    tensors = sorted(tensors, key=lambda t: (t[1] != "BF16", t[0]))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        header[tensor[0]] = {"dtype": tensor[1], "shape": tensor[2], "data_offsets": [end, end + size_of(tensor)]}
        end += size_of(tensor)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        place = 0
        for tensor in tensors:
            name, left = tensor[0], size_of(tensor)
            pool = pools["norm" if len(tensor[2]) == 1 else "scale" if name.endswith("_scale") else tensor[1]]
            while left:
                place = (place + 1234568) % (len(pool) // 2)
                part = pool[place // 8 * 8 :][:left]
                file.write(part.data)
                left -= len(part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("folder")
    parser.add_argument("--weights", choices=["int8", "int4"], default="int4")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    with open(arguments.config) as file:
        config = json.load(file)
    if arguments.layers:
        config["num_hidden_layers"] = arguments.layers
    config.update(model_type="dsmoe", architectures=["DsmoeForCausalLM"], torch_dtype="bfloat16")
    config["quantization_config"] = {"quant_method": "dsmoe", "projections": arguments.weights, "head": "int8", "group_size": 32}
    generator = np.random.default_rng(1)
    values = (generator.standard_normal(1 << 24) * config["initializer_range"]).astype(np.float32)
    bytes_of = lambda array: np.ascontiguousarray(array).view(np.uint8)
    pools = {
        "BF16": bytes_of((values.view(np.uint32) >> 16).astype(np.uint16)),
        "I8": generator.integers(0, 256, 1 << 25, dtype=np.uint8),
        "norm": bytes_of(np.full(1 << 20, 0x3F80, np.uint16)),  # 1
        "scale": bytes_of(np.full(1 << 20, 0x3980, np.uint16)),  # 2^-12
    }
    pools["U8"] = pools["I8"]
    tensors = [t for name, shape in weight_shapes(Config(config)).items() for t in stored(name, shape, arguments.weights)]
    shards, room = [], 0
    for tensor in sorted(tensors):
        if size_of(tensor) > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(tensor)
        room -= size_of(tensor)
    os.makedirs(arguments.folder)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(os.path.join(arguments.folder, name), shard, pools)
        weight_map.update((tensor[0], name) for tensor in shard)
    if len(shards) > 1:
        with open(os.path.join(arguments.folder, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": sum(map(size_of, tensors))}, "weight_map": weight_map}, file)
    with open(os.path.join(arguments.folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)


if __name__ == "__main__":
    main()
