"""A DeepSeekMoE model as GGUF, for llama.cpp: make_gguf.py MODEL OUT.gguf, or --random for weights of the right shape only.

MODEL is a folder of bf16 or fp32 safetensors, which becomes bf16 (llama-quantize makes the rest), or with --random a config.json:
then the tensors are slices of one block of random numbers in --type bf16, q8_0 or q4_0, the head of the last in Q6_K as
llama-quantize has it. Memory stays at a few tensors. No vocabulary goes along: llama-bench and score.cc work on ids.
"""

import argparse
import json
import mmap
import os
import struct

import numpy as np

F32, Q4_0, Q8_0, Q6_K, BF16 = 0, 2, 8, 14, 30  # types of tensors, with elements and bytes of a block:
BLOCKS = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34), Q6_K: (256, 210), BF16: (1, 2)}
FILE_TYPES = {"bf16": 32, "q8_0": 7, "q4_0": 2}
ALIGNMENT = 32


class Gguf:
    """Version 3: magic, counts, keys, what the tensors are, then their bytes, each aligned."""

    def __init__(self):
        self.keys, self.tensors, self.end = [], [], 0

    def key(self, name, value):
        """Strings, unsigned integers of 32 bits, floats of 32 bits."""
        if isinstance(value, str):
            code, data = 8, self.string(value)
        elif isinstance(value, int):
            code, data = 4, struct.pack("<I", value)
        else:
            code, data = 6, struct.pack("<f", value)
        self.keys.append(self.string(name) + struct.pack("<I", code) + data)

    def tensor(self, name, shape, kind, parts):
        """shape: outermost first. parts() yields the tensor's bytes as arrays."""
        elements, size = BLOCKS[kind]
        if shape[-1] % elements:
            raise SystemExit(f"{name}: rows of {shape[-1]} are no multiple of the {elements} elements of a block")
        num_bytes = int(np.prod(shape, dtype=np.int64)) // elements * size
        self.tensors.append((name, shape, kind, self.end, num_bytes, parts))
        self.end += -(-num_bytes // ALIGNMENT) * ALIGNMENT

    @staticmethod
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def write(self, path):
        with open(path, "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys))
            for name, shape, kind, offset, _, _ in self.tensors:
                dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
                file.write(self.string(name) + dims + struct.pack("<IQ", kind, offset))
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            for name, _, _, _, num_bytes, parts in self.tensors:
                begin = file.tell()
                for part in parts():
                    file.write(np.ascontiguousarray(part).data.cast("B"))
                assert file.tell() - begin == num_bytes, name
                file.write(b"\0" * (-num_bytes % ALIGNMENT))


def to_bf16(values):
    """fp32 -> the bits of bf16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Folder:
    """Tensors of a Hugging Face folder, as arrays over the mapped files."""

    def __init__(self, path):
        self.entries = {}
        for name in sorted(os.listdir(path)):
            if not name.endswith(".safetensors") or name.startswith(("train_state", ".")):
                continue
            with open(os.path.join(path, name), "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            (length,) = struct.unpack("<Q", data[:8])
            for tensor, entry in json.loads(data[8 : 8 + length]).items():
                if tensor != "__metadata__":
                    self.entries[tensor] = (data, 8 + length, entry)

    def values(self, name):
        """fp32"""
        bits = self.bf16(name, keep=True)
        return bits if bits.dtype == np.float32 else (bits.astype(np.uint32) << 16).view(np.float32)

    def bf16(self, name, keep=False):
        data, begin, entry = self.entries[name]
        types = {"BF16": np.uint16, "F32": np.float32}
        if entry["dtype"] not in types:
            raise SystemExit(f"{name} is {entry['dtype']}; expected BF16 or F32 (quantised models cannot be converted)")
        first, last = entry["data_offsets"]
        kind = types[entry["dtype"]]
        array = np.frombuffer(data, kind, (last - first) // np.dtype(kind).itemsize, begin + first).reshape(entry["shape"])
        return array if keep or kind == np.uint16 else to_bf16(array.copy())


def pairs_together(rows, heads):
    """Rows of q or k: halves of a head, which llama.cpp's rotation wants side by side."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


class Random:
    """Slices of one block of random numbers at places of their own."""

    SLACK = 1 << 20  # blocks

    def __init__(self, deviation):
        generator = np.random.default_rng(1)
        values = (generator.standard_normal((1 << 21, 32)) * deviation).astype(np.float32)
        self.pools = {BF16: to_bf16(values.ravel()).reshape(-1, 1), Q8_0: quantise_q8_0(values), Q4_0: quantise_q4_0(values)}
        q6 = generator.integers(0, 256, (1 << 18, 210), dtype=np.uint8)
        q6[:, 192:208] = generator.integers(-16, 16, (1 << 18, 16), dtype=np.int8).view(np.uint8)
        q6[:, 208:] = np.frombuffer(np.float16(deviation / 200).tobytes(), np.uint8)
        self.pools[Q6_K] = q6
        self.next = 0

    def blocks(self, kind, count):
        pool = self.pools[kind]
        while count:
            self.next = (self.next + 123457) % len(pool)
            part = pool[self.next : self.next + count]
            count -= len(part)
            yield part


def quantise_q8_0(values):
    """[blocks, 32] -> [blocks, 34]: a scale of 16 bits, 32 integers."""
    scale = np.abs(values).max(1) / 127
    q = np.rint(values / np.maximum(scale, 1e-30)[:, None]).astype(np.int8)
    return np.concatenate([scale.astype(np.float16)[:, None].view(np.uint8), q.view(np.uint8)], 1)


def quantise_q4_0(values):
    """[blocks, 32] -> [blocks, 18]: a scale of 16 bits that takes the largest value to -8, elements j and j + 16 in a byte."""
    largest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scale = largest / -8
    q = np.clip(np.floor(values / np.where(scale == 0, 1, scale) + 8.5), 0, 15).astype(np.uint8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1)


def add_keys(gguf, arch, config, kind, name):
    gguf.key("general.architecture", arch)
    gguf.key("general.name", name)
    gguf.key("general.file_type", FILE_TYPES[kind])
    if kind != "bf16":
        gguf.key("general.quantization_version", 2)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size") or config["moe_intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads") or config["num_attention_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        "rope.dimension_count": head_dim,
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_shared_feed_forward_length": config["n_shared_experts"] * config["moe_intermediate_size"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "interleave_moe_layer_step": 1,
        "expert_weights_scale": 1.0,
        "vocab_size": config["vocab_size"],
    }
    for key, value in values.items():
        gguf.key(f"{arch}.{key}", value)
    gguf.key("tokenizer.ggml.model", "none")


def architecture(config):
    """llama.cpp's deepseek never normalises gates; its ernie4_5-moe is the same network and always does."""
    wrong = [
        key
        for key, value in (("moe_layer_freq", 1), ("scoring_func", "softmax"), ("attention_bias", False), ("rope_scaling", None), ("topk_method", "greedy"))
        if config.get(key, value) != value
    ]
    if wrong:
        raise SystemExit(f"llama.cpp has no architecture for this {', '.join(wrong)}")
    return "ernie4_5-moe" if config["norm_topk_prob"] and config["num_experts_per_tok"] > 1 else "deepseek"


class Maker:
    def __init__(self, gguf, config, kind, source):
        self.gguf, self.config, self.source = gguf, config, source
        self.kind = {"bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0}[kind]

    def matrix(self, name, names, rows, columns, kind=None, heads=0):
        """One matrix, or a stack when there are several names."""
        kind = kind or self.kind
        shape = [len(names), rows, columns] if len(names) > 1 else [rows, columns]

        def stored():
            for each in names:
                part = self.source.bf16(each)
                yield pairs_together(part, heads) if heads else part

        def made():
            return self.source.blocks(kind, int(np.prod(shape, dtype=np.int64)) // BLOCKS[kind][0])

        self.gguf.tensor(name, shape, kind, made if isinstance(self.source, Random) else stored)

    def floats(self, name, stored, *shape):
        def parts():
            if not isinstance(self.source, Random):
                yield self.source.values(stored)
            elif len(shape) == 1:
                yield np.ones(shape, np.float32)
            else:
                for bits in self.source.blocks(BF16, int(np.prod(shape))):
                    yield (bits.astype(np.uint32) << 16).view(np.float32)

        self.gguf.tensor(name, list(shape), F32, parts)

    def mlp(self, target, source, suffix, width):
        hidden = self.config["hidden_size"]
        for part, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
            self.matrix(f"{target}ffn_{part}{suffix}.weight", [f"{each}.{part}_proj.weight" for each in source], rows, columns)

    def block(self, layer):
        c, hidden = self.config, self.config["hidden_size"]
        heads = c["num_attention_heads"]
        kv_heads = c.get("num_key_value_heads") or heads
        head_dim = c.get("head_dim") or hidden // heads
        out, block = f"blk.{layer}.", f"model.layers.{layer}."
        self.floats(out + "attn_norm.weight", block + "input_layernorm.weight", hidden)
        self.floats(out + "ffn_norm.weight", block + "post_attention_layernorm.weight", hidden)
        for part, count, rotated in (("q", heads, True), ("k", kv_heads, True), ("v", kv_heads, False)):
            name = f"{block}self_attn.{part}_proj.weight"
            self.matrix(f"{out}attn_{part}.weight", [name], count * head_dim, hidden, heads=count if rotated else 0)
        self.matrix(out + "attn_output.weight", [block + "self_attn.o_proj.weight"], hidden, heads * head_dim)
        if layer < c["first_k_dense_replace"]:
            return self.mlp(out, [block + "mlp"], "", c["intermediate_size"])
        width = c["moe_intermediate_size"]
        self.floats(out + "ffn_gate_inp.weight", block + "mlp.gate.weight", c["n_routed_experts"], hidden)
        self.mlp(out, [f"{block}mlp.experts.{e}" for e in range(c["n_routed_experts"])], "_exps", width)
        self.mlp(out, [block + "mlp.shared_experts"], "_shexp", c["n_shared_experts"] * width)

    def model(self):
        c, hidden = self.config, self.config["hidden_size"]
        self.matrix("token_embd.weight", ["model.embed_tokens.weight"], c["vocab_size"], hidden)
        self.floats("output_norm.weight", "model.norm.weight", hidden)
        head = "model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"
        self.matrix("output.weight", [head], c["vocab_size"], hidden, Q6_K if self.kind == Q4_0 else None)
        for layer in range(c["num_hidden_layers"]):
            self.block(layer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model folder, or with --random a config.json")
    parser.add_argument("out")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--type", choices=FILE_TYPES, default="bf16")
    parser.add_argument("--layers", type=int, help="with --random: only so many")
    arguments = parser.parse_args()
    if not arguments.random and (arguments.type != "bf16" or arguments.layers):
        parser.error("a folder becomes bf16, with all its layers")
    path = arguments.model if arguments.random else os.path.join(arguments.model, "config.json")
    with open(path) as file:
        config = json.load(file)
    if arguments.layers:
        config["num_hidden_layers"] = arguments.layers
    source = Random(config["initializer_range"]) if arguments.random else Folder(arguments.model)
    gguf = Gguf()
    add_keys(gguf, architecture(config), config, arguments.type, os.path.basename(os.path.splitext(path)[0]))
    Maker(gguf, config, arguments.type, source).model()
    gguf.write(arguments.out)


if __name__ == "__main__":
    main()
