"""What a sample costs a loader, measured by iterating it as fast as it goes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.core.observe import Stage, StageTotals
from datapipe.kernel.accelerators import synchronize
from datapipe.kernel.pytree import tensors_of


@dataclass(frozen=True, slots=True)
class Costs:
    """The mean costs of a sample."""

    num_samples: int  # that were loaded
    wall_s: float  # of the consumer, who does nothing but wait
    cpu_s: float  # of all threads and processes
    stage_s: dict[str, float]  # of threads, by stage; waiting within a stage is part of it
    read_nbytes: float  # from storage; 0: the loader does not say
    batch_nbytes: float  # in the finished batch


def costs_of(loader: Any, *, least_samples: int, least_s: float = 2.0) -> Costs:
    """Iterate a loader of datapipe's, in whole batches and as many epochs as needed, after a few that do not count."""
    totals = StageTotals()
    iterate(loader, least_samples // 4, least_s / 4)  # starts workers; what is opened once is open then
    loader.observe(totals)
    started_s, cpu_s = time.perf_counter(), _cpu_s()
    num, nbytes = iterate(loader, least_samples, least_s)
    synchronize(loader.device)
    wall_s, cpu_s = time.perf_counter() - started_s, _cpu_s() - cpu_s
    return Costs(
        num_samples=num,
        wall_s=wall_s / num,
        cpu_s=cpu_s / num,
        stage_s={stage: spent / num * 1e-9 for stage, spent in totals.duration_ns.items() if stage != Stage.WAIT.value},
        read_nbytes=totals.read_nbytes / num,
        batch_nbytes=nbytes / num,
    )


def iterate(loader: Any, least_samples: int, least_s: float) -> tuple[int, int]:
    """Iterate epochs until both are reached. Returns how many samples came, and the bytes of their tensors."""
    num = nbytes = 0
    until_s = time.perf_counter() + least_s
    while True:
        before = num
        for batch in loader:
            tensors = tensors_of(batch)
            num += len(tensors[0])
            nbytes += sum(tensor.nbytes for tensor in tensors)
            if num >= least_samples and time.perf_counter() >= until_s:
                return num, nbytes
        if num == before:
            return num, nbytes


def _cpu_s() -> float:
    """Return the CPU time of this process and of its descendants."""
    ticks, found = os.sysconf("SC_CLK_TCK"), time.process_time()
    for pid in _descendants(os.getpid()):
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / ticks  # user and system; see proc(5)
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found
