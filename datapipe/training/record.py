"""Record a run: run.json (options, environment, epochs), metrics.jsonl (a line per interval and epoch), and the screen."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.environment import version_of
from datapipe.core.errors import StorageError
from datapipe.core.regular_files import read_bytes
from datapipe.training.checkpoint import Place
from datapipe.training.evaluation import Best
from datapipe.training.options import TrainOptions
from datapipe.training.progress import EpochMetrics, RunDisplay, StepMetrics

RECORD, METRICS = "run.json", "metrics.jsonl"
_PACKAGES = ("gpu-datapipe", "torch", "torchvision", "timm", "numpy", "pillow", "nvidia-nvimgcodec-cu12", "nvidia-dali-cuda120")


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
        self._display = RunDisplay(kind, num_steps=num_steps, num_epochs=options.epochs, first_step=place.step)
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
        self.epochs = [_epoch(line) for line in kept if "train_loss" in line]
        return path.open("a", encoding="utf-8")

    def say(self, text: str) -> None:
        self._display.say(text)

    def advance(self) -> None:
        self._display.advance()

    def step(self, metrics: StepMetrics) -> None:
        self._append(metrics)
        self._display.show(metrics)
        if self._on_step is not None:
            self._on_step(metrics)

    def epoch(self, metrics: EpochMetrics, best: Best) -> None:
        self._append(metrics)
        self.epochs.append(metrics)
        self._display.show_epoch(metrics)
        self.write("running", best)

    def write(self, status: str, best: Best) -> None:
        """Update run.json; `status` is running, finished, stopped early, interrupted, diverged or failed."""
        if self._out is not None:
            rows = [dataclasses.asdict(epoch) for epoch in self.epochs]
            write_json(self._out / RECORD, {**self._facts, "status": status, "epochs": rows, "best": dataclasses.asdict(best)})

    def close(self) -> None:
        self._display.close()
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
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
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


def _epoch(line: Mapping[str, Any]) -> EpochMetrics:
    return EpochMetrics(**{field.name: line.get(field.name) for field in dataclasses.fields(EpochMetrics)})  # type: ignore[arg-type]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
