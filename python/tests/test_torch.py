# MoELayer against a loop over experts in torch, and what PyTorch asks of an operator.
import copy

import pytest

torch = pytest.importorskip("torch")

import dsmoe  # noqa: E402
import dsmoe.torch as dt  # noqa: E402
from dsmoe.torch import MoELayer  # noqa: E402

CONFIGS = {
    "deepseek": dict(hidden_size=40, moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2),
    "no shared": dict(hidden_size=32, moe_intermediate_size=16, n_routed_experts=5, num_experts_per_tok=2,
                      norm_topk_prob=True),
    "v3": dict(hidden_size=32, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=4, n_shared_experts=1,
               scoring_func="sigmoid", topk_method="noaux_tc", n_group=4, topk_group=2, norm_topk_prob=True,
               routed_scaling_factor=2.5),
    "v2": dict(hidden_size=32, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
               topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=16.0),
}


def make(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layer = MoELayer(dict(CONFIGS[name], initializer_range=0.2), dtype=dtype)
    if layer.e_score_correction_bias is not None:
        layer.e_score_correction_bias.normal_(std=0.1)
    return layer, torch.randn(13, layer.hidden_size, dtype=dtype)


def swiglu(x, gate_up, down):
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


def expert_loop(layer, x, index):
    """The layer as the papers write it, for a given choice; in the type of x."""
    rule = layer.rule
    logits = x @ layer.router.to(x.dtype).T
    score = logits.softmax(-1) if rule["score"] == "softmax" else logits.sigmoid()
    gate = score.gather(1, index.long())
    if rule["normalise"]:
        gate = gate / (gate.sum(-1, keepdim=True) + 1e-20)
    if rule["scale_always"] or not rule["normalise"]:
        gate = gate * rule["scale"]
    out = torch.zeros_like(x)
    for slot in range(index.shape[1]):
        for expert in range(layer.num_experts):
            chosen = index[:, slot] == expert
            y = swiglu(x[chosen], layer.gate_up_proj[expert].to(x.dtype), layer.down_proj[expert].to(x.dtype))
            out = out.index_add(0, chosen.nonzero()[:, 0], gate[chosen, slot, None] * y)
    if layer.shared_width:
        out = out + swiglu(x, layer.shared_gate_up_proj.to(x.dtype), layer.shared_down_proj.to(x.dtype))
    return out


def reference_choice(layer, x):
    """Which experts: scores with the bias, the best groups, the best of those, ties by lower index."""
    rule = layer.rule
    logits = x.double() @ layer.router.double().T
    score = logits.softmax(-1) if rule["score"] == "softmax" else logits.sigmoid()
    if layer.e_score_correction_bias is not None:
        score = score + layer.e_score_correction_bias.double()
    groups = score.view(len(x), rule["num_groups"], -1)
    group = groups.topk(2, -1).values.sum(-1) if rule["group_score"] == "sum_of_best_two" else groups.max(-1).values
    kept = torch.zeros_like(group).scatter(1, group.topk(rule["top_groups"], -1).indices, 1.0)
    masked = groups.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).flatten(1)
    return masked.topk(layer.top_k, -1).indices


def gradients(out, x, layer):
    parameters = list(layer.parameters())
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), [x, *parameters])


# Sums here are of at most 48 terms: (48 + 16) 2^-24 relative to the sum of magnitudes, about 4e-6 of the largest value,
# over a path of four products. bf16 rounds each of about eight values by 2^-8 at most.
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 8 * 2**-8)])
@pytest.mark.parametrize("name", CONFIGS)
def test_forward_and_gradients_equal_a_loop_over_experts(name, dtype, bound):
    layer, x = make(name, dtype)
    x.requires_grad_()
    out = layer(x)
    assert (layer.last_index.sort(-1).values == reference_choice(layer, x.detach()).sort(-1).values).float().mean() > 0.9
    wide = x.detach().double().requires_grad_()
    expected = expert_loop(layer, wide, layer.last_index)
    assert (out.double() - expected).norm() <= bound * expected.norm()
    exact = gradients(expected, wide, layer)
    for ours, theirs, what in zip(gradients(out, x, layer), exact, ["x", *dict(layer.named_parameters())]):
        assert (ours.double() - theirs.double()).norm() <= 4 * bound * theirs.double().norm(), what
    broken = expert_loop(layer, wide, (layer.last_index + 1) % layer.num_experts)
    assert (out.double() - broken).norm() > bound * expected.norm(), "other experts must show"


