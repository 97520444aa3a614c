"""Read torch's own times of the iterations of DistributedDataParallel, once in a while, in the training thread."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import deque
from typing import Any

from datapipe.instruments.attach.machine import num_ranks
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.measure.observed import Exchange

_KEPT = 4096  # iterations
_TORCHS_OWN = 100  # torch times one iteration of so many
_MOST_SEARCHES = 4


class ExchangeReader:
    """Finds the process's DistributedDataParallel modules and keeps the times of the iterations that torch has timed.

    To be called at times, in the thread that trains, with the number of training steps. torch times an iteration of 100, which
    costs nothing else; `every`: have it time one of so many instead.
    """

    def __init__(self, *, every: int | None = None) -> None:
        self._every = every
        self._modules: list[weakref.ref[Any]] = []
        self._latest: dict[int, int] = {}  # iteration read last, by module
        self._found: deque[Exchange] = deque(maxlen=_KEPT)
        self._num_searches = 0
        self._search_at = self._read_at = 0  # training steps
        self._has_failed = False

    def __call__(self, num_steps: int) -> None:
        if self._has_failed or num_ranks() == 1:
            return
        try:
            modules = [(number, module) for number, one in enumerate(self._modules) if (module := one()) is not None]
            if not modules and num_steps >= self._search_at and self._num_searches < _MOST_SEARCHES:
                self._num_searches += 1
                self._search_at = 4 * num_steps
                modules = self._search()
            if num_steps >= self._read_at:
                self._read_at = num_steps + (self._every or _TORCHS_OWN) // 2
                for number, module in modules:
                    self._read(number, module)
        except Exception as exc:
            self._has_failed = True
            complain("how long ranks wait for each other is not measured", exc)

    def latest(self) -> tuple[Exchange, ...]:
        """Return the latest iterations. May be called from any thread."""
        return tuple(self._found.copy())

    def _search(self) -> list[tuple[int, Any]]:
        parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is None:
            return []
        kind = parallel.DistributedDataParallel
        # `isinstance` would ask the objects for their class, which may be code of theirs.
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
        first = len(self._modules)
        self._modules += map(weakref.ref, modules)
        if self._every is not None:
            for module in modules:
                module._set_ddp_runtime_logging_sample_rate(self._every)
        return list(enumerate(modules, first))

    def _read(self, number: int, module: Any) -> None:
        data = module._get_ddp_logging_data()
        iteration = int(data.get("iteration", 0))
        forward_ns, backward_ns = data.get("forward_compute_time", 0), data.get("backward_compute_time", 0)
        if iteration == self._latest.get(number) or forward_ns <= 0 or backward_ns <= 0:
            return
        self._latest[number] = iteration
        wait_ns = data.get("backward_comm_time", 0) - data.get("backward_compute_comm_overlap_time", 0)
        self._found.append(
            Exchange(
                module=number,
                iteration=iteration,
                read_ns=time.perf_counter_ns(),
                forward_s=forward_ns * 1e-9,
                backward_s=backward_ns * 1e-9,
                wait_s=max(0, wait_ns) * 1e-9,
                syncs_in_forward=bool(data.get("has_sync_bn")) or (bool(data.get("broadcast_buffers")) and _has_buffers(module)),
            )
        )


def _has_buffers(module: Any) -> bool:
    return next(iter(module.buffers()), None) is not None
