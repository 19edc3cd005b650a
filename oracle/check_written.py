"""Compares `dsmoe logits` with PyPI `transformers` 5 on a folder that dsmoe wrote: python oracle/check_written.py MODEL [--dsmoe build/dsmoe]."""

import argparse
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from check_logits import run_engine


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dsmoe", default=os.path.join(os.path.dirname(__file__), "..", "build", "dsmoe"))
    parser.add_argument("--count", type=int, default=70)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager")
    tokens = np.random.Generator(np.random.PCG64(0)).integers(0, model.config.vocab_size, arguments.count)
    theirs = model(torch.from_numpy(tokens).unsqueeze(0), use_cache=False).logits[0]
    ours = torch.from_numpy(run_engine(arguments.dsmoe, arguments.model, tokens, ["--dtype", "fp32"])["logits"])
    error = (torch.linalg.norm(ours - theirs) / torch.linalg.norm(theirs)).item()
    print(f"{type(model).__name__}: logits of {arguments.count} tokens differ by {error:.2g}")
    sys.exit(0 if error <= arguments.tolerance else 1)


if __name__ == "__main__":
    main()
