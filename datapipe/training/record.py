"""Record a run: run.json (options, environment, epochs), metrics.jsonl (a line per interval and epoch), and the screen."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from datapipe.backends.accelerators import device_name
from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.environment import version_of
from datapipe.core.errors import StorageError
from datapipe.core.printable import printable
from datapipe.core.regular_files import read_bytes
from datapipe.core.waiting import reported_wait
from datapipe.training.checkpoint import Place
from datapipe.training.evaluation import Best
from datapipe.training.options import Display, TrainOptions

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
        kind = options.display if leads else "none"
        self.display = RunDisplay(kind, num_steps=num_steps, num_epochs=options.epochs, first_step=place.step)
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
        self.display.show(metrics)
        if self._on_step is not None:
            self._on_step(metrics)

    def epoch(self, metrics: EpochMetrics, best: Best) -> None:
        self._append(metrics)
        self.epochs.append(metrics)
        self.display.show_epoch(metrics)
        self.write("running", best)

    def write(self, status: str, best: Best) -> None:
        """Update run.json; `status` is running, finished, stopped early, interrupted, diverged or failed."""
        if self._out is not None:
            rows = [dataclasses.asdict(epoch) for epoch in self.epochs]
            write_json(self._out / RECORD, {**self._facts, "status": status, "epochs": rows, "best": dataclasses.asdict(best)})

    def close(self) -> None:
        self.display.close()
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
    """Return what a run depends on besides its options: command, versions, device, the commit of the current directory."""
    gpu = None if device.type == "cpu" else device_name(device)
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
        "cuda": torch.version.cuda,
        "device": str(device),
        "gpu": gpu,
        "torch_threads": torch.get_num_threads(),
        "git": git_commit(Path.cwd()),
    }


def git_commit(directory: Path) -> dict[str, Any] | None:
    """Return the commit checked out in `directory` and whether tracked files differ from it; None outside of git."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return None if not commit or changes is None else {"commit": commit, "changed": bool(changes)}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        with reported_wait(f"git {arguments[0]}", f"it looks at {directory}, for 10 s at most"):
            done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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


# -- the screen ----------------------------------------------------------------------------------------


class RunDisplay:
    """A display of a run of `num_steps` steps from `first_step` on. Not thread-safe; close it at the end."""

    def __init__(self, kind: Display, *, num_steps: int, num_epochs: int, first_step: int, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._num_steps, self._num_epochs, self._first_step = num_steps, num_epochs, first_step
        self._is_silent = kind == "none"
        self._bar: Any = None
        self._started_s = self._last_line_s = time.monotonic()
        if kind == "bar" or (kind == "auto" and self._stream.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(
                total=num_steps,
                initial=first_step,
                unit=" step",
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
                smoothing=0.1,
            )

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update(1)

    def show(self, metrics: StepMetrics) -> None:
        """Show the state after an interval."""
        if self._bar is not None:
            self._bar.set_description(f"epoch {metrics.epoch + 1}/{self._num_epochs}", refresh=False)
            self._bar.set_postfix_str(_state(metrics))
            return
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now
            done = metrics.step - self._first_step
            left_s = (now - self._started_s) / max(1, done) * (self._num_steps - metrics.step)
            place = f"epoch {metrics.epoch + 1}/{self._num_epochs}, step {metrics.step} of {self._num_steps}"
            self.say(f"{place}: {_state(metrics)}, {left_s:.0f} s left")

    def show_epoch(self, metrics: EpochMetrics) -> None:
        """Print a line for a finished epoch."""
        parts = [f"train loss {metrics.train_loss:.3f}"]
        if metrics.train_accuracy is not None:
            parts.append(f"accuracy {metrics.train_accuracy:.1%}")
        if metrics.val_loss is not None:
            parts.append(f"val loss {metrics.val_loss:.3f}")
        if metrics.val_accuracy is not None:
            parts.append(f"accuracy {metrics.val_accuracy:.1%}")
        if metrics.images_per_s is not None:
            parts.append(f"{metrics.images_per_s:,.0f} images/s")
        if metrics.starvation is not None:
            parts.append(f"starved {metrics.starvation:.0%}")
        self.say(f"epoch {metrics.epoch + 1}/{self._num_epochs}  {'  '.join(parts)}  {metrics.seconds:.1f} s")

    def say(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self._is_silent:
            return
        text = printable(text)
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _state(metrics: StepMetrics) -> str:
    starved = "" if metrics.starvation is None else f", starved {metrics.starvation:.0%}"
    return f"loss {metrics.loss:.3f}, {metrics.images_per_s:,.0f} images/s{starved}"
