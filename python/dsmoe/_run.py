"""What a training run wrote: metrics, loads of experts, checkpoints."""

from __future__ import annotations

import json
import os
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from . import _engine

if TYPE_CHECKING:
    import numpy as np


class Run:
    """A folder of ``dsmoe train``, read when asked. Made by :func:`read_run`; also what :func:`train` gives."""

    def __init__(self, path: Union[str, PathLike]):
        self.path = Path(fspath(path))
        if not (self.path / "metrics.jsonl").exists() and not (self.path / "run.json").exists():
            raise _engine.InputError(f"{self.path}: no metrics.jsonl in it; expected a run of dsmoe train")

    def __repr__(self) -> str:
        return f"<dsmoe.Run {self.path}: {len(self.lines)} steps>"

    @cached_property
    def record(self) -> dict[str, Any]:
        """run.json: the options, the recipe, the data and every session."""
        file = self.path / "run.json"
        return json.loads(file.read_text()) if file.exists() else {}

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """metrics.jsonl, one dict a step. A line that is being written is left out."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        lines = []
        for number, line in enumerate(file.read_text().splitlines(keepends=True), 1):
            if not line.endswith("\n"):
                break
            try:
                lines.append(json.loads(line))
            except ValueError as error:
                raise _engine.InputError(f"{file}:{number}: expected one JSON object per line: {error}") from None
        return lines

    @cached_property
    def metrics(self) -> "dict[str, np.ndarray]":
        """Every number of a step as an array over steps; NaN where a step has none."""
        import numpy as np

        names: dict[str, None] = {}
        for line in self.lines:
            names.update(dict.fromkeys(name for name, value in line.items() if isinstance(value, (int, float))))
        arrays = {name: np.array([line.get(name, np.nan) for line in self.lines], dtype=np.float64) for name in names}
        if "step" in arrays:
            arrays["step"] = arrays["step"].astype(np.int64)
        return arrays

    @cached_property
    def loads(self) -> "dict[int, np.ndarray]":
        """Step -> load of every expert, ``[MoE layers, experts]``, 1 being a fair share; of the steps that hold it."""
        import numpy as np

        return {line["step"]: np.array([layer["load"] for layer in line["layers"]])
                for line in self.lines if line.get("layers") and all("load" in layer for layer in line["layers"])}

    @property
    def checkpoints(self) -> list[Path]:
        """Folders of models, the oldest first."""
        return sorted(folder for folder in self.path.glob("step-*") if (folder / "config.json").exists())

    def to_pandas(self):
        """``metrics`` as a DataFrame, indexed by step. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.metrics).set_index("step")

    def load(self, **options: Any):
        """The best checkpoint where the run keeps one, else the newest, as a :class:`Model`."""
        from ._model import load

        return load(self.path, **options)


def read_run(path: Union[str, PathLike]) -> Run:
    """What lies in a run's folder, also while it is being trained.

    >>> run = dsmoe.read_run(finished_run)
    >>> run.metrics["loss"].shape == run.metrics["step"].shape
    True
    """
    if not os.path.isdir(path):
        raise _engine.IoError(f"{fspath(path)}: no such folder; expected a run of dsmoe train")
    return Run(path)
