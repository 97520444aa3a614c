"""Worker processes in tests: on from the first batch, and what they are asked."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from datapipe.kernel.processes import WorkerProcess, launcher

_READY_S = 60


def require_processes(imports: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loaders have processes from one worker on, once they can be forked at once. `imports`: of a kind's workers."""
    begun = launcher(imports)
    assert begun is not None
    assert begun.wait(_READY_S)
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")


def noted_requests(imports: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the requests that processes are asked, for a fixture."""
    require_processes(imports, monkeypatch)
    asked: list[Any] = []
    ask = WorkerProcess.ask

    def noted(worker: WorkerProcess, request: Any) -> Any:
        asked.append(request)
        return ask(worker, request)

    monkeypatch.setattr(WorkerProcess, "ask", noted)
    yield asked
    gc.collect()
