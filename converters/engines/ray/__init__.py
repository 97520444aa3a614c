"""Build shards as the tasks of a Ray cluster, one task for each.

The plan and the shards travel by the disk that all nodes share; Ray carries numbers of shards and of samples. A shard whose node
or process dies is built again elsewhere. Whatever ends the run, its tasks are cancelled and awaited, and those that a killed run
leaves behind are kept from publishing by its fence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from converters.engines.ray import task
from converters.planning.plan import PlannedShard
from converters.runs import to_json
from converters.shards import OnSamples, OnShard, ShardJob, error_from_json
from datapipe.core.environment import num_usable_cores
from datapipe.core.printable import get_logger
from datapipe.core.ray_cluster import address_of_cluster, begin, connect, import_ray, is_connected
from datapipe.core.versions import differing
from datapipe.core.waiting import Wait, reported_wait
from datapipe.errors import DependencyError, OptionError, StorageError

ENGINE, ADDRESS = "--engine ray", "--address"  # the options, as messages name them
_MAX_ATTEMPTS = 5  # of a shard whose node or process dies
_QUEUED = 2  # tasks that wait for a free core, so that none is idle, and so that a cluster that can grow does
_LOOK_S = 60.0  # for nodes to answer before the first shard; one that does not is asked by each of its tasks
_STOP_S = 20.0  # for tasks to end when they are told to, before their processes are killed
_STORE_NBYTES = 80_000_000  # Ray's object store of a local cluster, the least that it takes: hardly anything is put there
_POLL_S = 1.0

logger = get_logger(__name__)


def run_on_cluster(
    job: ShardJob,
    shards: Sequence[PlannedShard],
    *,
    address: str | None,
    num_workers: int | None,
    on_samples: OnSamples,
    on_shard: OnShard,
) -> None:
    """Build `shards` on the cluster at `address`, on that of RAY_ADDRESS, or on one that is started here for them.

    `num_workers`: tasks at a time; None: as many as the cluster has cores. Raises what `engines.local.run_shards` raises,
    OptionError if no cluster answers, DependencyError if Ray is missing here or a node has other versions.
    """
    ray = import_ray(ENGINE)
    # Ray prints news of its nodes on standard output, which is for the report
    with contextlib.redirect_stdout(sys.stderr), _connected(ray, address, num_workers or num_usable_cores()):
        ray.cloudpickle.register_pickle_by_value(task)
        expected = task.versions()
        compared = _compare_versions(ray, expected)
        _RayRun(ray, job, (expected, compared), num_workers, on_samples, on_shard).build(shards)


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, num_cpus: int) -> Iterator[None]:
    """Connect to a cluster for the block, unless the caller is connected already."""
    if is_connected(ray, address, f"{ADDRESS} {address}"):
        yield
        return
    address = address_of_cluster(address)
    if address in (None, "local"):
        _begin_local(ray, num_cpus)
    else:
        connect(ray, address, f"{ADDRESS} {address}")
    try:
        yield
    finally:
        ray.shutdown()


def _begin_local(ray: Any, num_cpus: int) -> None:
    """Begin a cluster of this machine alone. Raises OptionError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of ours, which nobody asked to report home
    local = {"num_cpus": num_cpus, "object_store_memory": _STORE_NBYTES, "include_dashboard": False}
    try:
        with reported_wait("the Ray cluster", "one starts on this machine"):
            begin(ray, address="local", **local)
    except Exception as exc:  # Ray raises errors of many types here, among them plain Exception
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.300}"
        raise OptionError(
            f"{ENGINE}: Ray does not start on this machine ({what}); start a cluster by `ray start --head` and pass "
            f"{ADDRESS} auto, or leave out {ENGINE}: the local engine writes the same bytes"
        ) from exc


