"""A model folder of random weights, as `dsmoe quantize` or `dsmoe train` would write it: make_model.py CONFIG DIR --weights int4.

For measuring what only files can show, such as loading: 16 B parameters take a minute and little memory. Tensors are slices
of one block of random numbers.
"""

import argparse
import json
import os
import struct

import numpy as np

SHARD_BYTES = 5_000_000_000


def shapes(config):
    """-> {name: [rows, columns] or [size]} of every tensor before quantisation"""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    found = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "lm_head.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}

    def mlp(prefix, size):
        found[prefix + ".gate_proj.weight"] = found[prefix + ".up_proj.weight"] = [size, hidden]
        found[prefix + ".down_proj.weight"] = [hidden, size]

    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        found[block + "input_layernorm.weight"] = found[block + "post_attention_layernorm.weight"] = [hidden]
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            found[f"{block}self_attn.{name}_proj.weight"] = [rows, columns]
        if layer < config["first_k_dense_replace"]:
            mlp(block + "mlp", config["intermediate_size"])
            continue
        found[block + "mlp.gate.weight"] = [config["n_routed_experts"], hidden]
        for expert in range(config["n_routed_experts"]):
            mlp(f"{block}mlp.experts.{expert}", width)
        mlp(block + "mlp.shared_experts", config["n_shared_experts"] * width)
    return found


def stored(name, shape, weights):
    """-> [(name, type, shape)] as files hold it; the head is int8 whatever the rest is"""
    if weights == "bf16" or not (name.endswith("_proj.weight") or name == "lm_head.weight"):
        return [(name, "BF16", shape)]
    rows, columns = shape
    scale = (name + "_scale", "BF16", [rows, -(-columns // 32)])
    if weights == "int8" or name == "lm_head.weight":
        return [(name, "I8", shape), scale]
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
    parser.add_argument("--weights", choices=["bf16", "int8", "int4"], default="bf16")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    with open(arguments.config) as file:
        config = json.load(file)
    if arguments.layers:
        config["num_hidden_layers"] = arguments.layers
    if arguments.weights != "bf16":
        config.update(model_type="dsmoe", architectures=["DsmoeForCausalLM"])
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
    tensors = [t for name, shape in sorted(shapes(config).items()) for t in stored(name, shape, arguments.weights)]
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
