"""Protocols between iterators, threads and makers of batches, of images or of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from datapipe.core.observe import Observer
from datapipe.loader.object_pool import ObjectPool
from datapipe.order.plan import Cursor


class BatchPicks(Protocol):
    """One rank's batch, before it is made."""

    @property
    def step(self) -> int:
        """The number within the epoch, from 0."""

    @property
    def after(self) -> Cursor:
        """The place in the epoch once this step is done."""

    def __len__(self) -> int:
        """Return the number of samples of the batch."""


class ThreadOptions(Protocol):
    """How batches are scheduled."""

    @property
    def num_workers(self) -> int:
        """Threads that make batches; 0: the caller's."""

    @property
    def timeout_s(self) -> float:
        """The longest wait for one batch; 0: no limit."""

    def is_ahead(self, batches: Iterable[int], /) -> bool:
        """Return whether enough batches are in the making, given the number of samples of each."""


class BatchMaker(Protocol):
    """Makes batches, block by block. Thread-safe."""

    @property
    def options(self) -> ThreadOptions: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def workers(self) -> ObjectPool[Any]:
        """The pool of workers with which threads make blocks, one each."""

    @property
    def enter_thread(self) -> Callable[[], None] | None:
        """Called first in each thread that makes batches."""

    @property
    def dali(self) -> Any:
        """The `DaliStage` that decodes whole batches between the last block and `finish`; None if there is none."""

    def prepare(self, picks: Any, /) -> Any:
        """Return a batch in the making."""

    def blocks(self, batch: Any, /) -> list[range]:
        """Return the rows of each of its blocks."""

    def spare(self, batch: Any, /) -> list[Callable[[Any], object]]:
        """Return work for later batches, each a function of a worker, for threads that have nothing else to do."""

    def load_block(self, batch: Any, rows: range, worker: Any, /) -> None: ...

    def decode(self, batch: Any, pipeline: Any, worker: Any, /) -> None: ...

    def finish(self, batch: Any, /) -> Any:
        """Return what the user gets, or its arrival on a device."""
