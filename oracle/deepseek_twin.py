"""The published DeepSeek-MoE language model in PyTorch, written to be read beside the paper (arXiv 2401.06066).

Names follow the paper: u_t the input of a layer, e_i the centroid of expert i (a row of `mlp.gate.weight`), s the affinity,
g the gate. Weights are a plain dict with the names of the released checkpoints, so autograd needs nothing more.
Three precisions: float64 (the mathematics), float32 (what the released Python does in fp32) and "bf16": float64 arithmetic
with the rounding points of docs/numerics.md and nowhere else.
"""

import json
import math
import os
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

import safetensors_file
from checkpoint_layout import Config, weight_shapes


# Everything the router decided for one layer. Slots are by descending selection score; index -1 is an absent slot.
@dataclass
class Routing:
    logits: torch.Tensor  # [T, E] u_t . e_i
    affinity: torch.Tensor  # [T, E] s
    index: torch.Tensor  # [T, K]
    gate: torch.Tensor  # [T, K] g
    margin: float  # smallest non-zero score gap that decides a slot, the K border or a group; inf where all is tied


@dataclass
class Output:
    logits: torch.Tensor  # [T, V]
    hidden: list = field(default_factory=list)  # per layer [T, d]: residual stream after block N
    routing: dict = field(default_factory=dict)  # layer -> Routing, MoE layers only


def to_bf16(x):
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


def identity(x):
    return x


# ---- the MoE layer, equations 9-11 -----------------------------------------------------------------------------------


def descending(scores):
    """Indices by descending score, ties by lower index (torch.topk promises nothing about ties)."""
    return torch.sort(scores, dim=-1, descending=True, stable=True)


def smallest_gap(sorted_scores, first, last):
    """Smallest non-zero gap between neighbours first..last of rows sorted descending; exact ties go by index, not by luck."""
    gaps = (sorted_scores[:, :-1] - sorted_scores[:, 1:])[:, first:last].detach()
    gaps = gaps[torch.isfinite(gaps) & (gaps > 0)]
    return gaps.min().item() if gaps.numel() else math.inf


def mask_groups(cfg, selection):
    """Keeps the experts of the best `topk_group` groups, the others become -inf. -> masked selection [T, E], margin."""
    groups = selection.unflatten(-1, (cfg.n_group, -1))  # [T, n_group, E / n_group]
    if cfg.topk_method == "noaux_tc":  # V3: sum of the best two
        group_score = groups.sort(-1, descending=True).values[..., :2].sum(-1)
    else:  # V2: the best one
        group_score = groups.max(-1).values
    order = descending(group_score)
    kept = torch.zeros_like(group_score, dtype=torch.bool).scatter(-1, order.indices[:, : cfg.topk_group], True)
    masked = groups.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2)
    return masked, smallest_gap(order.values, cfg.topk_group - 1, cfg.topk_group)


def route(cfg, w, prefix, u, top_k=None):
    """s_{i,t} and the top K. top_k overrides `num_experts_per_tok`: one number or one per token [T]."""
    centroid = w[prefix + "gate.weight"]  # [E, d]
    # Not a matrix product: equal centroids must give equal bits, whatever column of a blocked product they fall in.
    logits = (u.unsqueeze(1) * centroid.unsqueeze(0)).sum(-1)
    affinity = logits.softmax(-1) if cfg.scoring_func == "softmax" else logits.sigmoid()

    selection, margin = affinity, math.inf
    if cfg.topk_method == "noaux_tc":  # V3: the bias decides who is chosen, never how much it counts
        selection = affinity + w[prefix + "gate.e_score_correction_bias"].to(affinity.dtype)
    if cfg.topk_method != "greedy" and cfg.n_group > 1:
        selection, margin = mask_groups(cfg, selection)

    k = torch.as_tensor(cfg.num_experts_per_tok if top_k is None else top_k).expand(u.shape[0])  # [T]
    slots = int(k.max())
    order = descending(selection)
    margin = min(margin, smallest_gap(order.values, 0, slots))
    present = torch.arange(slots) < k.unsqueeze(1)  # [T, K]
    index = order.indices[:, :slots]
    gate = affinity.gather(-1, index) * present
    return Routing(logits, affinity, index.masked_fill(~present, -1), weigh(cfg, gate, k), margin)


def weigh(cfg, gate, k):
    """g from the chosen s: normalised when asked and K > 1; scaled always in V3, else only when not normalised."""
    normalise = ((k > 1) & bool(cfg.norm_topk_prob)).unsqueeze(1)  # [T, 1]
    normalised = gate / (gate.sum(-1, keepdim=True) + 1e-20)
    if cfg.topk_method == "noaux_tc":
        return torch.where(normalise, normalised, gate) * cfg.routed_scaling_factor
    return torch.where(normalise, normalised, gate * cfg.routed_scaling_factor)


def swiglu(w, prefix, x, rounded=identity):
    """FFN(x) = down(silu(gate(x)) * up(x))."""
    inner = F.silu(x @ w[prefix + "gate_proj.weight"].T) * (x @ w[prefix + "up_proj.weight"].T)
    return rounded(rounded(inner) @ w[prefix + "down_proj.weight"].T)


