"""Writes tests/goldens/<name>/: a tiny random checkpoint and what the twin computes from it. See oracle/README.md.

A seed is taken only if fp32 must make the same choices as fp64: no routing decision closer than MARGIN, and the twin's own
fp32 run well inside the tolerances that the engine is held to. Remaking gives the same bytes.
"""

import argparse
import math
import os
import shutil

import numpy as np
import torch

import deepseek_twin as twin
import safetensors_file
import tiny_models
from tiny_models import beyond, released

MARGIN = 5e-5  # smallest score gap of any decision, fp64
MARGIN_BF16 = 1e-3  # the same under bf16 rounding: bf16 of one rounded element moves a score by less
LOGIT_ERROR, GATE_ERROR = 2e-6, 5e-7  # fp32 twin against fp64; the engine gets 1e-5 and 1e-6


def case(config, tokens, **options):
    """options: stored, shards, context, top_k_per_token, tied_experts, bias_mean."""
    return {"config": config, "tokens": tokens, "stored": "F32", "shards": 1, "context": None, "top_k_per_token": False,
            "tied_experts": False, "bias_mean": -0.4, **options}


V3 = dict(topk_method="noaux_tc", scoring_func="sigmoid", routed_scaling_factor=2.5)

CASES = {
    # Released options.
    "released": case(released(num_hidden_layers=3), 24, top_k_per_token=True),
    "released_bf16": case(released(hidden_size=48, num_hidden_layers=3, torch_dtype="bfloat16"), 20, stored="BF16", shards=3),
    "odd": case(released(hidden_size=40, num_key_value_heads=1, n_routed_experts=5, moe_intermediate_size=13,
                         intermediate_size=22, n_shared_experts=None, norm_topk_prob=True, rms_norm_eps=1e-3), 70),
    "seven_heads": case(released(hidden_size=36, num_attention_heads=7, num_key_value_heads=1, head_dim=10, vocab_size=53,
                                 moe_intermediate_size=22, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
                                 first_k_dense_replace=0), 33, shards=2),
    "gqa": case(released(num_attention_heads=6, num_key_value_heads=2, head_dim=16, rope_theta=1.4e6,
                         torch_dtype="bfloat16"), 30, stored="BF16"),
    "attention_bias_f16": case(released(attention_bias=True, num_key_value_heads=2, rms_norm_eps=1e-5,
                                        torch_dtype="float16"), 66, stored="F16"),
    "tied_bf16": case(released(tie_word_embeddings=True, hidden_size=40, n_routed_experts=7, moe_intermediate_size=9,
                               n_shared_experts=1, torch_dtype="bfloat16"), 17, stored="BF16"),
    "layer_freq": case(released(num_hidden_layers=5, moe_layer_freq=2, n_shared_experts=0, hidden_size=24,
                                intermediate_size=29, n_routed_experts=6, num_experts_per_tok=2), 25),
    "all_experts": case(released(n_routed_experts=4, num_experts_per_tok=4, n_shared_experts=1), 19),
    "top1_norm": case(released(num_experts_per_tok=1, norm_topk_prob=True, n_shared_experts=None,
                               first_k_dense_replace=0), 21),
    "dense": case(released(n_routed_experts=None, n_shared_experts=None, num_experts_per_tok=None,
                           moe_intermediate_size=None, first_k_dense_replace=None, intermediate_size=45), 100),
    "rope_linear": case(released(rope_scaling={"type": "linear", "factor": 4.0}), 150),
    "rope_dynamic": case(released(rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=32, head_dim=10,
                                  num_key_value_heads=2), 70, context=96),
    "long": case(released(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24, vocab_size=41,
                          moe_intermediate_size=8, num_experts_per_tok=2, n_shared_experts=1,
                          max_position_embeddings=1024), 600),
    "ties": case(released(n_routed_experts=9, num_experts_per_tok=4, moe_intermediate_size=11, norm_topk_prob=True,
                          first_k_dense_replace=0), 23, tied_experts=True),
    # Routers of V2 and V3.
    "v2_groups": case(beyond(topk_method="group_limited_greedy", n_group=4, topk_group=2, n_routed_experts=12,
                             moe_intermediate_size=10, routed_scaling_factor=2.5), 31),
    "v2_groups_norm": case(beyond(topk_method="group_limited_greedy", n_group=3, topk_group=2, n_routed_experts=9,
                                  moe_intermediate_size=10, routed_scaling_factor=16.0, norm_topk_prob=True), 29),
    "v2_greedy_scaled": case(beyond(routed_scaling_factor=1.7, num_experts_per_tok=1, norm_topk_prob=True), 18),
    "sigmoid": case(beyond(scoring_func="sigmoid", norm_topk_prob=True), 26),
    "v3": case(beyond(**V3, n_group=4, topk_group=2, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=8,
                      n_shared_experts=1, norm_topk_prob=True), 40, bias_mean=-0.9),
    "v3_bf16": case(beyond(**V3, n_group=2, topk_group=1, n_routed_experts=10, moe_intermediate_size=10,
                           norm_topk_prob=True, torch_dtype="bfloat16"), 15, stored="BF16", shards=2),
    "v3_no_norm": case(beyond(**V3, n_group=1, topk_group=1), 22),
    "softmax_bias": case(beyond(topk_method="noaux_tc", n_group=2, topk_group=1, routed_scaling_factor=1.5,
                                num_experts_per_tok=2, norm_topk_prob=True), 28, bias_mean=0.0),
}


