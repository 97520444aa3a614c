"""What the ranks of a run tell each other: sums, values, and when to stop or save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The ranks that train together; one alone where torch.distributed is not initialised. All must make the same calls."""

    rank: int = 0
    world_size: int = 1
    control: Any = None  # a gloo group: what is decided on the host must not wait for the GPU

    @classmethod
    def join(cls) -> ProcessGroup:
        """Those of torch.distributed."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size(), distributed.new_group(backend="gloo"))

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that prints and writes."""
        return self.rank == 0

    def add(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, on the device, in place."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def gather(self, value: object) -> list[Any]:
        """The value of every rank, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value, group=self.control)
        return values

    def align_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0, which is what a checkpoint holds."""
        if self.world_size > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, 0)


class Agreement:
    """Brings the ranks to stop or save at the same step, though each hears a signal at a time of its own.

    What a rank asks for at one call, all are told at the next, so nobody waits for messages on their way. A rank alone is
    told at once.
    """

    def __init__(self, peers: ProcessGroup) -> None:
        self._peers = peers
        self._sent: torch.Tensor | None = None
        self._work: Any = None

    def __call__(self, signal: int, save: bool) -> tuple[int, bool]:
        """What any rank asked for: the number of a signal to stop for (0: none), whether to save."""
        if self._peers.world_size == 1:
            return signal, save
        agreed = self.settle()
        self._sent = torch.tensor([signal, int(save)])
        self._work = distributed.all_reduce(self._sent, distributed.ReduceOp.MAX, group=self._peers.control, async_op=True)
        return agreed

    def settle(self) -> tuple[int, bool]:
        """What was asked for at the last call, waiting for the ranks that have not got there."""
        if self._work is None or self._sent is None:
            return 0, False
        self._work.wait()
        signal, save = self._sent.tolist()
        self._work = self._sent = None
        return signal, bool(save)