def moe_layer(cfg, w, prefix, u, rounded=identity, top_k=None):
    """sum_i g_{i,t} FFN_i(u_t) over the routed + sum_i FFN_i(u_t) over the shared experts (one fused FFN)."""
    routing = route(cfg, w, prefix, u, top_k)
    out = torch.zeros_like(u)
    for i in range(cfg.n_routed_experts):
        token, slot = torch.where(routing.index == i)
        if token.numel():
            y = swiglu(w, f"{prefix}experts.{i}.", u[token], rounded)
            out = out.index_add(0, token, routing.gate[token, slot].unsqueeze(1) * y)
    if cfg.n_shared_experts:
        out = out + swiglu(w, prefix + "shared_experts.", u, rounded)
    return out, routing


# ---- everything around it --------------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope_tables(cfg, positions, dtype, context=None):
    """cos and sin [T, head_dim]. `context` is the declared context of the run: the L of the dynamic formula."""
    d, base, positions = cfg.head_dim, cfg.rope_theta, positions.to(dtype)
    if cfg.rope_scaling:
        kind, factor = cfg.rope_scaling["type"], cfg.rope_scaling["factor"]
        longest = cfg.max_position_embeddings
        if kind == "linear":
            positions = positions / factor
        elif kind == "dynamic":
            if (context or longest) > longest:
                base = base * (factor * context / longest - (factor - 1)) ** (d / (d - 2))
        else:
            raise ValueError(f"rope_scaling type must be linear or dynamic, found {kind!r}")
    inverse_frequency = base ** (-torch.arange(0, d, 2, dtype=dtype) / d)
    angle = (positions.unsqueeze(1) * inverse_frequency).repeat(1, 2)  # half-split: pair i is (i, i + d/2)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [T, heads, head_dim]."""
    a, b = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat((-b, a), -1) * sin.unsqueeze(1)


def attention(cfg, w, prefix, x, rope, visible, rounded=identity):
    def project(name, heads):
        y = x @ w[f"{prefix}{name}_proj.weight"].T
        if cfg.attention_bias:
            y = y + w[f"{prefix}{name}_proj.bias"]
        return y.unflatten(-1, (heads, cfg.head_dim))  # [T, heads, head_dim]

    q = rounded(rotate(project("q", cfg.num_attention_heads), *rope))
    k = rounded(rotate(project("k", cfg.num_key_value_heads), *rope))
    v = rounded(project("v", cfg.num_key_value_heads))
    group = cfg.num_attention_heads // cfg.num_key_value_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    score = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(cfg.head_dim)
    score = score.masked_fill(~visible, -math.inf)
    p = (score - score.max(-1, keepdim=True).values).exp()
    out = torch.einsum("hqk,khd->qhd", rounded(p), v) / p.sum(-1).T.unsqueeze(-1)
    out = rounded(out.flatten(1)) @ w[prefix + "o_proj.weight"].T
    return out + w[prefix + "o_proj.bias"] if cfg.attention_bias else out


def forward(cfg, w, tokens, *, positions=None, documents=None, context=None, top_k=None, rounded=identity):
    """Logits of `tokens` [T]. With `documents` [T], a token sees only earlier tokens of its own document."""
    count = tokens.shape[0]
    positions = torch.arange(count) if positions is None else positions
    documents = torch.zeros(count, dtype=torch.long) if documents is None else documents
    visible = (documents.unsqueeze(1) == documents) & torch.ones(count, count, dtype=torch.bool).tril()
    embedding = w["model.embed_tokens.weight"]
    rope = rope_tables(cfg, positions, embedding.dtype, context)

    def norm(name, x):
        return rounded(rms_norm(x, w[name + ".weight"], cfg.rms_norm_eps))

    out, x = Output(logits=None), embedding[tokens]
    for layer in range(cfg.num_hidden_layers):
        name = f"model.layers.{layer}."
        x = x + attention(cfg, w, name + "self_attn.", norm(name + "input_layernorm", x), rope, visible, rounded)
        u = norm(name + "post_attention_layernorm", x)
        if cfg.is_moe(layer):
            y, out.routing[layer] = moe_layer(cfg, w, name + "mlp.", u, rounded, top_k)
        else:
            y = swiglu(w, name + "mlp.", u, rounded)
        x = x + y
        out.hidden.append(x)
    head = embedding if cfg.tie_word_embeddings else w["lm_head.weight"]
    out.logits = norm("model.norm", x) @ head.T
    return out


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def to_torch(array, dtype):
    """numpy array or Bf16 -> torch tensor of the compute type; every stored type converts exactly."""
    array = array.to_float() if isinstance(array, safetensors_file.Bf16) else array
    return torch.from_numpy(array.copy()).to(dtype)


def load(folder, dtype=torch.float64):
    """-> Config, weights of a Hugging Face folder, one file or sharded."""
    with open(os.path.join(folder, "config.json")) as file:
        cfg = Config(json.load(file))
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    weights = {}
    for name in files:
        weights.update(safetensors_file.read(os.path.join(folder, name))[0])
    shapes = weight_shapes(cfg)
    found = {n: tuple(t.shape) for n, t in weights.items()}
    wrong = sorted(n for n in shapes.keys() | found.keys() if shapes.get(n) != found.get(n))
    if wrong:
        raise ValueError(f"{folder}: {wrong[0]} expected {shapes.get(wrong[0])}, found {found.get(wrong[0])}")
    return cfg, {n: to_torch(t, dtype) for n, t in weights.items()}
