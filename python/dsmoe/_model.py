"""Models: text and tokens, answers, logits, scores."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, NamedTuple, Sequence, Union

from . import _engine
from ._arrays import token_array

if TYPE_CHECKING:
    import numpy as np

Path = Union[str, PathLike]
Prompt = Union[str, Sequence[int], "np.ndarray"]


class Answer(str):
    """The text of an answer, with what is known of it.

    It is a ``str``: print it, compare it, cut it. Beside that it has

    - ``tokens``: the ids of the answer;
    - ``finish_reason``: ``"stop"``, ``"length"``, ``"context"`` or ``"cancelled"``;
    - ``stop``: the stop string that ended it, or ``""``;
    - ``seed``: with it the same request gives the same answer;
    - ``prompt_tokens``, ``reused_tokens``: the prompt's length, and how much of it was known already;
    - ``routes``, ``gates``: with ``routes=True``, the experts of every token that was computed, as arrays
      ``[tokens, MoE layers, experts per token]``; the prompt's tokens come first. The last token of an answer is
      chosen, not computed.
    """

    tokens: list[int]
    finish_reason: str
    stop: str
    seed: int
    prompt_tokens: int
    reused_tokens: int
    routes: "np.ndarray | None" = None
    gates: "np.ndarray | None" = None


@dataclass(frozen=True)
class Forward:
    """What a forward pass gives: NumPy arrays that also speak DLPack; nothing is copied on the way out."""

    logits: "np.ndarray"  #: [tokens, vocabulary], float32
    routes: "np.ndarray"  #: [tokens, MoE layers, experts per token], int32; the strongest first, -1 absent
    gates: "np.ndarray"  #: the same shape, float32
    hidden: "np.ndarray | None" = None  #: [tokens, hidden], float32: the normalised final states


class Score(NamedTuple):
    """How likely a continuation is: the sum of log-probabilities, whether greedy decoding gives it, its tokens."""

    log_likelihood: float
    greedy: bool
    tokens: int


class Stream:
    """An answer as it comes: iterate for pieces of text; ``answer`` is the whole once the pieces are through.

    A stream that is left before its end gives up its answer.
    """

    def __init__(self, running: "_engine.RunningAnswer", seed: int):
        self._running = running
        self._seed = seed
        self._pieces: list[str] = []
        self._answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        while self._answer is None:
            piece = self._running.next()
            if piece is None:
                self._finish()
                return
            self._pieces.append(piece)
            yield piece

    def _finish(self) -> None:
        answer = Answer("".join(self._pieces))
        for name, value in self._running.facts().items():
            setattr(answer, name, value)
        answer.seed = self._seed
        self._answer = answer

    def cancel(self) -> None:
        """Ends the answer where it is; the next piece is the last."""
        self._running.cancel()

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for what is left of it."""
        for _ in self:
            pass
        assert self._answer is not None
        return self._answer


