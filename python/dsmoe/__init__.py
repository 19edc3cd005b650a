"""DeepSeekMoE language models: trained, evaluated, quantised and served by one engine.

    >>> import dsmoe
    >>> model = dsmoe.load(folder)                        # a model folder, or a run of training
    >>> answer = model.generate("the red fox", max_tokens=8, seed=7)
    >>> answer.finish_reason
    'length'

What there is:

- ``load`` gives a ``Model``: ``generate``, ``chat``, ``forward``, ``score``, ``evaluate``, ``encode``, ``decode``.
- ``train`` trains a run to its end, ``Trainer`` does it step by step, ``read_run`` reads what a run wrote.
- ``quantise`` writes a folder with int8 or int4 weights.
- ``dsmoe.torch.MoELayer`` is the layer as an ``nn.Module``; ``dsmoe.hf`` puts our experts into transformers;
  ``dsmoe.lm_eval`` is a model class for lm-evaluation-harness. Each needs its package, and nothing else does.
- The command line comes along: ``dsmoe`` and ``python -m dsmoe``.

Results are a function of model, request and seed: not of threads, batch or processor, and the same bits as the
command line's. Errors are ``dsmoe.Error`` and its kinds; their texts say what was expected and what came.
"""

from ._engine import (
    Error,
    InputError,
    InternalError,
    IoError,
    ResourceError,
    UsageError,
    __version__,
    commit,
    engine_version,
    kernels,
    set_log_level,
)
from ._model import Answer, Forward, Model, Score, load, quantise
from ._run import Run, read_run
from ._train import Trainer, train

__all__ = [
    "Answer", "Error", "Forward", "InputError", "InternalError", "IoError", "Model", "ResourceError", "Run", "Score",
    "Trainer", "UsageError", "__version__", "commit", "engine_version", "kernels", "load", "quantise", "read_run",
    "set_log_level", "train",
]


def __getattr__(name):
    # Parts that need packages of their own are imported when somebody asks for them.
    if name in ("torch", "hf", "lm_eval"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
