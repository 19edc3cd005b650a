"""A model class for lm-evaluation-harness.

Importing this module registers the name ``"dsmoe"``::

    import lm_eval, dsmoe.lm_eval
    lm_eval.simple_evaluate(model="dsmoe", model_args="path=my-model/", tasks=["hellaswag"])

Log-likelihoods are those of ``dsmoe eval --pairs``, bit for bit.
"""

from __future__ import annotations

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from ._model import load


@register_model("dsmoe")
class DsmoeLM(LM):
    """``path``: a model folder or a run. ``bos``: ``auto``, ``yes`` or ``no``. The rest is :func:`dsmoe.load`'s."""

    def __init__(self, path: str, bos: str = "auto", max_gen_toks: int = 256, batch_size=None, max_batch_size=None,
                 device: str | None = None, **options):
        super().__init__()
        if device not in (None, "auto", "cpu", "cuda"):
            device = "auto"
        numbers = {name: int(options.pop(name)) for name in ("context", "threads", "max_batch") if name in options}
        self.model = load(path, device=device or "auto", **numbers, **options)
        self._bos, self._max_gen_toks = bos, int(max_gen_toks)

    def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        scores = self.model.score([request.args for request in requests], bos=self._bos)
        return [(score.log_likelihood, score.greedy) for score in scores]

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        return [-self.model.evaluate(request.args[0])["nats"] for request in requests]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        streams = []
        for request in requests:
            prompt, wishes = request.args
            wishes = dict(wishes)
            until = wishes.get("until") or []
            sampled = wishes.get("do_sample", False)
            streams.append(self.model.generate(
                prompt, stream=True, stop=[until] if isinstance(until, str) else until, seed=wishes.get("seed", 0),
                max_tokens=int(wishes.get("max_gen_toks", wishes.get("max_new_tokens", self._max_gen_toks))),
                temperature=float(wishes.get("temperature", 1.0)) if sampled else 0.0,
                top_p=float(wishes.get("top_p", 1.0)), top_k=int(wishes.get("top_k", 0))))
        return [str(stream.answer) for stream in streams]

    @property
    def tokenizer_name(self) -> str:
        return self.model.folder

    def apply_chat_template(self, chat_history, add_generation_prompt: bool = True) -> str:
        return self.model.apply_chat_template(chat_history, add_generation_prompt)
