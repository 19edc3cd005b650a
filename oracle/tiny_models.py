"""Tiny random checkpoints: configurations, lively weights, Hugging Face folders. Everything follows from a seed."""

import json
import os

import numpy as np

import deepseek_twin as twin
import safetensors_file
from safetensors_file import Bf16

TORCH_DTYPE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def released(**changes):
    """A config.json within the options of the released model. A value of None removes the key."""
    config = {
        "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "vocab_size": 67, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
        "moe_intermediate_size": 16, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax",
        "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False, "aux_loss_alpha": 0.001,
        "seq_aux": True, "initializer_range": 0.02, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32",
        "use_cache": True,
    }
    config.update(changes)
    return {k: v for k, v in config.items() if v is not None or k == "rope_scaling"}


def beyond(**changes):
    """A config.json with V2 / V3 routing: saved under our own type, so that nothing else misreads it."""
    changes = {"architectures": ["DsmoeForCausalLM"], "model_type": "dsmoe", "topk_method": "greedy", **changes}
    return released(**changes)


def random_weights(cfg, seed, stored, bias_mean=-0.4):
    """{name: array as stored}. Wide enough that logits, attention and routing are far from uniform."""
    rng = np.random.Generator(np.random.PCG64(seed))
    weights = {}
    for name, shape in twin.weight_shapes(cfg).items():
        x = rng.standard_normal(shape)
        if name.endswith("e_score_correction_bias"):
            weights[name] = (bias_mean + 0.3 * x).astype(np.float32)  # F32 whatever the rest; mostly negative
            continue
        weights[name] = store(scale(name, shape, x), stored)
    return weights


def scale(name, shape, x):
    if name.endswith("norm.weight"):
        return 1 + 0.2 * x
    if name.endswith("bias"):
        return 0.3 * x
    if name.endswith("embed_tokens.weight"):
        return 0.7 * x
    if "mlp.gate.weight" in name:
        gain = 0.9  # sharper routers amplify the rounding of fp32 past what the goldens can ask for
    else:
        gain = 1.4 if "down_proj" in name or "lm_head" in name else 1.1
    return gain / shape[1] ** 0.5 * x


def store(x, stored):
    x = x.astype(np.float32)
    if stored == "F32":
        return x
    if stored == "BF16":
        return Bf16.from_float(x)
    # F16: values that bf16 holds too, so that an engine that loads F16 as bf16 sees the same weights.
    return np.where(np.abs(x) < 2.0**-13, 0, Bf16.from_float(x).to_float()).astype(np.float16)


def compute_weights(weights, dtype):
    return {name: twin.to_torch(array, dtype) for name, array in weights.items()}


def write_folder(folder, config, weights, shards=1):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    metadata = {"format": "pt"}
    if shards == 1:
        safetensors_file.write(os.path.join(folder, "model.safetensors"), weights, metadata)
        return
    names = sorted(weights)
    weight_map, total = {}, 0
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        safetensors_file.write(os.path.join(folder, file), {n: weights[n] for n in part}, metadata)
        weight_map.update({n: file for n in part})
    for array in weights.values():
        total += (array.bits if isinstance(array, Bf16) else array).nbytes
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
