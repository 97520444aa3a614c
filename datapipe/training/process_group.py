"""The processes of a run: join them, communicate among them, and agree when to stop or save."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from datapipe.core.waiting import reported_wait


@contextlib.contextmanager
def launched_group(device: torch.device) -> Iterator[bool]:
    """Join the processes that torchrun started, if it did. Yields whether this one leads.

    After an error no process waits for the others: the launcher ends them.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield True
        return
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
    with reported_wait("the other ranks", "all of them must start"):
        distributed.init_process_group(distributed.Backend.default_device_backend_map[device.type])
    try:
        yield distributed.get_rank() == 0
        distributed.barrier()  # no process leaves while another still communicates with it
    except (SystemExit, KeyboardInterrupt):  # a stop on which all ranks have agreed
        _leave_group()
        raise
    _leave_group()


def _leave_group() -> None:
    gc.collect()  # the rest of the model holds the group, whose threads must end before the interpreter does
    distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The ranks that train together; a single rank if torch.distributed is not initialised. All must make the same calls."""

    rank: int = 0
    world_size: int = 1
    control: Any = None  # a gloo group: decisions on the host must not wait for the GPU

    @classmethod
    def join(cls) -> ProcessGroup:
        """Join the ranks of torch.distributed."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size(), distributed.new_group(backend="gloo"))

    @property
    def leads(self) -> bool:
        """True on the rank that prints and writes."""
        return self.rank == 0

    def add(self, values: torch.Tensor) -> torch.Tensor:
        """Sum `values` over ranks, on the device, in place, and return them."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def gather(self, value: object) -> list[Any]:
        """Return the value of every rank, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value, group=self.control)
        return values

    def align_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0, which are those in a checkpoint."""
        if self.world_size > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, 0)


class Agreement:
    """Makes all ranks stop or save at the same step, although signals reach them at different times.

    Each call returns what any rank requested at the previous call, so no rank waits for messages in transit. A single rank
    gets its own request at once.
    """

    def __init__(self, peers: ProcessGroup) -> None:
        self._peers = peers
        self._sent: torch.Tensor | None = None
        self._work: Any = None

    def __call__(self, signal: int, save: bool) -> tuple[int, bool]:
        """Return what any rank requested: the number of a signal to stop for (0: none), and True to save."""
        if self._peers.world_size == 1:
            return signal, save
        agreed = self.settle()
        self._sent = torch.tensor([signal, int(save)])
        self._work = distributed.all_reduce(self._sent, distributed.ReduceOp.MAX, group=self._peers.control, async_op=True)
        return agreed

    def settle(self) -> tuple[int, bool]:
        """Return the requests of the last call, after waiting for the ranks that have not made it yet."""
        if self._work is None or self._sent is None:
            return 0, False
        self._work.wait()
        signal, save = self._sent.tolist()
        self._work = self._sent = None
        return signal, bool(save)
