"""What the making of a batch was made up of. Pure.

The dataset's time D is divided into
- cores: ready to run, and without a core (run-queue delay; where the kernel does not tell, it is in `read`),
- transforms T, by name,
- decode: the rest as far as it kept a core busy: what `__getitem__` does outside its transforms,
- read: the rest of the rest: waiting, for storage, the network or a lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from datapipe.diagnostics.torch_stages.profile import BatchProfile, Making

Stage = tuple[str, str | None]  # its kind, and the name of a transform
Parts = dict[Stage, float]  # shares that add up to 1

CORES: Stage = ("cores", None)
READ: Stage = ("read", None)
DECODE: Stage = ("decode", None)
COLLATE: Stage = ("collate", None)


class Makeup:
    """Of batches of one loader. How transforms share their time, and its CPU part, is sampled, and so taken over all."""

    def __init__(self, profiles: Sequence[BatchProfile]) -> None:
        wall_ns: defaultdict[str, float] = defaultdict(float)
        for profile in profiles:
            for transform in profile.made.transforms or ():
                wall_ns[transform.name] += max(0, transform.wall_ns)
        total = sum(wall_ns.values())
        self._names = {name: value / total for name, value in wall_ns.items()} if total else {}
        timed = [profile.made for profile in profiles if profile.made.transform_ns is not None]
        cpu_ns = sum(transform.cpu_ns for made in timed for transform in made.transforms or ())
        self._cpu_share = min(1.0, cpu_ns / total) if total else 0.0
        self._typical_ns = sum(made.transform_ns or 0 for made in timed) / len(timed) if timed else 0.0

    def of_dataset(self, made: Making) -> Parts:
        """What the dataset's time was made up of."""
        dataset_ns = made.dataset_ns
        if dataset_ns <= 0:
            return {READ: 1.0}
        cpu_ns = min(made.dataset_cpu_ns, dataset_ns)
        queued = min(_queued_share(made), 1 - cpu_ns / dataset_ns)
        transform_ns = self._typical_ns if made.transform_ns is None else made.transform_ns
        transforms = min(1.0, transform_ns / dataset_ns if self._names else 0.0) * (1 - queued)
        rest = 1 - queued - transforms
        decode = min(max(0.0, cpu_ns / dataset_ns - transforms * self._cpu_share) + _helpers_share(made), rest)
        parts = {CORES: queued, DECODE: decode, READ: rest - decode}
        return parts | {("transform", name): transforms * share for name, share in self._names.items()}

    def of_collate(self, made: Making) -> Parts:
        """What the time of collating was made up of."""
        collate_ns = max(1, made.collate_ns)
        queued = min(_queued_share(made), max(0.0, 1 - made.collate_cpu_ns / collate_ns))
        return {CORES: queued, COLLATE: 1 - queued}


def _helpers_share(made: Making) -> float:
    """CPU time of other threads of the worker, which the thread that makes the batch may have waited for."""
    fetch_ns = made.ready_ns - made.start_ns
    if made.process_cpu_ns is None or fetch_ns <= 0:
        return 0.0
    return max(0.0, (made.process_cpu_ns - made.dataset_cpu_ns - made.collate_cpu_ns) / fetch_ns)


def _queued_share(made: Making) -> float:
    """Of the whole making; the kernel's count is not divided further."""
    fetch_ns = made.ready_ns - made.start_ns
    return 0.0 if made.counters.queued_ns is None or fetch_ns <= 0 else min(1.0, made.counters.queued_ns / fetch_ns)
