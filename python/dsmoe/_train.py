"""Training: a run to its end, or step by step."""

from __future__ import annotations

import contextlib
import json
import os
from os import PathLike, fspath
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union

from . import _engine
from ._arrays import token_array
from ._progress import Progress
from ._run import Run

Path = Union[str, PathLike]
# In the run's folder. With a config.json of its own a run would look like a model.
_CONFIG, _TEXTS = "model-config.json", "texts.jsonl"


class Trainer:
    """A training run, one step at a time: the steps, the files and the bits of ``dsmoe train``.

    ``config`` is a config.json (or a dict), ``init`` a model to go on from; ``out`` is the run's folder. ``data`` is

    - files or folders, as ``--data`` takes them: one path or a list;
    - texts: any iterable of ``str`` that is no path. They are written to ``out/texts.jsonl`` first, so that the run
      can be resumed without them;
    - token ids: a list of one-dimensional integer arrays, one a document. They are taken as they are.

    Every other option is the command's flag with underscores: ``steps=500``, ``batch=32``, ``seq=256``, ``lr=1e-3``,
    ``seed=1``, ``keep_best=True``. ``resume=True`` goes on from the newest checkpoint of ``out``.

    >>> trainer = dsmoe.Trainer(config, data=[corpus], out=scratch / "run", steps=2, batch=2, seq=16)
    >>> [metrics["step"] for metrics in trainer]
    [1, 2]
    >>> trainer.finished
    True
    """

    def __init__(self, config: Path | Mapping[str, Any] | None = None, data: Any = None, out: Path | None = None, *,
                 init: Path | None = None, resume: bool = False, **options: Any):
        if out is None:
            raise _engine.UsageError("out: expected the folder of the run, got nothing")
        was_there = os.path.exists(out)
        try:
            self._job = self._begin(config, data, out, init, resume, options)
        except BaseException:
            if not was_there:
                _take_back(out)
            raise

    @staticmethod
    def _begin(config, data, out, init, resume, options) -> "_engine.Trainer":
        words = [f"--out={fspath(out)}"]
        if resume:
            words.append("--resume")
        if config is not None:
            words.append(f"--config={_config_path(config, out)}")
        if init is not None:
            words.append(f"--init={fspath(init)}")
        paths, documents = _data_of(data, out)
        words += [f"--data={path}" for path in paths]
        for name, value in options.items():
            words += _words(name, value)
        return _engine.Trainer(words, documents)

    out = property(lambda self: self._job.out, doc="The run's folder.")
    total_steps = property(lambda self: self._job.total_steps)
    steps_done = property(lambda self: self._job.steps_done)
    finished = property(lambda self: self._job.finished, doc="Whether the last step is done.")
    checkpoint = property(lambda self: self._job.checkpoint, doc='The newest checkpoint; "" before the first.')

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The metrics of each step that is left; ``load`` is an array ``[MoE layers, experts]`` of counts."""
        while (metrics := self.step()) is not None:
            yield metrics

    def step(self) -> dict[str, Any] | None:
        """One step, with the validation and checkpoint that are due behind it. None where no step is left."""
        return self._job.advance()

    def evaluate(self) -> dict[str, Any]:
        """Losses on the validation data, now. Changes no weight."""
        return self._job.evaluate()

    def save(self) -> str:
        """A checkpoint, now: its folder."""
        return self._job.save()

    def close(self) -> None:
        """Lets go of memory and of the run's lock. Where steps are left, ``resume=True`` goes on from the newest
        checkpoint."""
        self._job.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def train(config: Path | Mapping[str, Any] | None = None, data: Any = None, out: Path | None = None, *,
          init: Path | None = None, resume: bool = False, progress: bool = True,
          on_step: Callable[[dict[str, Any]], None] | None = None, **options: Any) -> Run:
    """Trains a run to its end and gives it as :class:`Run`. Arguments are those of :class:`Trainer`.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; ``resume=True`` goes on, with the bits of a run that was
    never stopped.

    >>> run = dsmoe.train(config, data=["one fox", "two foxes", "three red foxes"] * 20, out=scratch / "run",
    ...                   steps=2, batch=2, seq=16, progress=False)
    >>> len(run.lines)
    2
    """
    with Trainer(config, data, out, init=init, resume=resume, **options) as trainer:
        bar = Progress("train", trainer.total_steps, trainer.steps_done, enabled=progress)
        valid = ""
        try:
            for metrics in trainer:
                if "validation_loss" in metrics:
                    valid = f", valid {metrics['validation_loss']:.4f}"
                bar.update(metrics["step"], f"loss {metrics['loss']:.4f}{valid}")
                if on_step is not None:
                    on_step(metrics)
        except KeyboardInterrupt:
            trainer.save()
            raise
        finally:
            bar.finish()
    return Run(fspath(out))


def _words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, (list, tuple)):
        return [f"{flag}={fspath(one) if isinstance(one, PathLike) else one}" for one in value]
    return [f"{flag}={fspath(value) if isinstance(value, PathLike) else value}"]


def _config_path(config: Path | Mapping[str, Any], out: Path) -> str:
    if not isinstance(config, Mapping):
        return fspath(config)
    os.makedirs(out, exist_ok=True)
    path = os.path.join(fspath(out), _CONFIG)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    return path


def _take_back(out: Path) -> None:
    """What was written before a start that failed."""
    for name in (_CONFIG, _TEXTS):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(fspath(out), name))
    with contextlib.suppress(OSError):
        os.rmdir(out)


def _data_of(data: Any, out: Path) -> tuple[list[str], list | None]:
    if data is None:
        return [], None
    if isinstance(data, (str, PathLike)):
        return [fspath(data)], None
    items = data if isinstance(data, Sequence) or hasattr(data, "ndim") else iter(data)
    if isinstance(items, Sequence) and len(items) > 0 and all(isinstance(one, (str, PathLike)) for one in items):
        # Paths where all of them are: a name of a file, perhaps with its weight behind a colon.
        if all(isinstance(one, PathLike) or os.path.exists(one) or os.path.exists(one.rpartition(":")[0]) for one in items):
            return [fspath(one) for one in items], None
        return [_write_texts(items, out)], None
    if isinstance(items, Sequence) or hasattr(items, "ndim"):
        documents = [items] if getattr(items, "ndim", 2) == 1 else list(items)
        return [], [token_array(one) for one in documents]
    return [_write_texts(items, out)], None


def _write_texts(texts: Iterable[str], out: Path) -> str:
    os.makedirs(out, exist_ok=True)
    path = os.path.join(fspath(out), _TEXTS)
    with open(path + ".new", "w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise _engine.InputError(f"data: item {number} is {type(text).__name__}; expected texts, or a list of "
                                         "integer arrays")
            file.write(json.dumps({"text": text}) + "\n")
    os.replace(path + ".new", path)
    return path