class Model:
    """A model with its tokenizer. Made by :func:`load`.

    Any number of threads may call one model at once: answers share the steps of one engine, and each is what it
    would be alone.
    """

    def __init__(self, engine: "_engine.LoadedModel"):
        self._engine = engine
        #: config.json, as a dict.
        self.config: dict[str, Any] = json.loads(engine.config_json)

    def __repr__(self) -> str:
        return (f"<dsmoe.Model {self.folder}: {self.num_parameters:,} parameters, {self.num_active_parameters:,} active, "
                f"{self.dtype} on {self.device}>")

    folder = property(lambda self: self._engine.folder, doc="The folder it was loaded from.")
    device = property(lambda self: self._engine.device, doc='"cpu" or "cuda".')
    dtype = property(lambda self: self._engine.dtype, doc='The compute type: "bf16" or "fp32".')
    context = property(lambda self: self._engine.context, doc="Positions of a prompt and its answer.")
    num_parameters = property(lambda self: self._engine.num_parameters)
    num_active_parameters = property(lambda self: self._engine.num_active_parameters, doc="Those one token meets.")
    weight_bytes = property(lambda self: self._engine.weight_bytes, doc="Memory of the weights.")
    moe_layers = property(lambda self: self._engine.moe_layers, doc="The layers that have routed experts.")
    num_threads = property(lambda self: self._engine.num_threads)

    # Text and tokens.

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of a text, with the tokenizer's own frame (BOS, as a rule) unless ``add_special`` is false.

        >>> model.decode(model.encode("the red fox"))
        'the red fox'
        """
        return self._engine.encode(text, add_special)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of ids; what is no whole character becomes U+FFFD.

        >>> model.decode(model.encode("over the hills"))
        'over the hills'
        """
        return self._engine.decode(token_array(ids).tolist(), skip_special).decode()

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
                            **variables: Any) -> str:
        """The prompt that the model's own chat template makes of a conversation.

        >>> model.apply_chat_template([{"role": "user", "content": "Hello"}]).endswith("Assistant:")
        True
        """
        return self._engine.render_chat(json.dumps(list(messages)), add_generation_prompt, json.dumps(variables))

    # Answers.

    def generate(self, prompt: Prompt | Sequence[Prompt], *, stream: bool = False, max_tokens: int | None = None,
                 temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0,
                 logit_bias: Mapping[int, float] | None = None, stop: str | Sequence[str] = (), seed: int | None = None,
                 ignore_eos: bool = False, experts_per_token: int = 0, routes: bool = False,
                 replay: "np.ndarray | None" = None, schema: Mapping[str, Any] | None = None, regex: str | None = None,
                 choices: Sequence[str] = ()) -> "Answer | Stream | list[Answer]":
        """Goes on with a prompt: a text, or ids. A list of prompts is a batch and gives a list of answers.

        ``stream=True`` gives pieces of text as they come. Without a ``seed`` a random one is taken and told in the
        answer. ``schema`` (JSON schema), ``regex`` or ``choices`` say what the answer must look like. ``replay``
        holds experts, ``[tokens, MoE layers, experts per token]``: the first tokens take these instead of choosing.

        >>> model.generate("the red", max_tokens=4, temperature=0) == model.generate("the red", max_tokens=4, temperature=0)
        True
        >>> [len(a.tokens) for a in model.generate(["the", "a fox"], max_tokens=3, seed=1, ignore_eos=True)]
        [3, 3]
        >>> "".join(model.generate("the red", stream=True, max_tokens=4, seed=7)) == model.generate("the red", max_tokens=4, seed=7)
        True
        """
        if seed is None:
            seed = secrets.randbits(53)
        options: dict[str, Any] = {
            "max_tokens": max_tokens, "temperature": float(temperature), "top_k": top_k, "top_p": float(top_p),
            "min_p": float(min_p), "repetition_penalty": float(repetition_penalty),
            "presence_penalty": float(presence_penalty), "frequency_penalty": float(frequency_penalty),
            "logit_bias": [(int(token), float(bias)) for token, bias in (logit_bias or {}).items()],
            "stop": [stop] if isinstance(stop, str) else list(stop), "seed": seed, "ignore_eos": ignore_eos,
            "experts_per_token": experts_per_token, "routes": routes,
            "schema": None if schema is None else json.dumps(schema), "regex": regex, "choices": list(choices),
        }
        if max_tokens is not None and max_tokens < 1:
            raise _engine.UsageError(f"max_tokens is {max_tokens}; expected at least 1, or None for as many as fit")
        if sum(option is not None and option != () for option in (schema, regex, choices)) > 1:
            raise _engine.UsageError("schema, regex and choices: expected at most one of them")
        if replay is not None:
            options["replay"] = self._replay_array(replay, experts_per_token).ravel().tolist()

        def begin(one: Prompt) -> Stream:
            ids = self.encode(one) if isinstance(one, str) else token_array(one).tolist()
            return Stream(self._engine.start(ids, options), seed)

        if _is_batch(prompt):
            if stream:
                raise _engine.UsageError("stream=True takes one prompt; call it once for each, in threads of your own")
            running = [begin(one) for one in prompt]
            return [one.answer for one in running]
        one = begin(prompt)
        return one if stream else one.answer

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> "Answer | Stream":
        """The answer to a conversation, through the model's chat template. Options are those of :meth:`generate`.

        >>> str(model.chat([{"role": "user", "content": "Hello"}], max_tokens=1, temperature=0)) != ""
        True
        """
        prompt = self.encode(self.apply_chat_template(messages), add_special=False)
        return self.generate(prompt, **options)

    # Numbers.

    def forward(self, ids: Iterable[int], *, experts_per_token: int = 0, replay: "np.ndarray | None" = None,
                hidden: bool = False) -> Forward:
        """Logits and routing of every token, as ``dsmoe logits`` writes them.

        ``replay`` holds the experts to take, of the shape of ``routes``; ``hidden=True`` adds the final states.

        >>> out = model.forward([0, 70, 71])
        >>> out.logits.shape == (3, model.config["vocab_size"])
        True
        >>> bool((model.forward([0, 70, 71], replay=out.routes).logits == out.logits).all())
        True
        """
        if replay is not None:
            replay = self._replay_array(replay, experts_per_token)
        return Forward(**self._engine.forward(token_array(ids), experts_per_token, replay, hidden))

    def score(self, pairs: Sequence[tuple[Any, Any]], *, bos: str = "auto", experts_per_token: int = 0) -> list[Score]:
        """Log-likelihoods of (context, continuation) pairs as lm-evaluation-harness defines them: what
        ``dsmoe eval --pairs`` prints. Texts, or lists of ids, which are taken as they are. ``bos`` is ``"auto"``,
        ``"yes"`` or ``"no"``.

        >>> model.score([("the red", " fox")])[0].tokens >= 1
        True
        """
        pairs = list(pairs)
        if all(isinstance(a, str) and isinstance(b, str) for a, b in pairs):
            scores = self._engine.score_texts(pairs, _one_of("bos", bos, ("auto", "yes", "no")), experts_per_token)
        else:
            ids = [(token_array(a).tolist(), token_array(b).tolist()) for a, b in pairs]
            scores = self._engine.score_ids(ids, experts_per_token)
        return [Score(*score) for score in scores]

    def evaluate(self, data: str | Iterable[int], *, window: int = 0, stride: int = 0,
                 experts_per_token: int = 0) -> dict[str, Any]:
        """Loss and perplexity of a text, or of ids: what ``dsmoe eval --json`` prints.

        >>> model.evaluate("the red fox ran over the hills")["perplexity"] > 1
        True
        """
        if isinstance(data, str):
            return self._engine.evaluate_text(data, window, stride, experts_per_token)
        return self._engine.evaluate_ids(token_array(data), window, stride, experts_per_token)

    def _replay_array(self, replay: Any, experts_per_token: int) -> "np.ndarray":
        import numpy as np

        array = np.ascontiguousarray(replay, dtype=np.int32)
        k = experts_per_token or self.config["num_experts_per_tok"]
        if array.ndim != 3 or array.shape[1:] != (len(self.moe_layers), k):
            raise _engine.InputError(
                f"replay: expected [tokens, {len(self.moe_layers)} MoE layers, {k} experts], got {list(array.shape)}")
        return array


