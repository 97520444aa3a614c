"""Show progress to people on standard error: a bar on a terminal; elsewhere a line after three seconds, then every ten."""

from __future__ import annotations

import sys
import time
from typing import Any, Self, TextIO

from datapipe.core.printable import counted
from datapipe.core.waiting import SILENT_S

_LINE_EVERY_S = 10.0
_ENOUGH = 0.01  # share that is done before the time left is told: the time to start counts for all before that
_PREFIXES = ("", "k", "M", "G", "T")


class Progress:
    """A context manager that shows rate, time left and errors so far.

    `total`: in `unit`s, None if unknown. `unit` "B" is shown with SI prefixes. Not thread-safe.
    """

    def __init__(self, total: int | None, unit: str, label: str, *, stream: TextIO | None = None) -> None:
        self._total, self._unit, self._label = total, unit, label
        self._stream = sys.stderr if stream is None else stream
        self._done = self._errors = 0
        self._bar: Any = None
        self._started = time.monotonic()
        self._next_line = self._started + SILENT_S

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from tqdm import tqdm

            scale = self._unit == "B"
            unit = self._unit if scale else f" {self._unit}"
            self._bar = tqdm(
                total=self._total,
                unit=unit,
                unit_scale=scale,
                desc=self._label,
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
            )
        return self

    def __exit__(self, *unused: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, num: int, *, errors: int = 0) -> None:
        """Record that `num` more units are done, and `errors` more have failed."""
        self._done += num
        self._errors += errors
        if self._bar is not None:
            self._bar.update(num)
            if errors:
                self._bar.set_postfix(errors=self._errors)
            return
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            print(self.line(now - self._started), file=self._stream, flush=True)

    def line(self, elapsed_s: float) -> str:
        """Return the state as a line of text."""
        rate = self._done / max(elapsed_s, 1e-9)
        if self._total:
            share = f" ({100 * self._done / self._total:.0f}%)"
            text = f"{self._label}: {self._number(self._done)} of {self._amount(self._total)}{share}, {self._amount(rate)}/s"
        else:
            text = f"{self._label}: {self._amount(self._done)}, {self._amount(rate)}/s"
        if self._total and self._done >= self._total * _ENOUGH:
            text += f", {max(0, self._total - self._done) / rate:.0f} s left"
        return text + (f", {counted(self._errors, 'error')}" if self._errors else "")

    def _number(self, value: float) -> str:
        return f"{value:.0f}" if self._unit != "B" else self._amount(value)

    def _amount(self, value: float) -> str:
        if self._unit != "B":
            return f"{value:.0f} {self._unit}"
        power = 0
        while value >= 1000 and power < len(_PREFIXES) - 1:
            value /= 1000
            power += 1
        return f"{value:.3g} {_PREFIXES[power]}B"
