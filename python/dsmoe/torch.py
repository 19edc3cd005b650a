"""The DeepSeekMoE layer for PyTorch: ``MoELayer`` as an ``nn.Module`` on the CPU.

    >>> import torch, dsmoe.torch
    >>> layer = dsmoe.torch.MoELayer(dict(hidden_size=32, moe_intermediate_size=16, n_routed_experts=8,
    ...                                   num_experts_per_tok=2, n_shared_experts=1))
    >>> x = torch.randn(5, 32, requires_grad=True)
    >>> layer(x).sum().backward()
    >>> x.grad.shape
    torch.Size([5, 32])

The work is done by two operators, ``torch.ops.dsmoe.moe_layer`` and ``torch.ops.dsmoe.experts``, with registered
gradients and fake kernels: ``torch.compile`` and activation checkpointing work. They call this package's own
binary and link nothing of PyTorch, so that one wheel serves many versions of it.

Weights are packed once per change, which is seen by PyTorch's version counters. The packed copies take as much memory
as the weights, and as much again once gradients are asked for (``layer.packed_bytes``). Changes through ``.data`` have
no version: call ``layer.repack()`` after them. The backward pass runs the forward pass again instead of keeping its
activations.
"""

from __future__ import annotations

import itertools
import json
import weakref
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from . import _engine

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}
_handles = itertools.count(1)
_packed: "weakref.WeakValueDictionary[int, Packed]" = weakref.WeakValueDictionary()


class Packed:
    """Weights of one layer as the kernels read them, under a number that operators take as an argument."""

    def __init__(self, *, hidden: int, num_experts: int, width: int, top_k: int, dtype: torch.dtype,
                 shared_width: int = 0, rule: Optional[Mapping[str, Any]] = None):
        if dtype not in _NAMES:
            raise _engine.UsageError(f"weights of {dtype}: expected float32, bfloat16 or float64")
        self.dtype, self.top_k = dtype, top_k
        full = {"score": "softmax", "num_groups": 1, "top_groups": 1, "group_score": "max", "normalise": False,
                "scale": 1.0, "scale_always": False, **(rule or {}), "top_k": top_k}
        self.engine = _engine.Layer(hidden, num_experts, width, shared_width, _NAMES[dtype], full)
        self._key: Optional[tuple] = None
        self._kept: Sequence[Optional[Tensor]] = ()
        self.handle = next(_handles)
        _packed[self.handle] = self

    def sync(self, weights: Sequence[Optional[Tensor]]) -> None:
        """Packs ``weights`` unless they are those packed last, unchanged."""
        unversioned = any(w is not None and w.is_inference() for w in weights)
        key = None if unversioned else tuple(None if w is None else (w.data_ptr(), w._version) for w in weights)
        if key is not None and key == self._key:
            return
        for w in weights:
            if w is not None and (not w.is_contiguous() or w.device.type != "cpu"):
                raise _engine.UsageError(f"a weight of shape {list(w.shape)} on {w.device}: expected a contiguous one "
                                         "on the CPU")
        self._key = None
        self.engine.set_weights(_addresses(weights))
        # Kept alive, so that no other weight can come to lie at the same address unseen.
        self._kept = [None if w is None else w.detach() for w in weights]
        self._key = key

    def forget(self) -> None:
        self._key = None


def _addresses(tensors: Sequence[Optional[Tensor]]) -> tuple:
    return tuple(0 if t is None else t.data_ptr() for t in tensors)


def _of(handle: int) -> Packed:
    found = _packed.get(handle)
    if found is None:
        raise _engine.UsageError(f"layer {handle} is not there any more; its module was deleted")
    return found


