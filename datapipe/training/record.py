"""Record a run: run.json (options, environment, epochs), metrics.jsonl (a line per interval and epoch), and the screen."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.environment import version_of
from datapipe.core.printable import say
from datapipe.core.regular_files import read_bytes
from datapipe.errors import StorageError
from datapipe.kernel.accelerators import device_name
from datapipe.training.checkpoint import Place
from datapipe.training.evaluation import Best
from datapipe.training.options import TrainOptions

_LINE_EVERY_S = 10.0
RECORD, METRICS = "run.json", "metrics.jsonl"
_PACKAGES = ("gpu-datapipe", "torch", "torchvision", "timm", "numpy", "pillow", "nvidia-nvimgcodec-cu12", "nvidia-dali-cuda120")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Mean figures over the steps since the previous line, over all ranks."""

    step: int  # weight updates so far
    epoch: int
    loss: float
    accuracy: float | None
    lr: float  # at the last of these steps
    images_per_s: float
    starvation: float | None  # of this pass so far, on rank 0


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """The figures of one epoch, over all ranks. None: not measured."""

    step: int
    epoch: int
    train_loss: float
    train_accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    val_samples: int | None
    images_per_s: float | None  # for the part that this process trained, without validation
    starvation: float | None
    seconds: float  # for the same part, with validation


class RunLogger:
    """Records a run from `place` on: on the screen, in metrics.jsonl and in run.json.

    Lines of metrics are flushed at once; those of an earlier process after `place` are dropped, so that no step occurs twice.
    run.json is rewritten atomically whenever something is added. On ranks other than 0 (`leads` False) it only keeps the epochs.
    Raises StorageError if a file cannot be written.
    """

    def __init__(
        self,
        options: TrainOptions,
        *,
        place: Place,
        num_steps: int,
        facts: Mapping[str, Any],
        leads: bool,
        on_step: Callable[[StepMetrics], None] | None,
    ) -> None:
        self._is_silent = not leads or options.display == "none"
        self._num_steps, self._num_epochs = num_steps, options.epochs
        self._last_line_s = time.monotonic()
        self._on_step = on_step if leads else None
        self._out = Path(options.out) if options.out is not None and leads else None
        self._file: TextIO | None = None
        self._facts: dict[str, Any] = {}
        self.epochs: list[EpochMetrics] = []  # those of earlier processes only if the run is recorded in `out`
        if self._out is not None:
            try:
                self._out.mkdir(parents=True, exist_ok=True)
                self._file = self._open_metrics(self._out / METRICS, place)
            except OSError as exc:
                raise StorageError(f"{self._out}: cannot be written ({exc}); choose another out") from exc
            self._facts = _with_history(self._out / RECORD, facts, resumed_at=place.step or None)
        self.write("running", Best())

    def _open_metrics(self, path: Path, place: Place) -> TextIO:
        kept = [line for line in _lines(path) if _is_before(line, place)]
        with atomic_writer(path) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        names = [field.name for field in dataclasses.fields(EpochMetrics)]
        self.epochs = [EpochMetrics(**{name: line.get(name) for name in names}) for line in kept if "train_loss" in line]  # type: ignore[arg-type]
        return path.open("a", encoding="utf-8")

    def step(self, metrics: StepMetrics) -> None:
        self._append(metrics)
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now
            place = f"epoch {metrics.epoch + 1}/{self._num_epochs}, step {metrics.step} of {self._num_steps}"
            starved = "" if metrics.starvation is None else f", starved {metrics.starvation:.0%}"
            self.say(f"{place}: loss {metrics.loss:.3f}, {metrics.images_per_s:,.0f} images/s{starved}")
        if self._on_step is not None:
            self._on_step(metrics)

    def epoch(self, metrics: EpochMetrics, best: Best) -> None:
        self._append(metrics)
        self.epochs.append(metrics)
        figures = [
            ("train loss {:.3f}", metrics.train_loss),
            ("accuracy {:.1%}", metrics.train_accuracy),
            ("val loss {:.3f}", metrics.val_loss),
            ("accuracy {:.1%}", metrics.val_accuracy),
            ("{:,.0f} images/s", metrics.images_per_s),
            ("starved {:.0%}", metrics.starvation),
        ]
        shown = "  ".join(text.format(value) for text, value in figures if value is not None)
        self.say(f"epoch {metrics.epoch + 1}/{self._num_epochs}  {shown}  {metrics.seconds:.1f} s")
        self.write("running", best)

    def say(self, text: str) -> None:
        """Print a line on standard error."""
        if not self._is_silent:
            say(text, file=sys.stderr)

    def write(self, status: str, best: Best) -> None:
        """Update run.json; `status` is running, finished, stopped early, interrupted, diverged or failed."""
        if self._out is not None:
            rows = [dataclasses.asdict(epoch) for epoch in self.epochs]
            write_json(self._out / RECORD, {**self._facts, "status": status, "epochs": rows, "best": dataclasses.asdict(best)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, metrics: StepMetrics | EpochMetrics) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(dataclasses.asdict(metrics)) + "\n")
            self._file.flush()
        except OSError as exc:
            raise StorageError(f"{self._file.name}: cannot be written ({exc}); is the disk full?") from exc


def _with_history(path: Path, facts: Mapping[str, Any], *, resumed_at: int | None) -> dict[str, Any]:
    """Return `facts` with the start of the run and the steps at which it was resumed, from the run.json of earlier processes."""
    before = _json(path) if resumed_at is not None else {}
    resumptions = [*before.get("resumed_at", []), *([] if resumed_at is None else [resumed_at])]
    started = before.get("started") or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"started": started, "resumed_at": resumptions, **facts}


def environment(device: torch.device) -> dict[str, Any]:
    """Return what a run depends on besides its options: the command, versions, the device."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
        "device": str(device),
        "device_name": device_name(device),
        "torch_threads": torch.get_num_threads(),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an earlier run, without one that a kill truncated."""
    lines = []
    for text in read_bytes(path).decode(errors="replace").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line and "epoch" in line:
            lines.append(line)
    return lines


def _is_before(line: Mapping[str, Any], place: Place) -> bool:
    return bool(line["epoch"] < place.epoch if "train_loss" in line else line["step"] <= place.step)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
