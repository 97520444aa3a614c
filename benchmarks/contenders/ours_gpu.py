"""datapipe's DataLoader for a GPU, with DALI's settings as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from benchmarks.contenders import ours
from benchmarks.task import Task
from datapipe import Dali


def make(
    task: Task, *, device: str = "cuda", backend: str = "auto", dali: Mapping[str, Any] | None = None, part: str = "shards"
) -> Iterator[Sized]:
    """`dali`: arguments of `Dali`, in place of `backend`; under "auto" the loader measures and chooses first."""
    chosen: Any = backend if dali is None else Dali(**dali)
    return ours.make(task, part=part, device=device, backend=chosen)
