"""Writes tests/goldens/<type>_<n>/ and train_<type>_<n>/ with the classes of PyPI `transformers` 5, eager, in fp64. See README.md.

The classes compute norms, scores and routers in fp32 whatever the model's type; here `float32` means fp64 while they run, so
that the goldens are the mathematics. Their own fp32 run must then be close, and choose the same experts.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

import safetensors_file
import tiny_models
import train_twin
from family_cases import CASES, TRAINED

MARGIN, LOGIT_ERROR, GATE_ERROR, GRAD_ERROR = 5e-5, 3e-6, 7e-7, 6e-6
ALPHA, Z_LOSS = 0.02, 0.01


@contextlib.contextmanager
def in_double():
    """The classes' own code, with fp64 where it says fp32."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept


def file_tensors(folder):
    with safe_open(os.path.join(folder, "model.safetensors"), "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def write_model(folder, model_type, config, seed):
    """A folder as transformers saves it, with lively weights."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config)).save_pretrained(folder)
    rng = np.random.Generator(np.random.PCG64(seed))
    weights = {}
    for name, array in sorted(file_tensors(folder).items()):
        x = rng.standard_normal(array.shape)
        if name.endswith("e_score_correction_bias"):
            x = -0.4 + 0.3 * x
        else:
            x = tiny_models.scale(name, array.shape, x)
        weights[name] = x.astype(np.float32)
    safetensors_file.write(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        saved = json.load(file)
    saved["aux_loss_alpha"] = ALPHA
    tiny_models.write_json(path, saved)
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))


class Watched:
    """A model of a class, and what its layers and routers gave."""

    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                          experts_implementation="eager")
        if dtype == torch.float64:
            self.model = self.model.double()
        self.hidden, self.routers = {}, {}
        for number, layer in enumerate(self.model.model.layers):
            layer.register_forward_hook(lambda _, __, out, n=number: self.hidden.__setitem__(n, self.first(out)))
            gate = getattr(layer.mlp, "gate", None)
            if gate is not None:
                gate.register_forward_hook(lambda m, _, out, n=number: self.routers.__setitem__(n, (m, out)))

    @staticmethod
    def first(out):
        return out[0] if isinstance(out, tuple) else out

    def rebuild_rotation(self):
        """Its frequencies, in the types that hold now."""
        rotation = self.model.model.rotary_emb
        self.model.model.rotary_emb = type(rotation)(self.model.config)

    def run(self, tokens):
        self.hidden.clear()
        self.routers.clear()
        out = self.model(torch.as_tensor(tokens, dtype=torch.long).unsqueeze(0), use_cache=False)
        return out.logits[0]

    def routing(self, layer):
        """logits, affinity, index and gate by descending selection score, smallest deciding gap."""
        module, (logits, gate, index) = self.routers[layer]
        cfg = self.model.config
        sigmoid = hasattr(module, "e_score_correction_bias")
        affinity = logits.sigmoid() if sigmoid else logits.softmax(-1)
        selection = affinity + module.e_score_correction_bias if sigmoid else affinity
        margin, groups = math.inf, getattr(cfg, "n_group", 1) or 1
        if groups > 1 and (sigmoid or cfg.topk_method == "group_limited_greedy"):
            parts = selection.unflatten(-1, (groups, -1))
            score = parts.topk(2, -1).values.sum(-1) if sigmoid else parts.max(-1).values
            order = score.sort(-1, descending=True)
            if cfg.topk_group < groups:
                margin = (order.values[:, cfg.topk_group - 1] - order.values[:, cfg.topk_group]).min().item()
            kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, order.indices[:, : cfg.topk_group], True)
            selection = parts.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2)
        ordered = selection.sort(-1, descending=True).values
        gaps = (ordered[:, :-1] - ordered[:, 1:])[:, : index.shape[1]]
        gaps = gaps[torch.isfinite(gaps)]
        if gaps.numel():
            margin = min(margin, gaps.min().item())
        order = selection.gather(-1, index).argsort(-1, descending=True)
        return logits, affinity, index.gather(-1, order), gate.gather(-1, order), margin


def relative_error(a, b):
    return (torch.linalg.norm(a.double() - b.double()) / torch.linalg.norm(b.double())).item()


def infer(folder, tokens):
    """Outputs in fp64, or None if a decision is close or fp32 differs."""
    exact = Watched(folder, torch.float64)
    with in_double():
        exact.rebuild_rotation()
        logits = exact.run(tokens)
    single = Watched(folder, torch.float32)
    if relative_error(single.run(tokens), logits) > LOGIT_ERROR:
        return None
    out, margin = {"tokens": np.asarray(tokens, dtype=np.int32), "logits": logits.numpy().astype(np.float32)}, math.inf
    for layer, hidden in exact.hidden.items():
        out[f"layers.{layer}.hidden"] = hidden.reshape(len(tokens), -1).numpy().astype(np.float32)
    for layer in exact.routers:
        _, _, index, gate, gap = exact.routing(layer)
        _, _, other, other_gate, _ = single.routing(layer)
        margin = min(margin, gap)
        if gap < MARGIN or not torch.equal(index, other) or (gate - other_gate).abs().max() > GATE_ERROR:
            return None
        out[f"layers.{layer}.topk_index"] = index.numpy().astype(np.int32)
        out[f"layers.{layer}.topk_weight"] = gate.numpy().astype(np.float32)
    return out, margin


# ---- one training step -----------------------------------------------------------------------------------------------


def losses(watched, batch):
    """Each document by itself; a row is a balance group. -> language, balance per layer, z, smallest gap."""
    language, counted, z, gap = 0.0, 0, 0.0, math.inf
    collected = {}
    for row in range(batch["tokens"].shape[0]):
        documents = batch["documents"][row]
        for document in sorted(set(documents[documents >= 0].tolist())):
            chosen = documents == document
            logits = watched.run(batch["tokens"][row][chosen])
            target = torch.as_tensor(batch["targets"][row][chosen], dtype=torch.long)
            has_target = target != train_twin.IGNORE
            counted += int(has_target.sum())
            language = language + F.cross_entropy(logits, target, ignore_index=train_twin.IGNORE, reduction="sum")
            for layer in watched.routers:
                router_logits, affinity, index, _, margin = watched.routing(layer)
                gap = min(gap, margin)
                z = z + router_logits.logsumexp(1)[has_target].pow(2).sum()
                groups = torch.full((len(target),), row)
                collected.setdefault(layer, []).append((index, affinity, groups))
    balance = [train_twin.balance_loss(ALPHA, *(torch.cat(parts) for parts in zip(*pieces)))
               for _, pieces in sorted(collected.items())]
    return language / counted, balance, Z_LOSS * z / counted, gap


def named_gradients(model):
    """By this project's names: experts apart, the shared expert in the plural."""
    grads = {}
    for name, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(grad):
                gate, up = both.chunk(2)
                prefix = name.removesuffix("gate_up_proj") + f"{expert}."
                grads[prefix + "gate_proj.weight"], grads[prefix + "up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(grad):
                grads[name.removesuffix("down_proj") + f"{expert}.down_proj.weight"] = down
        else:
            grads[name.replace(".shared_expert.", ".shared_experts.")] = grad
    if model.config.tie_word_embeddings:
        grads.pop("lm_head.weight", None)
    return grads


def one_step(watched, batch):
    with torch.enable_grad():
        language, balance, z, gap = losses(watched, batch)
        (language + sum(balance) + z).backward()
    return language, sum(balance), z, gap, named_gradients(watched.model)


def train(folder, vocab, seed):
    rng = np.random.Generator(np.random.PCG64([seed, 3]))
    batch = train_twin.make_batch(rng, vocab)
    exact = Watched(folder, torch.float64)
    with in_double():
        exact.rebuild_rotation()
        language, balance, z, gap, grads = one_step(exact, batch)
    single = one_step(Watched(folder, torch.float32), batch)[4]
    if gap < MARGIN or max(relative_error(single[n], g) for n, g in grads.items() if g.norm() > 0) > GRAD_ERROR:
        return None
    out = {name: values[None] for name, values in batch.items()}
    for name, value in (("language", language), ("balance", balance), ("z", z)):
        out["losses." + name] = np.array([value.item()], dtype=np.float32)
    out.update({"grad." + n: g.numpy().astype(np.float32) for n, g in grads.items()})
    return out, gap


def make(root, model_type, number):
    config, count = CASES[model_type][number]
    trained = number in TRAINED[model_type]
    for seed in range(200):
        with tempfile.TemporaryDirectory() as scratch:
            write_model(scratch, model_type, config, seed)
            rng = np.random.Generator(np.random.PCG64([seed, 1]))
            made = infer(scratch, rng.integers(0, config["vocab_size"], count))
            step = train(scratch, config["vocab_size"], seed) if made and trained else None
            if not made or (trained and not step):
                continue
            for name, file, parts in (("", "golden", made), ("train_", "train", step)):
                if parts is None:
                    continue
                folder = os.path.join(root, f"{name}{model_type}_{number}")
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(scratch, folder)
                metadata = {"context": str(config["max_position_embeddings"]), "seed": str(seed),
                            "smallest_gap": f"{parts[1]:.3g}", "balance_group": "1", "z_loss": str(Z_LOSS)}
                safetensors_file.write(os.path.join(folder, file + ".safetensors"), parts[0], metadata)
            print(f"{model_type}_{number} seed {seed} gap {made[1]:.2g}" + (" trained" if step else ""), flush=True)
            return
    raise RuntimeError(f"{model_type}_{number}: no seed keeps fp32 beside fp64")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "goldens"))
    parser.add_argument("--only", nargs="*", help="types; all when absent")
    parser.add_argument("--cases", nargs="*", type=int, help="numbers; all when absent")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for model_type in arguments.only or CASES:
        for number in arguments.cases if arguments.cases is not None else range(len(CASES[model_type])):
            make(arguments.out, model_type, number)


if __name__ == "__main__":
    main()
