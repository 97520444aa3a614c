"""What a stage found, on disk after every measurement: a run that is cut off keeps what it had."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import command_of, describe_environment
from benchmarks.gpu.settings import Check
from datapipe.core import atomic


class Report:
    """One stage's result file, `gpu-STAGE.json`. For one thread."""

    def __init__(self, stage: str, check: Check) -> None:
        self.path = check.out / f"gpu-{stage}.json"
        environment = describe_environment()
        if check.commit:
            environment["commit"] = check.commit
        if not check.is_dry and torch.cuda.is_available():
            environment["gpu"] = torch.cuda.get_device_name()
        self._value: dict[str, Any] = {
            "name": f"gpu-{stage}",
            "command": command_of("benchmarks.gpu"),
            "environment": environment,
            "is_dry_run": check.is_dry,
            "is_finished": False,
            "measurements": [],
            "skipped": [],
            "failures": [],
        }
        self._started = time.monotonic()
        check.out.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def measurements(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._value["measurements"]
        return found

    @property
    def num_failures(self) -> int:
        return len(self._value["failures"])

    def note(self, **values: Any) -> None:
        """Facts about the whole stage."""
        self._value.update(values)
        self._write()

    def add(self, what: str, found: dict[str, Any]) -> None:
        """One measurement."""
        self.measurements.append({"what": what, **found})
        self._write()
        figures = ", ".join(f"{name} {_short(value)}" for name, value in found.items() if isinstance(value, (int, float, str)))
        print(f"[{time.monotonic() - self._started:5.0f} s] {what}: {figures[:220]}", flush=True)

    def skip(self, what: str, why: str) -> None:
        """Something that was not done. Never silent: the summary names it."""
        self._value["skipped"].append({"what": what, "why": why})
        self._write()
        print(f"[{time.monotonic() - self._started:5.0f} s] {what}: skipped, {why}", flush=True)

    def fail(self, what: str, why: str) -> None:
        """Something that was tried, or held to a bound, and did not come out."""
        self._value["failures"].append({"what": what, "why": why[-3000:]})
        self._write()
        print(f"[{time.monotonic() - self._started:5.0f} s] {what}: FAILED, {why[-600:]}", flush=True)

    def expect(self, what: str, holds: bool, why: str) -> None:
        """Fail unless it holds."""
        if not holds:
            self.fail(what, why)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """An exception within becomes a failure, and the stage continues."""
        try:
            yield
        except (Exception, SystemExit):  # benchmarks raise SystemExit if they cannot continue
            self.fail(what, traceback.format_exc())

    def finish(self) -> None:
        self.note(is_finished=True, wall_s=round(time.monotonic() - self._started, 1))

    def _write(self) -> None:
        atomic.write_json(self.path, self._value)


def read_reports(out: Path) -> dict[str, dict[str, Any]]:
    """stage -> what it wrote, for the stages that wrote anything."""
    return {path.stem.removeprefix("gpu-"): json.loads(path.read_text()) for path in sorted(out.glob("gpu-*.json"))}


def _short(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
