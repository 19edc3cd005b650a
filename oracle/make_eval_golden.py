"""Writes tests/goldens/eval/: one small model and what `dsmoe eval` must say of it, as eval.json. Natural logarithms.

Windows: inputs [k*stride, k*stride + window), positions from 0 in each; window k scores the targets that no earlier window
scored, so that each of tokens[1..n) is scored exactly once. Pairs: as lm-evaluation-harness defines them (README).
"""

import argparse
import os
import shutil

import numpy as np
import torch

import deepseek_twin as twin
import tiny_models

STORED, LONGEST = "BF16", 24
CONFIG = tiny_models.released(hidden_size=24, vocab_size=61, intermediate_size=29, n_routed_experts=6, num_experts_per_tok=2,
                              n_shared_experts=1, max_position_embeddings=LONGEST, torch_dtype="bfloat16")


class Scorer:
    def __init__(self, cfg, weights):
        self.cfg, self.weights = cfg, weights
        self.closest = float("inf")  # smallest gap of any decision: routing, or the best against the second best token

    def log_probs(self, tokens):
        """log p of every next token after each of `tokens` [T, V]."""
        out = twin.forward(self.cfg, self.weights, torch.tensor(tokens))
        best = out.logits.topk(2, -1).values
        self.closest = min([self.closest, (best[:, 0] - best[:, 1]).min().item(), *(r.margin for r in out.routing.values())])
        return out.logits.log_softmax(-1)

    def windows(self, tokens, window, stride):
        """log p of tokens[1..n), each scored once."""
        scored, begin = [], 0
        while len(scored) < len(tokens) - 1:
            end = min(begin + window, len(tokens) - 1)  # inputs [begin, end) predict targets [begin + 1, end + 1)
            log_probs = self.log_probs(tokens[begin:end])
            for target in range(len(scored) + 1, end + 1):
                scored.append(log_probs[target - 1 - begin, tokens[target]].item())
            begin += stride
        return scored

    def pair(self, context, continuation):
        """Sum of log p of the continuation, and whether each of its tokens is the argmax; keeps the end of what is too long."""
        context = context or [self.cfg.bos_token_id]
        tokens = (context + continuation)[-(LONGEST + 1):]
        log_probs = self.log_probs(tokens[:-1])[-len(continuation):]
        targets = torch.tensor(continuation)
        total = log_probs.gather(1, targets.unsqueeze(1)).sum().item()
        return {"context": context, "continuation": continuation, "loglikelihood": total,
                "greedy": bool(torch.equal(log_probs.argmax(-1), targets))}

    def greedy(self, context, count):
        tokens = list(context)
        for _ in range(count):
            tokens.append(int(self.log_probs(tokens[-LONGEST:])[-1].argmax()))
        return tokens[len(context):]


def stream(scorer, tokens, window, stride):
    log_probs = scorer.windows(tokens, window, stride)
    return {"tokens": tokens, "window": window, "stride": stride, "counted": len(log_probs), "nats": -sum(log_probs),
            "nats_per_token": -sum(log_probs) / len(log_probs), "logprobs": log_probs}


def draw(seed):
    cfg = twin.Config(CONFIG)
    weights = tiny_models.random_weights(cfg, seed, STORED)
    scorer = Scorer(cfg, tiny_models.compute_weights(weights, torch.float64))
    rng = np.random.Generator(np.random.PCG64([seed, 2]))

    def ids(count):
        return rng.integers(2, cfg.vocab_size, count).tolist()

    long = ids(61)
    streams = [stream(scorer, long[:20], LONGEST, LONGEST), stream(scorer, long, LONGEST, LONGEST),
               stream(scorer, long, 16, 5), stream(scorer, ids(2), LONGEST, LONGEST)]
    pairs = [scorer.pair(ids(size), ids(count)) for size, count in ((6, 4), (1, 1), (30, 3), (22, 3))]
    for size, count in ((5, 1), (7, 4), (22, 2)):
        context = ids(size)
        pairs.append(scorer.pair(context, scorer.greedy(context, count)))
    almost = ids(9)
    best = scorer.greedy(almost, 3)
    pairs.append(scorer.pair(almost, best[:2] + [(best[2] + 1) % cfg.vocab_size]))  # greedy but for the last
    pairs.append({**scorer.pair([], ids(3)), "context": []})  # an empty context stands for bos
    return weights, scorer.closest, {"streams": streams, "pairs": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "goldens"))
    folder = os.path.join(parser.parse_args().out, "eval")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    weights, closest, expected = next(result for result in map(draw, range(1000)) if result[1] > 5e-5)
    shutil.rmtree(folder, ignore_errors=True)
    tiny_models.write_folder(folder, CONFIG, weights)
    tiny_models.write_json(os.path.join(folder, "eval.json"), expected)
    print(f"eval: {len(expected['streams'])} streams, {len(expected['pairs'])} pairs, smallest gap {closest:.2g}")


if __name__ == "__main__":
    main()
