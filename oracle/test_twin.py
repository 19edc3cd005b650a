"""Tests of the oracle itself: what can be worked out by hand, what must be equal, and that every golden notices its option."""

import math
import os

import numpy as np
import pytest
import torch

import deepseek_twin as twin
import safetensors_file
import tiny_models
import train_twin

GOLDENS = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens")
torch.set_num_threads(1)


def golden(name):
    cfg, weights = twin.load(os.path.join(GOLDENS, name))
    tensors, metadata = safetensors_file.read(os.path.join(GOLDENS, name, "golden.safetensors"))
    return cfg, weights, tensors, int(metadata["context"])


def logits(name, context=None, **changes):
    cfg, weights, tensors, declared = golden(name)
    cfg.update(changes)
    tokens = torch.from_numpy(tensors["tokens"]).long()
    return twin.forward(cfg, weights, tokens, context=context or declared).logits


def difference(a, b):
    return (torch.linalg.norm(a - b) / torch.linalg.norm(b)).item()


def router(**options):
    return twin.Config({"hidden_size": 2, "num_attention_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, **options})


def route_logits(cfg, values, bias=None):
    """Routes one token whose router logits are `values`."""
    w = {"gate.weight": torch.tensor(values, dtype=torch.float64).unsqueeze(1)}
    if bias is not None:
        w["gate.e_score_correction_bias"] = torch.tensor(bias)
    return twin.route(cfg, w, "", torch.ones(1, 1, dtype=torch.float64))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def silu(x):
    return x / (1 + math.exp(-x))


def test_moe_layer_by_hand():
    """Two inputs, three routed experts of width 1, top 2, one shared: equations 9-11 worked out in scalars."""
    cfg = router(n_routed_experts=3, n_shared_experts=1, moe_intermediate_size=1)
    u = (0.5, -1.0)
    centroids = [(1.0, 0.0), (0.0, -2.0), (-1.0, 0.0)]  # u . e = 0.5, 2.0, -0.5: experts 1 and 0 win
    experts = [((1.0, 1.0), (2.0, 0.0), (1.0, -1.0)), ((0.0, 3.0), (1.0, -1.0), (0.5, 2.0)), ((9.0, 9.0),) * 3]
    shared = ((1.0, 0.0), (0.0, 1.0), (4.0, 1.0))
    w = {"gate.weight": torch.tensor(centroids, dtype=torch.float64)}
    for name, (gate, up, down) in [(f"experts.{i}.", e) for i, e in enumerate(experts)] + [("shared_experts.", shared)]:
        w[name + "gate_proj.weight"] = torch.tensor([gate], dtype=torch.float64)
        w[name + "up_proj.weight"] = torch.tensor([up], dtype=torch.float64)
        w[name + "down_proj.weight"] = torch.tensor(down, dtype=torch.float64).unsqueeze(1)

    total = math.exp(0.5) + math.exp(2.0) + math.exp(-0.5)
    g0, g1 = math.exp(0.5) / total, math.exp(2.0) / total
    inner0 = silu(-0.5) * 1.0
    inner1 = silu(-3.0) * 1.5
    inner_shared = silu(0.5) * -1.0
    expected = [g0 * inner0 * 1.0 + g1 * inner1 * 0.5 + inner_shared * 4.0,
                g0 * inner0 * -1.0 + g1 * inner1 * 2.0 + inner_shared * 1.0]

    y, routing = twin.moe_layer(cfg, w, "", torch.tensor([u], dtype=torch.float64))
    assert routing.index.tolist() == [[1, 0]]
    assert y[0].tolist() == pytest.approx(expected, rel=1e-14)


def test_ties_go_to_the_lower_index():
    assert route_logits(router(num_experts_per_tok=3), [0.0, 1.0, 0.0, 1.0]).index.tolist() == [[1, 3, 0]]


def test_tied_groups_go_to_the_lower_index():
    cfg = router(topk_method="group_limited_greedy", n_group=4, topk_group=2, n_routed_experts=8)
    assert route_logits(cfg, [0, 0, 5, 1, 5, 2, 5, 4]).index.tolist() == [[2, 4]]


def test_group_score_is_max_in_v2_and_sum_of_two_in_v3():
    values = [3.0, -9.0, 2.5, 2.5]
    v2 = router(topk_method="group_limited_greedy", n_group=2, topk_group=1)
    v3 = router(topk_method="noaux_tc", scoring_func="sigmoid", n_group=2, topk_group=1)
    assert route_logits(v2, values).index.tolist() == [[0, 1]]
    assert route_logits(v3, values, [0.0] * 4).index.tolist() == [[2, 3]]


def test_masked_groups_never_win_over_negative_scores():
    """Scores minus 2 are negative everywhere: a mask of 0 would choose the groups it should hide."""
    cfg = router(topk_method="noaux_tc", scoring_func="sigmoid", n_group=2, topk_group=1)
    assert route_logits(cfg, [1.0, 1.5, 0.0, 0.0], [-2.0] * 4).index.tolist() == [[1, 0]]


def test_bias_selects_but_does_not_weigh():
    cfg = router(topk_method="noaux_tc", scoring_func="sigmoid")
    routing = route_logits(cfg, [0.0, 1.0, 2.0, 3.0], [9.0, 0.0, 0.0, 0.0])
    assert routing.index.tolist() == [[0, 3]]
    assert routing.gate[0].tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-3))])