def relative_error(a, b):
    return (torch.linalg.norm(a.double() - b.double()) / torch.linalg.norm(b.double())).item()


def tie_experts(cfg, weights):
    """Equal centroids, different experts: 1 = 4 = 7 and 2 = 8. Only the rule 'lower index first' decides."""
    for layer in range(cfg.num_hidden_layers):
        gate = weights[f"model.layers.{layer}.mlp.gate.weight"]
        gate[4] = gate[7] = gate[1]
        gate[8] = gate[2]


def draw(spec, seed):
    cfg = twin.Config(spec["config"])
    weights = tiny_models.random_weights(cfg, seed, spec["stored"], spec["bias_mean"])
    if spec["tied_experts"]:
        tie_experts(cfg, weights)
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    tokens = torch.from_numpy(rng.integers(0, cfg.vocab_size, spec["tokens"]))
    return cfg, weights, tokens


def margin(out):
    return min((r.margin for r in out.routing.values()), default=math.inf)


def same_in_fp32(exact, single):
    """Does fp32 choose the same experts, well inside the engine's tolerances?"""
    for layer, routing in exact.routing.items():
        other = single.routing[layer]
        if not torch.equal(routing.index, other.index) or (routing.gate - other.gate).abs().max() > GATE_ERROR:
            return False
    return relative_error(single.logits, exact.logits) <= LOGIT_ERROR


def run_all(spec, cfg, weights, tokens):
    """{prefix: Output} of one draw, or None if a decision is too close."""
    exact = tiny_models.compute_weights(weights, torch.float64)
    single = tiny_models.compute_weights(weights, torch.float32)
    runs = {"": {}}
    if spec["top_k_per_token"]:
        runs["per_token."] = {"top_k": 1 + torch.arange(len(tokens)) % 5}
    outputs = {}
    for prefix, options in runs.items():
        out = twin.forward(cfg, exact, tokens, context=spec["context"], **options)
        if margin(out) < MARGIN:
            return None
        if not same_in_fp32(out, twin.forward(cfg, single, tokens, context=spec["context"], **options)):
            return None
        outputs[prefix] = out
    if spec["stored"] == "BF16":
        outputs["bf16."] = twin.forward(cfg, exact, tokens, context=spec["context"], rounded=twin.to_bf16)
        if margin(outputs["bf16."]) < MARGIN_BF16:
            return None
    return outputs


def f32(x):
    return x.to(torch.float32).numpy()


def golden_tensors(tokens, outputs):
    tensors = {"tokens": tokens.to(torch.int32).numpy()}
    for prefix, out in outputs.items():
        tensors[prefix + "logits"] = f32(out.logits)
        for layer, hidden in enumerate(out.hidden):
            if prefix != "per_token.":
                tensors[f"{prefix}layers.{layer}.hidden"] = f32(hidden)
        for layer, routing in out.routing.items():
            tensors[f"{prefix}layers.{layer}.topk_index"] = routing.index.to(torch.int32).numpy()
            tensors[f"{prefix}layers.{layer}.topk_weight"] = f32(routing.gate)
        if prefix == "per_token.":
            tensors["per_token.top_k"] = (1 + np.arange(len(tokens)) % 5).astype(np.int32)
    return tensors


def make(name, spec, root):
    for seed in range(1000):
        cfg, weights, tokens = draw(spec, seed)
        outputs = run_all(spec, cfg, weights, tokens)
        if outputs:
            break
    else:
        raise RuntimeError(f"{name}: no seed keeps every routing decision apart by {MARGIN}")
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    tiny_models.write_folder(folder, spec["config"], weights, spec["shards"])
    metadata = {"seed": str(seed), "smallest_gap": f"{margin(outputs['']):.3g}"}
    metadata["context"] = str(spec["context"] or spec["config"]["max_position_embeddings"])
    safetensors_file.write(os.path.join(folder, "golden.safetensors"), golden_tensors(tokens, outputs), metadata)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name:20} seed {seed:3}  gap {margin(outputs['']):8.2g}  logit std {outputs[''].logits.std():5.2f}  {size:8} bytes",
          flush=True)
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "goldens"))
    parser.add_argument("--only", nargs="*", help="names; all when absent")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    total = sum(make(name, CASES[name], arguments.out) for name in arguments.only or CASES)
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
