"""Our experts inside Hugging Face transformers (5.x), on the CPU.

Importing this module registers the experts backend ``"dsmoe"``::

    import dsmoe.hf
    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="dsmoe")
    model.set_experts_implementation("dsmoe")          # or afterwards

It takes SwiGLU experts stored as transformers stores them, ``gate_up_proj`` ``[experts, 2 width, hidden]`` with gate
above up and ``down_proj`` ``[experts, hidden, width]``, forward and backward; every other layout is refused by name.
``patch(model)`` does the same for the remote-code DeepSeek-MoE, whose experts are a list of modules.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from . import _engine
from .torch import Packed

_ATTRIBUTE = "_dsmoe_packed"


def _refuse(module: nn.Module, reason: str) -> None:
    raise _engine.UsageError(f'experts_implementation="dsmoe": {type(module).__name__} {reason}; expected SwiGLU '
                             "experts with gate_up_proj [experts, 2 width, hidden] and down_proj [experts, hidden, width]")


def _check(module: nn.Module) -> None:
    for name, wanted, reason in (("has_gate", True, "has no gate"), ("has_bias", False, "has biases"),
                                 ("is_transposed", False, "is transposed (is_transposed)"),
                                 ("is_concatenated", True, "interleaves gate and up (is_concatenated is false)"),
                                 ("has_post_expert_norm", False, "has a norm behind each expert"),
                                 ("_is_expert_parallel", False, "is spread over ranks")):
        if bool(getattr(module, name, wanted)) is not wanted:
            _refuse(module, reason)
    gate = getattr(type(module), "_apply_gate", None)
    if gate is not None and gate.__qualname__ != "_default_apply_gate":
        _refuse(module, f"has a gate of its own ({gate.__qualname__})")
    act = getattr(module, "act_fn", None)
    if act is not None and type(act).__name__ not in ("SiLU", "SiLUActivation") and act is not torch.nn.functional.silu:
        _refuse(module, f"uses {type(act).__name__}, not SiLU")
    up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(up, Tensor) or not isinstance(down, Tensor) or up.ndim != 3 or down.ndim != 3:
        _refuse(module, "has no stacked gate_up_proj and down_proj")
    experts, double, hidden = up.shape
    if double % 2 or down.shape != (experts, hidden, double // 2):
        _refuse(module, f"has gate_up_proj {list(up.shape)} and down_proj {list(down.shape)}")
    if up.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        _refuse(module, f"has weights of {up.dtype}")
    if up.device.type != "cpu":
        _refuse(module, f"lies on {up.device}; this build of dsmoe computes on the CPU")


def _packed_of(module: nn.Module, gate_up: Tensor, top_k: int) -> Packed:
    known = module.__dict__.setdefault(_ATTRIBUTE, {})
    key = (gate_up.dtype, top_k, tuple(gate_up.shape))
    if key not in known:
        _check(module)
        known.clear()
        known[key] = Packed(hidden=gate_up.shape[2], num_experts=gate_up.shape[0], width=gate_up.shape[1] // 2,
                            top_k=top_k, dtype=gate_up.dtype)
    return known[key]


def experts_forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The function behind the name: what transformers calls in place of a module's own forward."""
    packed = _packed_of(self, self.gate_up_proj, top_k_index.shape[-1])
    hidden = hidden_states.shape[-1]
    out = torch.ops.dsmoe.experts(
        hidden_states.reshape(-1, hidden).to(self.gate_up_proj.dtype), top_k_index.reshape(-1, top_k_index.shape[-1]),
        top_k_weights.reshape(-1, top_k_weights.shape[-1]), self.gate_up_proj, self.down_proj, packed.handle)
    return out.to(hidden_states.dtype).reshape(hidden_states.shape)


class _StackedExperts(nn.Module):
    """The experts of a remote-code DeepSeek-MoE layer, stacked once; their modules become views of the stack."""

    def __init__(self, experts: nn.ModuleList):
        super().__init__()
        with torch.no_grad():
            up = torch.stack([torch.cat([e.gate_proj.weight, e.up_proj.weight]) for e in experts])
            down = torch.stack([e.down_proj.weight for e in experts])
        trains = any(p.requires_grad for p in experts.parameters())
        self.gate_up_proj = nn.Parameter(up, requires_grad=trains)
        self.down_proj = nn.Parameter(down, requires_grad=trains)
        self.act_fn = experts[0].act_fn

    forward = experts_forward


def _moe_forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
    routed = self.gate(hidden_states)
    index, weight = routed[0], routed[1]
    out = self.experts(hidden_states, index, weight.to(torch.float32))
    if getattr(self, "shared_experts", None) is not None:
        out = out + self.shared_experts(hidden_states)
    aux = routed[2] if len(routed) > 2 else None
    if self.training and aux is not None:
        out = _AddAuxiliaryLoss.apply(out, aux)
    return out


class _AddAuxiliaryLoss(torch.autograd.Function):
    """Hands its input on, and gives the loss a gradient of one."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.loss_type = loss.dtype
        return x

    @staticmethod
    def backward(ctx, d_x):
        return d_x, torch.ones((), dtype=ctx.loss_type)


def patch(model: nn.Module) -> int:
    """Puts our experts into a remote-code DeepSeek-MoE (``trust_remote_code=True``), in place; how many layers.

    A layer is a module with ``gate`` and a list ``experts`` of modules with ``gate_proj``, ``up_proj`` and
    ``down_proj`` without biases. Its experts' weights become two stacked parameters, ``experts.gate_up_proj`` and
    ``experts.down_proj``.
    """
    patched = 0
    for module in model.modules():
        experts: Optional[Any] = getattr(module, "experts", None)
        if not isinstance(experts, nn.ModuleList) or not hasattr(module, "gate") or len(experts) == 0:
            continue
        for expert in experts:
            parts = [getattr(expert, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
            if any(not isinstance(part, nn.Linear) or part.bias is not None for part in parts):
                _refuse(module, "has experts that are not three linear layers without biases")
        stacked = _StackedExperts(experts)
        _check(stacked)
        module.experts = stacked
        module.forward = _moe_forward.__get__(module)
        patched += 1
    if patched == 0:
        raise _engine.UsageError(f"{type(model).__name__} has no layer with a gate and a list of experts; models of "
                                 'transformers take experts_implementation="dsmoe" instead')
    return patched


try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as error:
    raise ImportError("dsmoe.hf needs transformers 5.0 or later, which has experts backends") from error
ALL_EXPERTS_FUNCTIONS.register("dsmoe", experts_forward)
