"""Run shard jobs on this machine: in this process, or in its own workers.

A worker is a fresh interpreter (`converters.engines.worker`) that reads jobs as JSON lines and answers in JSON lines. It imports
neither the caller's main module nor torch, starts in about 0.2 s, works when the caller is a notebook or a script without a
main guard, and dies with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.planning.plan import PLAN_NAME, PlannedShard, open_samples, read_plan
from converters.shards import OnSamples, OnShard, ShardJob, build_shard, error_from_json, job_from_json, job_to_json
from converters.writers import TARGETS
from datapipe.core.environment import importing_as_here
from datapipe.errors import StorageError


def run_locally(
    job: ShardJob, shards: Sequence[PlannedShard], *, num_workers: int, on_samples: OnSamples, on_shard: OnShard
) -> None:
    """Build `shards`. Raises what the first failing one raised; the others are stopped.

    `on_samples`, and `on_shard` for each one that is complete, are called in the caller's thread, and may raise to stop
    everything. No worker gets its next shard before `on_shard` has returned for the last one.
    """
    num_workers = min(num_workers, len(shards))
    if num_workers <= 1:
        build_shards(job, shards, on_samples=on_samples, on_shard=on_shard)
        return
    workers: list[_Worker] = []
    try:
        workers.extend(_start(job) for _ in range(num_workers))
        _dispatch(workers, deque(shards), on_samples, on_shard)
    finally:
        for worker in workers:
            worker.stop()


def build_shards(job: ShardJob, shards: Sequence[PlannedShard], *, on_samples: OnSamples, on_shard: OnShard) -> None:
    """Build `shards` one after the other in this process."""
    target = TARGETS[job.target]
    with open_samples(job.building / PLAN_NAME) as samples:
        for shard in shards:
            with contextlib.closing(build_shard(job, target, shard, samples)) as progress:
                for num_samples, num_bad in progress:
                    on_samples(num_samples, num_bad)
            on_shard(shard)


def _dispatch(workers: list[_Worker], waiting: deque[PlannedShard], on_samples: OnSamples, on_shard: OnShard) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.answers, selectors.EVENT_READ, worker)
            worker.give(waiting.popleft())
        num_busy = len(workers)
        while num_busy:
            for key, _ in selector.select():
                worker = key.data
                for answer in worker.read():
                    if "samples" in answer:
                        on_samples(*answer["samples"])
                    elif "error" in answer:
                        raise error_from_json(answer)
                    else:
                        assert worker.shard is not None
                        on_shard(worker.shard)
                        if waiting:
                            worker.give(waiting.popleft())
                            continue
                        num_busy -= 1
                        selector.unregister(worker.answers)


@dataclass(slots=True)
class _Worker:
    """A worker process and its output so far."""

    process: subprocess.Popen[bytes]
    building: Path
    answers: int  # file descriptor
    partial: bytes = b""
    shard: PlannedShard | None = None

    def give(self, shard: PlannedShard) -> None:
        self.shard = shard
        self._say(str(shard.number))

    def tell(self, value: Any) -> None:
        self._say(json.dumps(value))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, and reading its answers reports that
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the answers that have arrived. Raises StorageError if the process is dead."""
        data = os.read(self.answers, 1 << 16)
        if not data:
            number = "" if self.shard is None else f" {self.shard.number}"
            raise StorageError(
                f"{self.building.parent}: a worker died while it wrote shard{number} ({_death(self.process.wait())});"
                " run the same command again, with fewer --workers if memory ran out"
            )
        *lines, self.partial = (self.partial + data).split(b"\n")
        return map(json.loads, lines)

    def stop(self) -> None:
        """End the process at once: what it was writing is not marked as done."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _death(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _start(job: ShardJob) -> _Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", "converters.engines.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=importing_as_here(),
        cwd="/",  # the working directory comes first on a worker's path and may contain anything
        start_new_session=True,  # Ctrl-C reaches this process only, which then stops its workers
    )
    assert process.stdout is not None
    worker = _Worker(process, job.building, process.stdout.fileno())
    worker.tell(job_to_json(job))
    return worker


def worker_main(jobs: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Run a worker: the first line is the job, each further one the number of a shard."""
    job = job_from_json(json.loads(next(jobs)))
    shards = read_plan(job.building / PLAN_NAME).shards
    target = TARGETS[job.target]
    with open_samples(job.building / PLAN_NAME) as samples:
        for line in jobs:
            shard = shards[int(line)]
            for counts in build_shard(job, target, shard, samples):
                answer({"samples": counts})
            answer({"done": shard.number})