def _compare_versions(ray: Any, expected: dict[str, str]) -> frozenset[str]:
    """Return the ids of the nodes that have the expected versions of what the bytes depend on.

    Raises DependencyError, naming them, if nodes have others.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    look = ray.remote(num_cpus=0, max_retries=0)(task.look)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[look.options(scheduling_strategy=there).remote()] = node["NodeID"]
    with reported_wait("the nodes of the Ray cluster", f"their versions are compared, for {_LOOK_S:.0f} s at most"):
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S) if asked else ([], [])
    for one in silent:
        ray.cancel(one, force=True)
    compared: list[str] = []
    skewed: list[str] = []
    for one in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # the node was lost; each task compares again
            name, found = ray.get(one)
            skew = differing(name, found, expected)
            if skew is None:
                compared.append(asked[one])
            else:
                skewed.append(skew)
    if skewed:
        raise DependencyError(
            f"nodes whose versions differ would write other bytes: {'; '.join(skewed)}; install the same versions on every node"
        )
    return frozenset(compared)


@dataclasses.dataclass(slots=True)
class _Attempt:
    """A shard being built by a task."""

    shard: PlannedShard
    number: int
    has_begun: bool = False
    num_samples: int = 0  # reported so far
    num_bad: int = 0


class _RayRun:
    """The tasks of one run."""

    def __init__(
        self,
        ray: Any,
        job: ShardJob,
        expected: tuple[dict[str, str], frozenset[str]],  # versions, and the nodes where they were found
        num_workers: int | None,
        on_samples: OnSamples,
        on_shard: OnShard,
    ) -> None:
        self._ray = ray
        self._destination = job.building.parent
        self._num_workers = num_workers
        self._on_samples, self._on_shard = on_samples, on_shard
        self._build = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(task.build)
        self._job, self._expected = to_json(job), expected
        self._stop_file = job.building / f"stop-{secrets.token_hex(8)}"
        self._running: dict[Any, _Attempt] = {}  # by the generator of a task's answers

    def build(self, shards: Sequence[PlannedShard]) -> None:
        """Build all of them, or stop all tasks and raise."""
        waiting = deque(_Attempt(shard, 1) for shard in shards)
        first = Wait("the first task", "the Ray cluster has no free core, or starts its processes")
        has_begun = False
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._most_at_once():
                    attempt = waiting.popleft()
                    answers = self._build.remote(
                        self._job, dataclasses.astuple(attempt.shard), str(self._stop_file), *self._expected
                    )
                    self._running[answers] = attempt
                running = list(self._running)
                ready, _ = self._ray.wait(running, num_returns=1, timeout=_POLL_S, fetch_local=False)
                if not ready and not has_begun:
                    first.report_if_long()
                if ready:
                    has_begun = True
                    ready, _ = self._ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
                waiting.extendleft(lost for answers in ready if (lost := self._take(answers)) is not None)
        except BaseException:
            self._stop()
            raise

    def _most_at_once(self) -> int:
        return self._num_workers or int(self._ray.cluster_resources().get("CPU", 0)) + _QUEUED

    def _take(self, answers: Any) -> _Attempt | None:
        """Take one answer of a task. Returns what must be tried again, if the task was lost; raises what it reports."""
        attempt = self._running[answers]
        try:
            answer = self._ray.get(next(answers))
        except StopIteration:
            del self._running[answers]
            self._on_shard(attempt.shard)
            return None
        except self._ray.exceptions.RayTaskError as exc:  # an exception outside of what a task catches
            raise RuntimeError(f"a task failed:\n{exc}") from exc
        except self._ray.exceptions.RayError as exc:
            del self._running[answers]
            return self._lost(attempt, exc)
        if "error" in answer:
            raise error_from_json(answer)
        attempt.has_begun = True
        num_samples, num_bad = answer["samples"]
        attempt.num_samples += num_samples
        attempt.num_bad += num_bad
        self._on_samples(num_samples, num_bad)
        return None

    def _lost(self, attempt: _Attempt, exc: Exception) -> _Attempt:
        """Return the next attempt for a shard whose task died. Raises StorageError after too many."""
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.200}"
        if attempt.number == _MAX_ATTEMPTS:
            raise StorageError(
                f"{self._destination}: {_MAX_ATTEMPTS} tasks died while they wrote shard {attempt.shard.number} ({what});"
                " run the same command again, with fewer --workers if memory ran out"
            ) from exc
        logger.warning("shard %d is built again: its task died (%s)", attempt.shard.number, what)
        self._on_samples(-attempt.num_samples, -attempt.num_bad)
        return _Attempt(attempt.shard, attempt.number + 1)

    def _stop(self) -> None:
        """Cancel every task, and wait until it has ended."""
        with reported_wait("the tasks of the Ray cluster", f"they are told to end, for {2 * _STOP_S:.0f} s at most"):
            with contextlib.suppress(OSError):
                self._stop_file.touch()
            try:
                self._end_tasks()
            finally:
                self._stop_file.unlink(missing_ok=True)

    def _end_tasks(self) -> None:
        """Interrupt the tasks that run; those that do not yet will find the file that tells them to stop.

        To cancel a task at the moment at which it is sent to a node makes Ray (2.60) end this process.
        """
        for force in (False, True):
            ended = [answers.completed() for answers in self._running]
            for answers in (one for one, attempt in self._running.items() if attempt.has_begun or force):
                with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(answers, force=force)
            deadline = time.monotonic() + _STOP_S
            while ended and time.monotonic() < deadline:
                _, ended = self._ray.wait(ended, num_returns=len(ended), timeout=_POLL_S, fetch_local=False)
            if not ended:
                return
        logger.warning("%d tasks did not end; they cannot publish anything once the next run has begun", len(ended))
