"""The written record of a run: run.json (options, environment, epochs) and metrics.jsonl (a line per interval and epoch)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.errors import StorageError
from datapipe.core.installed import version_of
from datapipe.core.regular_files import read_bytes
from datapipe.training.checkpoint import Place

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


class MetricsLog:
    """JSON lines, each flushed at once. Resuming at `place` drops the lines after it, so that no step occurs twice."""

    def __init__(self, path: Path, place: Place) -> None:
        kept = [line for line in _lines(path) if _is_before(line, place)]
        with atomic_writer(path) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        self.epochs = [_epoch(line) for line in kept if "train_loss" in line]
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: StepMetrics | EpochMetrics) -> None:
        """Append one line. Raises StorageError."""
        try:
            self._file.write(json.dumps(dataclasses.asdict(metrics)) + "\n")
            self._file.flush()
        except OSError as exc:
            raise StorageError(f"{self._file.name}: cannot be written ({exc}); is the disk full?") from exc
        if isinstance(metrics, EpochMetrics):
            self.epochs.append(metrics)

    def close(self) -> None:
        self._file.close()


class RunRecord:
    """The file `run.json`, rewritten atomically whenever something is added."""

    def __init__(self, path: Path, facts: Mapping[str, Any], *, resumed_at: int | None) -> None:
        self._path = path
        before = _json(path) if resumed_at is not None else {}
        resumptions = [*before.get("resumed_at", []), *([] if resumed_at is None else [resumed_at])]
        started = before.get("started") or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._facts = {"started": started, "resumed_at": resumptions, **facts}

    def write(self, status: str, epochs: list[EpochMetrics], best: Mapping[str, Any]) -> None:
        """Write the file; `status` is running, finished, stopped early, interrupted, diverged or failed."""
        rows = [dataclasses.asdict(epoch) for epoch in epochs]
        write_json(self._path, {**self._facts, "status": status, "epochs": rows, "best": dict(best)})


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