def _scalar(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_x(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype != dtype:
        raise _engine.UsageError(f"x is {x.dtype} and the weights are {dtype}: expected one type (cast one of them)")
    return x.contiguous()


# The layer with its own router.


@torch.library.custom_op("dsmoe::moe_layer", mutates_args=(), device_types="cpu")
def _moe_layer(x: Tensor, router: Tensor, bias: Optional[Tensor], gate_up: Tensor, down: Tensor,
               shared_gate_up: Optional[Tensor], shared_down: Optional[Tensor], top_k: int,
               handle: int) -> Tuple[Tensor, Tensor]:
    packed = _of(handle)
    x = _check_x(x, packed.dtype)
    packed.sync([router, bias, gate_up, down, shared_gate_up, shared_down])
    tokens, scalar = x.shape[0], _scalar(x.dtype)
    index = torch.empty((tokens, top_k), dtype=torch.int32)
    gate = torch.empty((tokens, top_k), dtype=scalar)
    out = torch.empty(x.shape, dtype=scalar)
    if tokens > 0:
        packed.engine.forward(tokens, x.data_ptr(), index.data_ptr(), gate.data_ptr(), out.data_ptr())
    return out.to(x.dtype), index


@_moe_layer.register_fake
def _(x, router, bias, gate_up, down, shared_gate_up, shared_down, top_k, handle):
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty((x.shape[0], top_k), dtype=torch.int32)


@torch.library.custom_op("dsmoe::moe_layer_backward", mutates_args=(), device_types="cpu")
def _moe_layer_backward(d_out: Tensor, x: Tensor, router: Tensor, bias: Optional[Tensor], gate_up: Tensor, down: Tensor,
                        shared_gate_up: Optional[Tensor], shared_down: Optional[Tensor], handle: int,
                        of_weights: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    packed = _of(handle)
    x = _check_x(x, packed.dtype)
    weights = [router, bias, gate_up, down, shared_gate_up, shared_down]
    packed.sync(weights)
    wanted = [None if w is None or not of_weights or w is bias else torch.empty(w.shape, dtype=_scalar(x.dtype))
              for w in weights]
    d_x = _run_backward(packed, x, None, None, d_out, None, weights, wanted)
    made = [w.to(x.dtype) if w is not None else x.new_empty(0) for i, w in enumerate(wanted) if i != 1]
    return (d_x, *made)


@_moe_layer_backward.register_fake
def _(d_out, x, router, bias, gate_up, down, shared_gate_up, shared_down, handle, of_weights):
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            *(x.new_empty(w.shape) if of_weights and w is not None else x.new_empty(0)
              for w in (router, gate_up, down, shared_gate_up, shared_down)))


def _run_backward(packed: Packed, x: Tensor, index: Optional[Tensor], gate: Optional[Tensor], d_out: Tensor,
                  d_gate: Optional[Tensor], weights: Sequence[Optional[Tensor]],
                  wanted: Sequence[Optional[Tensor]]) -> Tensor:
    d_x = torch.empty(x.shape, dtype=_scalar(x.dtype))
    if x.shape[0] == 0:
        for gradient in (d_gate, *wanted):
            if gradient is not None:
                gradient.zero_()
        return d_x.to(x.dtype)
    d_out = d_out.to(x.dtype).contiguous()
    packed.engine.backward(x.shape[0], x.data_ptr(), *_addresses([index, gate]), d_out.data_ptr(), d_x.data_ptr(),
                           *_addresses([d_gate]), _addresses(weights), _addresses(wanted))
    return d_x.to(x.dtype)


def _save_layer(ctx, inputs, output):
    x, router, bias, gate_up, down, shared_gate_up, shared_down, _, handle = inputs
    ctx.save_for_backward(x, router, bias, gate_up, down, shared_gate_up, shared_down)
    ctx.handle = handle


def _backward_layer(ctx, d_out, _):
    needs = ctx.needs_input_grad
    d_x, d_router, d_gate_up, d_down, d_shared_gate_up, d_shared_down = torch.ops.dsmoe.moe_layer_backward(
        d_out, *ctx.saved_tensors, ctx.handle, any(needs[1:]))
    given = [d_x, d_router, None, d_gate_up, d_down, d_shared_gate_up, d_shared_down]
    return (*(d if need else None for d, need in zip(given, needs)), None, None)


torch.library.register_autograd("dsmoe::moe_layer", _backward_layer, setup_context=_save_layer)


# Routed experts alone, where somebody else chooses.


@torch.library.custom_op("dsmoe::experts", mutates_args=(), device_types="cpu")
def _experts(x: Tensor, index: Tensor, gate: Tensor, gate_up: Tensor, down: Tensor, handle: int) -> Tensor:
    packed = _of(handle)
    x = _check_x(x, packed.dtype)
    packed.sync([None, None, gate_up, down, None, None])
    out = torch.empty(x.shape, dtype=_scalar(x.dtype))
    if x.shape[0] > 0:
        index, gate = _routing(x, index, gate)
        packed.engine.forward(x.shape[0], x.data_ptr(), index.data_ptr(), gate.data_ptr(), out.data_ptr())
    return out.to(x.dtype)


@_experts.register_fake
def _(x, index, gate, gate_up, down, handle):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _routing(x: Tensor, index: Tensor, gate: Tensor) -> Tuple[Tensor, Tensor]:
    return index.to(torch.int32).contiguous(), gate.to(_scalar(x.dtype)).contiguous()


@torch.library.custom_op("dsmoe::experts_backward", mutates_args=(), device_types="cpu")
def _experts_backward(d_out: Tensor, x: Tensor, index: Tensor, gate: Tensor, gate_up: Tensor, down: Tensor, handle: int,
                      of_weights: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    packed = _of(handle)
    x = _check_x(x, packed.dtype)
    weights = [None, None, gate_up, down, None, None]
    packed.sync(weights)
    scalar = _scalar(x.dtype)
    own_index, own_gate = _routing(x, index, gate)
    d_gate = torch.empty(gate.shape, dtype=scalar)
    wanted = [torch.empty(w.shape, dtype=scalar) if of_weights and w is not None else None for w in weights]
    d_x = _run_backward(packed, x, own_index, own_gate, d_out, d_gate, weights, wanted)
    made = [w.to(x.dtype) if of_weights else x.new_empty(0) for w in (wanted[2], wanted[3])]
    return d_x, d_gate.to(gate.dtype), made[0], made[1]


@_experts_backward.register_fake
def _(d_out, x, index, gate, gate_up, down, handle, of_weights):
    return (torch.empty_like(x, memory_format=torch.contiguous_format), gate.new_empty(gate.shape),
            *(x.new_empty(w.shape) if of_weights else x.new_empty(0) for w in (gate_up, down)))


def _save_experts(ctx, inputs, output):
    *tensors, handle = inputs
    ctx.save_for_backward(*tensors)
    ctx.handle = handle


def _backward_experts(ctx, d_out):
    needs = ctx.needs_input_grad
    d_x, d_gate, d_gate_up, d_down = torch.ops.dsmoe.experts_backward(d_out, *ctx.saved_tensors, ctx.handle,
                                                                     any(needs[3:5]))
    given = [d_x, None, d_gate, d_gate_up, d_down]
    return (*(d if need else None for d, need in zip(given, needs)), None)


torch.library.register_autograd("dsmoe::experts", _backward_experts, setup_context=_save_experts)


# Modules.


def _rule(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the router chooses by, from the keys of a DeepSeek config.json."""
    score, method = config.get("scoring_func", "softmax"), config.get("topk_method", "greedy")
    if score not in ("softmax", "sigmoid"):
        raise _engine.InputError(f'config: scoring_func is {score!r}; expected "softmax" or "sigmoid"')
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise _engine.InputError(
            f'config: topk_method is {method!r}; expected "greedy", "group_limited_greedy" or "noaux_tc"')
    grouped = method != "greedy"
    return {"score": score, "normalise": bool(config.get("norm_topk_prob", False)),
            "num_groups": config.get("n_group") or 1 if grouped else 1,
            "top_groups": config.get("topk_group") or 1 if grouped else 1,
            "group_score": "sum_of_best_two" if method == "noaux_tc" else "max",
            "scale": float(config.get("routed_scaling_factor", 1.0)), "scale_always": method == "noaux_tc"}


def _config_of(config: Any) -> Mapping[str, Any]:
    if isinstance(config, (str, PathLike)):
        path = Path(fspath(config))
        return json.loads((path / "config.json" if path.is_dir() else path).read_text())
    if isinstance(config, Mapping):
        return config
    return config.to_dict() if hasattr(config, "to_dict") else vars(config)


class MoELayer(nn.Module):
    """Shared and routed SwiGLU experts behind a router: ``out = sum_shared FFN(x) + sum_routed g FFN(x)``.

    ``config`` has the keys of a DeepSeek config.json (a dict, a path, or a configuration of transformers):
    ``hidden_size``, ``moe_intermediate_size``, ``n_routed_experts``, ``num_experts_per_tok`` and, where they differ
    from the released model's, ``n_shared_experts``, ``scoring_func``, ``topk_method``, ``norm_topk_prob``,
    ``n_group``, ``topk_group``, ``routed_scaling_factor``, ``initializer_range``.

    ``forward(x)`` takes ``[..., hidden]`` of the weights' type and gives the same shape. ``last_index`` holds the
    experts of the last call's tokens, ``[tokens, experts per token]``. Balance losses are not part of it.
    """

    def __init__(self, config: Union[str, PathLike, Mapping[str, Any], Any], *, dtype: Optional[torch.dtype] = None):
        super().__init__()
        config = _config_of(config)
        missing = [key for key in ("hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")
                   if not config.get(key)]
        if missing:
            raise _engine.InputError(f"config: expected {', '.join(missing)}, which it does not have")
        self.hidden_size, self.num_experts = config["hidden_size"], config["n_routed_experts"]
        self.width, self.top_k = config["moe_intermediate_size"], config["num_experts_per_tok"]
        self.shared_width = (config.get("n_shared_experts") or 0) * self.width
        self.rule = _rule(config)
        dtype = dtype or torch.get_default_dtype()
        std = config.get("initializer_range", 0.02)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, dtype=dtype) * std)

        self.router = weight(self.num_experts, self.hidden_size)
        self.gate_up_proj = weight(self.num_experts, 2 * self.width, self.hidden_size)
        self.down_proj = weight(self.num_experts, self.hidden_size, self.width)
        shared = self.shared_width
        self.shared_gate_up_proj = weight(2 * shared, self.hidden_size) if shared else None
        self.shared_down_proj = weight(self.hidden_size, shared) if shared else None
        has_bias = config.get("topk_method") == "noaux_tc"
        self.register_buffer("e_score_correction_bias", torch.zeros(self.num_experts, dtype=_scalar(dtype)) if has_bias else None)
        self.last_index: Optional[Tensor] = None
        self._packed: dict[torch.dtype, Packed] = {}
        self._pack()

    def _pack(self) -> Packed:
        dtype = self.gate_up_proj.dtype
        if dtype not in self._packed:
            self._packed = {dtype: Packed(hidden=self.hidden_size, num_experts=self.num_experts, width=self.width,
                                          top_k=self.top_k, dtype=dtype, shared_width=self.shared_width,
                                          rule=self.rule)}
        return self._packed[dtype]

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if self.e_score_correction_bias is not None:  # decides the choice, so it keeps its type
            scalar = _scalar(self.gate_up_proj.dtype)
            self.e_score_correction_bias = self.e_score_correction_bias.to(scalar)
        if self.gate_up_proj.dtype in _NAMES:
            self._pack()
        return self

    def __getstate__(self):
        return {**self.__dict__, "_packed": {}}

    def __deepcopy__(self, memo):
        import copy

        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        other.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.__getstate__().items()})
        other._pack()
        return other

    def __setstate__(self, state):
        super().__setstate__(state)
        self._pack()

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed copies of the weights."""
        return sum(packed.engine.packed_bytes for packed in self._packed.values())

    def repack(self) -> None:
        """The next call packs the weights again: for changes through ``.data``."""
        for packed in self._packed.values():
            packed.forget()

    def extra_repr(self) -> str:
        return (f"hidden={self.hidden_size}, experts={self.num_experts}, top_k={self.top_k}, width={self.width}, "
                f"shared_width={self.shared_width}")

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.hidden_size:
            raise _engine.InputError(f"x: expected [..., {self.hidden_size}], got {list(x.shape)}")
        handle = self._packed[self.gate_up_proj.dtype].handle
        out, index = torch.ops.dsmoe.moe_layer(
            x.reshape(-1, self.hidden_size), self.router, self.e_score_correction_bias, self.gate_up_proj,
            self.down_proj, self.shared_gate_up_proj, self.shared_down_proj, self.top_k, handle)
        self.last_index = index
        return out.reshape(x.shape)
