"""How far a run is: a line in a terminal, a bar in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self, label: str, total: int, done: int = 0, enabled: bool = True):
        self._label, self._total, self._first = label, total, done
        self._start = self._shown = time.monotonic()
        self._display = None
        self._last = ""
        in_notebook = "ipykernel" in sys.modules
        self._on_terminal = enabled and not in_notebook and sys.stderr.isatty()
        if enabled and in_notebook:
            from IPython.display import HTML, display

            self._html = HTML
            self._display = display(HTML(""), display_id=True)

    def update(self, done: int, note: str) -> None:
        now = time.monotonic()
        if now - self._shown < 0.1 and done < self._total:
            return
        self._shown = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        left = (self._total - done) / rate if rate > 0 else 0
        self._last = f"{self._label} {done}/{self._total}  {note}  {rate:.2f} steps/s  {int(left) // 60}:{int(left) % 60:02} left"
        if self._display is not None:
            self._display.update(self._html(
                f'<progress value="{done}" max="{self._total}" style="width:20em"></progress> <code>{self._last}</code>'))
        elif self._on_terminal:
            sys.stderr.write("\r\033[K" + self._last)
            sys.stderr.flush()

    def finish(self) -> None:
        if self._on_terminal and self._last:
            sys.stderr.write("\n")