@pytest.mark.parametrize("method, k, expected", [("greedy", 2, 1.0), ("greedy", 1, 8.0 / 4), ("noaux_tc", 2, 8.0),
                                                 ("noaux_tc", 1, 8.0 / 4)])
def test_normalise_and_scale(method, k, expected):
    """Four equal scores of 1/4, factor 8: V2 scales what it does not normalise, V3 everything; K = 1 is not normalised."""
    cfg = router(topk_method=method, num_experts_per_tok=k, norm_topk_prob=True, routed_scaling_factor=8.0)
    assert route_logits(cfg, [0.0] * 4, [0.0] * 4).gate.sum().item() == pytest.approx(expected)


def test_rope_rotates_pairs_by_position():
    cfg = twin.Config({"hidden_size": 4, "num_attention_heads": 1, "rope_theta": 100.0})
    cos, sin = twin.rope_tables(cfg, torch.tensor([3]), torch.float64)
    out = twin.rotate(torch.tensor([[[1.0, 2.0, 0.0, 0.0]]], dtype=torch.float64), cos, sin)[0, 0]
    assert out.tolist() == pytest.approx([math.cos(3), 2 * math.cos(0.3), math.sin(3), 2 * math.sin(0.3)])


def test_dynamic_rope_changes_only_beyond_the_trained_length():
    plain = twin.Config({"hidden_size": 8, "num_attention_heads": 1, "max_position_embeddings": 32})
    dynamic = twin.Config({**plain, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    at = torch.arange(5)
    assert torch.equal(twin.rope_tables(dynamic, at, torch.float64, 32)[0], twin.rope_tables(plain, at, torch.float64)[0])
    plain["rope_theta"] = 10000.0 * (2 * 96 / 32 - 1) ** (8 / 6)
    assert torch.allclose(twin.rope_tables(dynamic, at, torch.float64, 96)[0], twin.rope_tables(plain, at, torch.float64)[0])


@pytest.mark.parametrize("heads, kv_heads, dim", [(4, 4, 8), (7, 1, 10), (6, 2, 16)])
def test_attention_equals_torch(heads, kv_heads, dim):
    cfg = twin.Config({"hidden_size": 12, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim})
    rng = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    w = {f"{p}_proj.weight": random(h * dim, 12) for p, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
    w["o_proj.weight"] = random(12, heads * dim)
    x, rope = random(9, 12), twin.rope_tables(cfg, torch.arange(9), torch.float64)
    q, k, v = ((x @ w[f"{p}_proj.weight"].T).unflatten(-1, (-1, dim)) for p in "qkv")
    q, k, v = (t.transpose(0, 1) for t in (twin.rotate(q, *rope), twin.rotate(k, *rope), v))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    ours = twin.attention(cfg, w, "", x, rope, torch.ones(9, 9, dtype=torch.bool).tril())
    assert difference(ours, theirs.transpose(0, 1).flatten(1) @ w["o_proj.weight"].T) < 1e-14


# ---- losses ----------------------------------------------------------------------------------------------------------


def even_routing():
    index = torch.tensor([[0, 1], [2, 3], [4, 5], [0, 3], [2, 5], [4, 1]])
    return index, torch.full((6, 6), 1 / 6, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])


def test_even_routing_costs_alpha():
    index, affinity, groups = even_routing()
    assert train_twin.balance_loss(0.01, index, affinity, groups).item() == pytest.approx(0.01)
    assert train_twin.balance_loss(0.01, index, 3 * affinity, groups * 0).item() == pytest.approx(0.01)  # as sigmoid scores
    assert train_twin.device_loss(0.05, index, affinity, groups, 3).item() == pytest.approx(0.05)


def test_collapsed_routing_costs_experts_over_k():
    affinity = torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 3, dtype=torch.float64)
    index = torch.tensor([[0, 1]] * 3)
    assert train_twin.balance_loss(1.0, index, affinity, torch.zeros(3, dtype=torch.long)).item() == pytest.approx(4 / 2)


def test_balance_gradient_goes_through_the_probability_only():
    index, affinity, groups = even_routing()
    affinity = (affinity + 0.01 * torch.arange(36).reshape(6, 6) / 36).requires_grad_()
    train_twin.balance_loss(1.0, index, affinity, groups).backward()
    f, _ = train_twin.load_and_probability(index, affinity.detach(), groups)
    total = affinity.detach().sum(1, keepdim=True)
    share = affinity.detach() / total
    per_token = f[groups]  # d loss / d share, before the means over 3 tokens and 2 groups
    expected = (per_token - (per_token * share).sum(1, keepdim=True)) / total / 6
    assert torch.allclose(affinity.grad, expected)


def train_case(name):
    recipe = train_twin.CASES[name][1]
    cfg, weights = twin.load(os.path.join(GOLDENS, "train_" + name))
    tensors, _ = safetensors_file.read(os.path.join(GOLDENS, "train_" + name, "train.safetensors"))
    first = {k: torch.from_numpy(tensors[k][0]).long() for k in ("tokens", "targets", "positions", "documents")}
    return cfg, recipe, weights, first, tensors


@pytest.mark.parametrize("name", train_twin.CASES)
def test_packed_rows_equal_documents_alone(name):
    """Cross-entropy and load over packed, padded rows = over each document run by itself from position 0."""
    cfg, recipe, weights, batch, golden_tensors = train_case(name)
    total, counted, load = 0.0, 0, 0
    layer = next(iter(n for n in range(cfg.num_hidden_layers) if cfg.is_moe(n)))
    for row in range(batch["tokens"].shape[0]):
        for document in range(int(batch["documents"][row].max()) + 1):
            here = batch["documents"][row] == document
            out = twin.forward(cfg, weights, batch["tokens"][row][here])
            targets = batch["targets"][row][here]
            for at in torch.where(targets != -100)[0]:
                total -= out.logits[at].log_softmax(0)[targets[at]].item()
                counted += 1
            load = load + out.routing[layer].index.flatten().bincount(minlength=cfg.n_routed_experts)
    assert total / counted == pytest.approx(float(golden_tensors["losses.language"][0]), rel=1e-6)
    assert load.tolist() == golden_tensors[f"layers.{layer}.load"][0].tolist()


@pytest.mark.parametrize("name", train_twin.CASES)
def test_gradients_agree_with_differences(name):
    """Along one random direction; so small a step changes no choice, so f is constant in the differences too."""
    cfg, recipe, weights, batch, tensors = train_case(name)
    rng = torch.Generator().manual_seed(1)
    direction = {n: torch.randn(w.shape, generator=rng, dtype=torch.float64) * w.std(correction=0)
                 for n, w in weights.items() if train_twin.trained(n)}

    def loss(step):
        moved = {n: w + step * direction[n] if n in direction else w for n, w in weights.items()}
        language, balance, z, _ = train_twin.losses(cfg, recipe, moved, batch)
        return (language + sum(balance) + z).item()

    numeric = (loss(1e-6) - loss(-1e-6)) / 2e-6
    exact = sum((torch.from_numpy(tensors["grad." + n]).double() * d).sum().item() for n, d in direction.items())
    assert numeric == pytest.approx(exact, rel=1e-6)


def test_adamw_equals_torch():
    """Our AdamW against torch.optim.AdamW, clipping included (torch adds 1e-6 to the norm)."""
    recipe = train_twin.Recipe(warmup=1)
    ours = {"a.weight": torch.linspace(-1, 1, 5, dtype=torch.float64), "norm.weight": torch.ones(3, dtype=torch.float64)}
    theirs = {n: w.clone().requires_grad_() for n, w in ours.items()}
    optimiser = torch.optim.AdamW([{"params": [theirs["a.weight"]], "weight_decay": 0.1},
                                   {"params": [theirs["norm.weight"]], "weight_decay": 0.0}],
                                  lr=recipe.lr(1), betas=(0.9, 0.95), eps=1e-8)
    moments, rng = {}, torch.Generator().manual_seed(0)
    for step in range(1, 8):  # before the first drop of the rate
        grads = {n: torch.randn(w.shape, generator=rng, dtype=torch.float64) for n, w in ours.items()}
        for n, g in grads.items():
            theirs[n].grad = g.clone()
        torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        optimiser.step()
        train_twin.adamw(recipe, ours, grads, moments, step)
    for n in ours:
        assert torch.allclose(ours[n], theirs[n], rtol=1e-7, atol=1e-9)


def test_bias_moves_towards_the_neglected():
    weights = {"model.layers.0.mlp.gate.e_score_correction_bias": torch.zeros(4)}
    train_twin.update_bias(0.5, weights, 0, torch.tensor([4, 2, 1, 1]))
    assert weights["model.layers.0.mlp.gate.e_score_correction_bias"].tolist() == [-0.5, 0.0, 0.5, 0.5]


# ---- goldens ---------------------------------------------------------------------------------------------------------


def inference_goldens():
    return sorted(n for n in os.listdir(GOLDENS) if os.path.exists(os.path.join(GOLDENS, n, "golden.safetensors")))


@pytest.mark.parametrize("name", inference_goldens())
def test_committed_files_give_the_committed_logits(name):
    """Through the files as stored: shards, types, config defaults."""
    stored = torch.from_numpy(golden(name)[2]["logits"]).double()
    assert difference(logits(name), stored) < 1e-7


@pytest.mark.parametrize("name, changes", [
    ("odd", dict(norm_topk_prob=False)), ("odd", dict(rms_norm_eps=1e-6)), ("rope_linear", dict(rope_scaling=None)),
    ("rope_dynamic", dict(rope_scaling=None)), ("rope_dynamic", dict(context=70)), ("rope_dynamic", dict(context=32)),
    ("gqa", dict(rope_theta=10000.0)), ("v2_groups", dict(topk_method="greedy")), ("v2_groups", dict(topk_group=3)),
    ("v2_groups", dict(routed_scaling_factor=1.0)), ("v2_groups_norm", dict(norm_topk_prob=False, routed_scaling_factor=1.0)),
    ("v2_greedy_scaled", dict(routed_scaling_factor=1.0)), ("sigmoid", dict(scoring_func="softmax")),
    ("v3", dict(topk_method="group_limited_greedy")), ("v3", dict(norm_topk_prob=False)), ("v3", dict(n_group=1)),
    ("v3", dict(routed_scaling_factor=1.0)), ("v3_no_norm", dict(norm_topk_prob=True)),
    ("softmax_bias", dict(scoring_func="sigmoid")), ("released", dict(num_experts_per_tok=2)),
])
def test_every_option_shows(name, changes):
    assert difference(logits(name, **changes), logits(name)) > 1e-3


@pytest.mark.parametrize("name, mistake", [
    ("v3", lambda cfg, s, right: right(cfg, s)[0].nan_to_num(neginf=0.0)),  # masked with 0
    ("v3", lambda cfg, s, right: right({**cfg, "topk_method": "group_limited_greedy"}, s)[0]),
    ("v2_groups", lambda cfg, s, right: right({**cfg, "topk_method": "noaux_tc"}, s)[0]),
])
def test_wrong_groups_show(name, mistake, monkeypatch):
    expected, right = logits(name), twin.mask_groups
    monkeypatch.setattr(twin, "mask_groups",
                        lambda cfg, s: (mistake(cfg, s, lambda c, x: right(twin.Config(c), x)), math.inf))
    assert difference(logits(name), expected) > 1e-3


def test_wrong_tie_rule_shows(monkeypatch):
    expected = logits("ties")

    def higher_index_first(scores):
        order = torch.sort(scores.flip(-1), dim=-1, descending=True, stable=True)
        return torch.return_types.sort((order.values, scores.shape[-1] - 1 - order.indices))

    monkeypatch.setattr(twin, "descending", higher_index_first)
    assert difference(logits("ties"), expected) > 1e-3


def test_files_open_with_the_public_package():
    package = pytest.importorskip("safetensors.torch")
    for name in ("released_bf16", "attention_bias_f16", "v3"):
        for file in sorted(os.listdir(os.path.join(GOLDENS, name))):
            if file.endswith(".safetensors"):
                path = os.path.join(GOLDENS, name, file)
                ours, theirs = safetensors_file.read(path)[0], package.load_file(path)
                assert ours.keys() == theirs.keys()
                for key, value in theirs.items():
                    assert torch.equal(twin.to_torch(ours[key], torch.float64), value.double())


def test_bf16_rounding_is_to_nearest_even():
    x = np.random.Generator(np.random.PCG64(0)).standard_normal(10000).astype(np.float32)
    expected = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    assert np.array_equal(tiny_models.Bf16.from_float(x).to_float(), expected)
