"""Run shard jobs on this machine, in this process or in its own workers, unless the options ask for a cluster.

A worker is a fresh interpreter (`converters.engines.worker`) that reads jobs as JSON lines and answers in JSON lines. It imports
neither the caller's main module nor torch, starts in about 0.2 s, works when the caller is a notebook or a script without a
main guard, and dies with its parent. Those of a large source start while it is listed, which one process does.
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

from converters.options import ConvertOptions
from converters.planning.plan import PLAN_NAME, PlannedShard, open_samples, read_plan
from converters.runs import from_json, to_json
from converters.samples.tokenising import open_encoder
from converters.shards import OnSamples, OnShard, ShardJob, build_shard, error_from_json
from converters.tokenizer import Tokenizing
from converters.writers import TARGETS
from datapipe.core.environment import importing_as_here, num_usable_cores
from datapipe.errors import DatapipeError, StorageError


def run_shards(
    job: ShardJob,
    shards: Sequence[PlannedShard],
    *,
    options: ConvertOptions,
    on_samples: OnSamples,
    on_shard: OnShard,
    workers: Workers,
) -> None:
    """Build `shards` by the engine of `options`. Raises what the first failing one raised; the others are stopped.

    `on_samples`, and `on_shard` for each one that is complete, are called in the caller's thread, and may raise to stop
    everything. The counts of `on_samples` are negative for a shard that is built again, as the machine that built it was lost.
    `workers`: processes of this machine that have been started, which end with the last shard.
    """
    if not shards:
        return
    if options.engine == "ray":
        from converters.engines.ray import run_on_cluster

        run_on_cluster(
            job, shards, address=options.address, num_workers=options.num_workers, on_samples=on_samples, on_shard=on_shard
        )
    else:
        workers.build(job, shards, options.num_workers or num_usable_cores(), on_samples=on_samples, on_shard=on_shard)


class Workers:
    """Worker processes, which may be started while what they are to do is still planned; closing it ends them."""

    def __init__(self, tokenizing: Tokenizing | None = None) -> None:
        """`tokenizing`: the tokenizer that each opens at its start, if it is known."""
        self._tokenizing = tokenizing
        self.processes: list[_Worker] = []

    def start(self, num: int) -> None:
        """Start workers up to a number."""
        while len(self.processes) < num:
            self.processes.append(_start(self._tokenizing))

    def build(self, job: ShardJob, shards: Sequence[PlannedShard], num: int, *, on_samples: OnSamples, on_shard: OnShard) -> None:
        """Build `shards` by so many workers at most, or in this process if one is enough; then end all of them.

        No worker gets its next shard before `on_shard` has returned for the last one.
        """
        num = min(num, len(shards))
        with contextlib.closing(self):
            if num < 2:
                self.close()
                _build_here(job, shards, on_samples, on_shard)
                return
            self.start(num)
            for worker in self.processes[:num]:
                worker.building = job.building
                worker.tell(job)
            _dispatch(self.processes[:num], deque(shards), on_samples, on_shard)

    def close(self) -> None:
        while self.processes:
            self.processes.pop().stop()


def _build_here(job: ShardJob, shards: Sequence[PlannedShard], on_samples: OnSamples, on_shard: OnShard) -> None:
    """Build `shards` one after the other in this process."""
    target = TARGETS[job.target]
    with open_samples(job.building / PLAN_NAME) as samples:
        for shard in shards:
            with contextlib.closing(build_shard(job, target, shard, samples)) as progress:
                for num_samples, num_bad in progress:
                    on_samples(num_samples, num_bad)
            on_shard(shard)


def _dispatch(workers: Sequence[_Worker], waiting: deque[PlannedShard], on_samples: OnSamples, on_shard: OnShard) -> None:
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
    answers: int  # file descriptor
    building: Path = Path()  # of the job
    partial: bytes = b""
    shard: PlannedShard | None = None

    def give(self, shard: PlannedShard) -> None:
        self.shard = shard
        self.tell(shard.number)

    def tell(self, value: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, and reading its answers reports that
            self.process.stdin.write(json.dumps(to_json(value)).encode() + b"\n")
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


def _start(tokenizing: Tokenizing | None) -> _Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", "converters.engines.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=importing_as_here(),
        cwd="/",  # the working directory comes first on a worker's path and may contain anything
        start_new_session=True,  # Ctrl-C reaches this process only, which then stops its workers
    )
    assert process.stdout is not None
    worker = _Worker(process, process.stdout.fileno())
    worker.tell(tokenizing)
    return worker


def worker_main(jobs: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Run a worker: the first line is the tokenizer to open, or null; the second the job; each further one a shard's number."""
    tokenizing = json.loads(next(jobs))
    if tokenizing is not None:
        with contextlib.suppress(DatapipeError):  # raised again by the first shard
            open_encoder(from_json(tokenizing, Tokenizing))
    job = from_json(json.loads(next(jobs)), ShardJob)
    shards = read_plan(job.building / PLAN_NAME).shards
    target = TARGETS[job.target]
    with open_samples(job.building / PLAN_NAME) as samples:
        for line in jobs:
            shard = shards[int(line)]
            for counts in build_shard(job, target, shard, samples):
                answer({"samples": counts})
            answer({"done": shard.number})
