"""The facts of a process in a recording besides steps and batches: its waits for other ranks, Python's lock, its model's cost."""

from __future__ import annotations

import msgspec


class Exchange(msgspec.Struct, frozen=True):
    """One iteration of a DistributedDataParallel module, as torch's own logging of it timed this rank; in seconds.

    Each rank measures the time that it waits for the others; nothing is sent.
    """

    module: int  # counted from 0
    iteration: int  # counted by the module, alike on all ranks
    read_ns: int  # when it was read, on the clock of the steps
    forward_s: float
    backward_s: float  # until the last gradient of this rank is there,
    wait_s: float  # and from then on until those of all ranks are there, exchanged
    syncs_in_forward: bool  # buffers, or statistics of batches, are exchanged in forward, which then may wait for other ranks


class LockHolder(msgspec.Struct, frozen=True):
    """A thread that computed, other than the training's."""

    thread: str  # its name
    where: str  # the user's function that it was in most often when the lock was taken: file:line and its name
    cpu_share: float  # of the CPU time of the process's Python threads


class LockUse(msgspec.Struct, frozen=True):
    """How often the lock was taken when a thread that had slept wanted it."""

    late_share: float  # of its wake-ups, that had to wait for the lock of another thread's Python
    holders: tuple[LockHolder, ...] = ()  # the busiest first; none if no other thread runs much code of the user
    late_s: float = 0.0  # the mean wait of those; 0: not measured


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of a few training steps, counted operation by operation, and the peaks of their device: a roofline of the model.

    Samuel Williams, Andrew Waterman, David Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", CACM 52 (4), 2009.
    """

    device: str  # its name
    dtype: str  # in which most floating point operations are done
    flops: float  # floating point operations of a step: matrix products, convolutions and attention
    nbytes: float  # that its operations read and write, each by itself: fused, they move fewer
    num_operations: float  # that write something, each of which is a kernel or more
    uncounted: tuple[str, ...] = ()  # operations that compute, but for which torch has no formula
    peak_flops_per_s: float  # of large matrix products in this dtype,
    peak_nbytes_per_s: float  # of large copies, reading and writing,
    launch_s: float  # and of an operation on a few numbers

    @property
    def intensity(self) -> float:
        """Floating point operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def limits_s(self) -> dict[str, float]:
        """The least time of a step by what bounds it."""
        return {
            "compute": self.flops / self.peak_flops_per_s,
            "memory": self.nbytes / self.peak_nbytes_per_s,
            "launches": self.num_operations * self.launch_s,
        }