def test_gradients_are_slopes():
    layer, x = make("v3", torch.float64)
    x = x[:4].requires_grad_()
    packed = layer._packed[torch.float64]
    names = ["router", "gate_up_proj", "down_proj", "shared_gate_up_proj", "shared_down_proj"]

    def run(x, router, gate_up, down, shared_gate_up, shared_down):
        packed.forget()  # gradcheck moves weights through .data
        return torch.ops.dsmoe.moe_layer(x, router, layer.e_score_correction_bias, gate_up, down, shared_gate_up,
                                         shared_down, layer.top_k, packed.handle)[0]

    assert torch.autograd.gradcheck(run, (x, *(getattr(layer, name) for name in names)), eps=1e-6, atol=1e-7,
                                    fast_mode=True)


def test_operators_pass_opcheck():
    layer, x = make("deepseek")
    layer(x)
    handle = layer._packed[torch.float32].handle
    arguments = (x.requires_grad_(), layer.router, None, layer.gate_up_proj, layer.down_proj, layer.shared_gate_up_proj,
                 layer.shared_down_proj, layer.top_k, handle)
    torch.library.opcheck(torch.ops.dsmoe.moe_layer.default, arguments)
    packed = dt.Packed(hidden=40, num_experts=8, width=24, top_k=3, dtype=torch.float32)
    gate = torch.rand(13, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.dsmoe.experts.default,
                          (x, layer.last_index, gate, layer.gate_up_proj, layer.down_proj, packed.handle))


def test_compiled_layers_give_the_same_bits():
    layer, x = make("deepseek")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x.requires_grad_()
    ours, plain = compiled(x), layer(x)
    assert torch.equal(ours, plain)
    for a, b in zip(gradients(ours, x, layer), gradients(plain, x, layer)):
        assert torch.equal(a, b)
    assert torch.equal(compiled(x[:5]), plain[:5]), "another number of tokens"


def test_checkpointing_gives_the_same_bits():
    layer, x = make("v3")
    x.requires_grad_()
    recomputed = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    for a, b in zip(gradients(recomputed, x, layer), gradients(layer(x), x, layer)):
        assert torch.equal(a, b)


def test_weights_are_packed_again_when_they_change():
    layer, x = make("deepseek")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer(x)
    before.square().sum().backward()
    optimizer.step()
    after = layer(x)
    expected = expert_loop(layer, x, layer.last_index)
    assert not torch.equal(before, after) and (after - expected).norm() <= 2e-5 * expected.norm()
    layer.down_proj.data.mul_(2)  # has no version
    layer.repack()
    assert not torch.equal(layer(x), after)
    with torch.inference_mode():
        assert torch.equal(layer(x), layer(x))
    replaced = torch.nn.Parameter(torch.zeros_like(layer.gate_up_proj))
    layer.gate_up_proj = replaced
    layer.shared_gate_up_proj = torch.nn.Parameter(torch.zeros_like(layer.shared_gate_up_proj))
    assert layer(x).abs().max() == 0


def test_two_forwards_before_one_backward():
    layer, x = make("deepseek")
    a, b = x[:6].clone().requires_grad_(), x[6:].clone().requires_grad_()
    (layer(a).square().sum() + layer(b).square().sum()).backward()
    together = x.clone().requires_grad_()
    layer(together).square().sum().backward()
    assert torch.equal(torch.cat([a.grad, b.grad]), together.grad)


def test_layers_are_modules(tmp_path):
    layer, x = make("v3")
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other, _ = make("v3", seed=5)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16 and half.e_score_correction_bias.dtype == torch.float32
    assert layer.packed_bytes >= sum(p.numel() * p.element_size() for p in layer.parameters())
    assert layer(x.view(1, 13, -1)).shape == (1, 13, x.shape[-1])
    assert layer(x[:0]).shape == x[:0].shape
    with pytest.raises(dsmoe.UsageError, match="expected one type"):
        layer(x.double())
    with pytest.raises(dsmoe.InputError, match=r"expected \[..., 32\]"):
        layer(x[:, :5])
    with pytest.raises(dsmoe.InputError, match="moe_intermediate_size"):
        MoELayer(dict(hidden_size=8, n_routed_experts=4, num_experts_per_tok=2))


def test_a_layer_learns():
    layer, x = make("deepseek")
    target = torch.sin(x)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0], losses[::10]
