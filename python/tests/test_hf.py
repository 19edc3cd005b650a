# Our experts inside transformers: eager's logits and gradients, and other layouts refused by name.
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

import dsmoe  # noqa: E402
import dsmoe.hf  # noqa: E402

COMMON = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=2, max_position_embeddings=64)
MODELS = {
    "qwen3_moe": dict(moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, head_dim=16, norm_topk_prob=True),
    "qwen2_moe": dict(moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, shared_expert_intermediate_size=24),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": dict(moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2,
                        topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
                        qk_nope_head_dim=8, v_head_dim=16),
    "deepseek_v2": dict(moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                        first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
                        qk_nope_head_dim=8, v_head_dim=16),
    "glm4_moe": dict(moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=1,
                     topk_group=1, first_k_dense_replace=1, head_dim=16),
}


def tiny(name):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **COMMON, **MODELS[name])
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def logits_and_gradients(model, ids):
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return out.logits.detach().clone(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_equal_eager(name, monkeypatch):
    model, ids = tiny(name), torch.arange(40).view(2, 20) % 64
    model.set_experts_implementation("eager")
    logits, gradients = logits_and_gradients(model, ids)
    calls = []
    monkeypatch.setitem(transformers.integrations.moe.ALL_EXPERTS_FUNCTIONS, "dsmoe",
                        lambda *a, **k: calls.append(1) or dsmoe.hf.experts_forward(*a, **k))
    model.set_experts_implementation("dsmoe")
    ours, our_gradients = logits_and_gradients(model, ids)
    assert calls, "the backend was asked"
    assert (ours - logits).abs().max() <= 1e-5 * logits.abs().max().clamp(min=1)
    assert our_gradients.keys() == gradients.keys()
    for key, gradient in gradients.items():
        assert (our_gradients[key] - gradient).abs().max() <= 1e-5 * gradient.abs().max().clamp(min=1), key
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "down_proj" in n and p.ndim == 3).mul_(1.1)
    assert (model(ids).logits - logits).abs().max() > 1e-5, "changed weights must show"


def test_from_pretrained_takes_the_name(tmp_path):
    tiny("qwen3_moe").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="dsmoe")
    assert model.config._experts_implementation == "dsmoe"
    text = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)
    model.set_experts_implementation("eager")
    assert torch.equal(text, model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False))


@pytest.mark.parametrize("name, value, words", [
    ("is_transposed", True, "is_transposed"), ("has_bias", True, "biases"), ("has_gate", False, "no gate"),
    ("is_concatenated", False, "interleaves"), ("act_fn", torch.nn.GELU(), "GELU"),
])
def test_other_layouts_are_refused_by_name(name, value, words):
    model = tiny("qwen3_moe")
    for module in model.modules():
        if type(module).__name__ == "Qwen3MoeExperts":
            setattr(module, name, value)
    model.set_experts_implementation("dsmoe")
    with pytest.raises(dsmoe.UsageError, match=f"Qwen3MoeExperts.*{words}"):
        model(torch.tensor([[1, 2, 3]]))


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(32, 16, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(16, 32, bias=False)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Gate(torch.nn.Module):
    """As the released DeepSeek-MoE's: a choice, its weights, and a balance loss."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 32))

    def forward(self, x):
        scores = (x.flatten(0, -2) @ self.weight.T).softmax(-1)
        weight, index = scores.topk(2, -1)
        return index, weight, scores.mean(0).square().sum()


class RemoteLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.shared_experts = Gate(), Expert()
        self.experts = torch.nn.ModuleList(Expert() for _ in range(6))

    def forward(self, x):
        index, weight, _ = self.gate(x)
        flat = x.flatten(0, -2)
        out = torch.stack([sum(w * self.experts[i](t) for w, i in zip(ws, row)) for ws, row, t in zip(weight, index, flat)])
        return out.view_as(x) + self.shared_experts(x)


def test_patch_takes_layers_with_a_list_of_experts():
    torch.manual_seed(1)
    model, x = torch.nn.Sequential(RemoteLayer(), RemoteLayer()).eval(), torch.randn(2, 5, 32)
    expected = model(x)
    before = {name: p.numel() for name, p in model.named_parameters()}
    assert dsmoe.hf.patch(model) == 2
    assert sum(before.values()) == sum(p.numel() for p in model.parameters())
    out = model(x)
    assert (out - expected).abs().max() <= 1e-5
    model.train()
    model(x).square().sum().backward()
    assert model[0].experts.gate_up_proj.grad.abs().sum() > 0 and model[0].gate.weight.grad.abs().sum() > 0
    with pytest.raises(dsmoe.UsageError, match="no layer with a gate"):
        dsmoe.hf.patch(torch.nn.Linear(2, 2))
