"""Follow a run while it lasts: figures every so many steps, one line where data starves it, and one where its state changes."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from datapipe.core.printable import say
from datapipe.errors import OptionError
from datapipe.instruments.attach.machine import num_ranks
from datapipe.instruments.attach.ours import complain

if TYPE_CHECKING:
    from datapipe.instruments.measure.recorded import Process

Log: TypeAlias = Callable[[dict[str, float], int], None]  # takes figures by name, and the number of training steps so far

EVERY = 100  # steps of a window
FIRST_LINE = 200  # steps after which a line may be written
APART = 0.2  # of the time: a share of waiting that differs by more is another state
_IN_A_ROW = 2  # windows that must differ
_LEAST_SHARE = 0.005  # of the time: stages that are waited for less are not logged
_KEPT = 64  # figures that nobody has taken


@dataclass(frozen=True, slots=True)
class Window:
    """Training steps in a row."""

    step: int  # training steps of the process up to its end
    waiting: float  # for data, as a share of the time
    is_starved: bool  # surely, by the limits of the verdict
    stages: Mapping[str, float] = field(default_factory=dict)  # the same share by stage, the largest first; empty: unknown
    supply: float | None = None  # samples per second that the loader can make; None: unknown
    demand: float | None = None  # that the loop would take if it never waited

    def figures(self) -> dict[str, float]:
        """Return its numbers by the names under which they are logged."""
        known = {"data/waiting": self.waiting, "data/supply": self.supply, "data/demand": self.demand}
        stages = {f"data/waiting/{name}": share for name, share in self.stages.items() if share >= _LEAST_SHARE}
        return {name: value for name, value in (known | stages).items() if value is not None}

    @property
    def blame(self) -> str:
        """The stage that is waited for longest, with a colon; empty if it is unknown."""
        return f": {next(iter(self.stages))}" if self.stages else ""


def window_of(process: Process, step: int) -> Window | None:
    """Return what the steps of a recording were like; None if too few of them were steady to tell."""
    from datapipe.analysis.judge.analysis import analyze
    from datapipe.analysis.judge.fault import shares_by_kind
    from datapipe.analysis.judge.verdict import MODERATE
    from datapipe.analysis.predict.measured_workload import workload_from

    found = analyze(process)
    share, step_s, data_s = found.figures.starvation, found.figures.step_s, found.figures.data_s
    if share is None or not step_s or data_s is None or found.loader is None:
        return None
    shares = {} if found.attribution is None else shares_by_kind(found.attribution.stages)
    num, workload = found.loader.batch_size, workload_from(found)
    made_s = None if isinstance(workload, str) else float(workload.production_s.mean()) / max(1, workload.setup.num_workers)
    return Window(
        step=step,
        waiting=share.value,
        is_starved=share.low >= MODERATE and found.figures.is_settled,
        stages={kind: shares[kind] * share.value for kind in sorted(shares, key=shares.__getitem__, reverse=True)},
        supply=num / made_s if num and made_s else None,
        demand=num / (step_s - data_s) if num and step_s > data_s else None,
    )


class Lines:
    """Decides after each window whether a line is written: once that data starves the run, later that it waits longer."""

    def __init__(self, more: str) -> None:
        self._more = more  # where to read more
        self._usual: Window | None = None  # of the present state; None: not known yet
        self._differing: list[Window] = []  # in a row

    def line(self, window: Window) -> str | None:
        """Return the line to write after a window, if any."""
        if window.step < FIRST_LINE:
            return None
        if self._usual is None:
            self._usual = window
            return self._starved(window) if window.is_starved else None
        if abs(window.waiting - self._usual.waiting) <= APART:
            self._differing.clear()
            return None
        self._differing.append(window)
        if len(self._differing) < _IN_A_ROW:
            return None
        before, first = self._usual, self._differing[0]
        self._usual = window
        self._differing.clear()
        return self._slower(before, window, first) if window.waiting > before.waiting else None

    def _starved(self, window: Window) -> str:
        return f"waits for data {window.waiting:.0%} of the time{window.blame}; {self._more}"

    def _slower(self, before: Window, window: Window, first: Window) -> str:
        made = ""
        if before.supply is not None and window.supply is not None:
            made = f"; the loader makes {window.supply:,.0f} samples/s, before {before.supply:,.0f}"
        share = f"{window.waiting:.0%} of the time, before {before.waiting:.0%}{window.blame}"
        return f"waits for data {share}, since about step {first.step:,}{made}; {self._more}"


class Live:
    """Looks at a process's latest training steps every `every` of them, in a thread of its own.

    `look`: returns the recording of so many of the latest steps. `log`: is given the figures of each window, in the thread that
    trains. `more`: ends the lines. `writes`: whether there are any. `judged`: told after each window whether data starves the
    training.
    """

    def __init__(
        self,
        look: Callable[[int], Process],
        *,
        log: Log | None = None,
        every: int = EVERY,
        more: str,
        writes: bool = True,
        judged: Callable[[bool], None] = lambda is_starved: None,
    ) -> None:
        self._look, self._log, self._every = look, log, every
        self._writes, self._num_lines = writes, 0
        self._judged = judged
        self._lines = Lines(more)
        self._next = every  # steps at which the next window ends
        self._first: int | None = None  # training steps before it was opened
        self._asked = 0  # the step of the window that is to be looked at; 0: none is
        self._wakes = threading.Event()
        self._is_over = False
        self._ready: deque[Window] = deque(maxlen=_KEPT)
        self._thread: threading.Thread | None = None

    def __call__(self, num_steps: int) -> None:
        """Take note, in the training thread, of how many training steps there are to look at."""
        num_steps -= self._first or 0
        if num_steps >= self._next and not self._is_over:
            self._next = num_steps + self._every
            self._asked = num_steps
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="datapipe-live", daemon=True)
                self._thread.start()
            self._wakes.set()
        if self._ready and self._log is not None:
            self.deliver()

    def open(self, num_steps: int) -> None:
        """Look at windows, or go on. `num_steps`: training steps of the process so far; none before the first `open` counts."""
        self._is_over = False
        if self._first is None:
            self._first = num_steps

    def deliver(self) -> None:
        """Log the figures that are ready."""
        while self._ready and self._log is not None:
            window = self._ready.popleft()
            try:
                self._log(window.figures(), window.step)
            except Exception as exc:
                self._log = None
                complain("figures cannot be logged any more", exc)

    def take(self) -> Window | None:
        """Return the latest window that nobody has taken or logged; None: there is none."""
        latest = None
        with suppress(IndexError):
            while True:
                latest = self._ready.popleft()
        return latest

    def close(self) -> None:
        """End the thread, after the window that it looks at, and log what is left. `open` begins again."""
        self._is_over = True
        self._wakes.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        self.deliver()

    def _run(self) -> None:
        while True:
            self._wakes.wait()
            self._wakes.clear()
            step, self._asked = self._asked, 0
            try:
                if step:
                    self._see(step)
            except Exception as exc:
                self._is_over = True
                complain("a run cannot be followed any more", exc)
            if self._is_over:
                return

    def _see(self, step: int) -> None:
        window = window_of(self._look(self._every), step)
        if window is None:
            return
        self._ready.append(window)
        self._judged(window.is_starved)
        line = self._lines.line(window)
        if line is not None and self._writes:
            self._num_lines += 1
            rank = _rank_to_tell(self._num_lines)
            if rank is not None:
                say(f"datapipe: {rank} {line}", file=sys.stderr)


def _rank_to_tell(number: int) -> str | None:
    """Return who waits, if this process is the first of its ranks with its line of this number; None: another one has told it.

    Ranks that are starved alike would write the same line. They ask the store of their process group, which takes no part of
    them in step.
    """
    if num_ranks() == 1:
        return "the training"
    distributed: Any = sys.modules["torch.distributed"]
    with suppress(Exception):
        store = distributed.distributed_c10d._get_default_store()
        if store.add(f"datapipe/line/{number}", 1) > 1:
            return None
    return f"rank {distributed.get_rank()}"


def log_to(target: Any) -> Log:
    """Return what logs figures to a target: a function of (figures, step), or what a framework logs to.

    That is an object with `add_scalar` (TensorBoard's SummaryWriter), `log_metrics` (the module mlflow, Lightning's loggers) or
    `log` (W&B's run or module, Accelerate's Accelerator and trackers). Raises OptionError for anything else.
    """
    if hasattr(target, "add_scalar"):

        def scalars(figures: dict[str, float], step: int) -> None:
            for name, value in figures.items():
                target.add_scalar(name, value, step)

        return scalars
    if hasattr(target, "log_metrics"):
        return lambda figures, step: target.log_metrics(figures, step=step)
    if hasattr(target, "log"):
        if str(getattr(target, "__name__", type(target).__module__)).partition(".")[0] == "wandb":
            # Its steps may only grow and are the script's: figures join what the script logs next.
            return lambda figures, step: target.log(figures, commit=False)
        return lambda figures, step: target.log(figures, step=step)
    if callable(target):
        checked: Log = target
        return checked
    raise OptionError(f"log={target!r:.60}: pass a function of (figures, step), or an object with add_scalar, log_metrics or log")