def _is_batch(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return False
    if hasattr(prompt, "ndim"):
        return prompt.ndim > 1
    return len(prompt) > 0 and not isinstance(prompt[0], int) and not hasattr(prompt[0], "__index__")


def _one_of(name: str, word: str, words: Sequence[str]) -> str:
    if word not in words:
        raise _engine.UsageError(f"{name}={word!r}: expected {', '.join(words[:-1])} or {words[-1]}")
    return word


def load(path: Path, *, device: str = "auto", dtype: str | None = None, weights: str | None = None, context: int = 0,
         threads: int = 0, cache: bool = False, max_batch: int = 16) -> Model:
    """Loads a model folder (config.json and safetensors), or the best or newest checkpoint of a training run.

    ``device``: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU where this build and machine have one. ``dtype``:
    ``"bf16"`` or ``"fp32"``, by default the config's. ``weights``: ``"int8"`` or ``"int4"`` quantises while loading.
    ``context``: positions of a sequence, by default the config's. ``threads``: by default one per physical core.
    ``cache=True`` keeps the packed weights in the folder and starts faster the next time. ``max_batch``: answers that
    run together.

    >>> dsmoe.load(folder, dtype="fp32").dtype
    'fp32'
    """
    _one_of("device", device, ("auto", "cpu", "cuda"))
    return Model(_engine.LoadedModel(
        fspath(path), device, "" if dtype is None else _one_of("dtype", dtype, ("bf16", "fp32")),
        "" if weights is None else _one_of("weights", weights, ("int8", "int4")), context, threads, cache, max_batch))


def quantise(source: Path, out: Path, *, to: str, head: str = "int8", threads: int = 0) -> dict[str, float]:
    """Writes a folder with int8 or int4 weights, as ``dsmoe quantize`` does; the relative error of each tensor.

    >>> errors = dsmoe.quantise(folder, scratch / "int4", to="int4")
    >>> max(errors.values()) < 0.2
    True
    """
    return dict(_engine.quantise(fspath(source), fspath(out), to, head, threads))
