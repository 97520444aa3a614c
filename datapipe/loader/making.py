"""What iterators and threads ask of whatever makes batches: of images, or of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from datapipe.core.observe import Observer
from datapipe.loader.lending import Lending
from datapipe.order.plan import Cursor


class Step(Protocol):
    """One rank's batch, before it is made."""

    @property
    def step(self) -> int:
        """Of the epoch, from 0."""

    @property
    def after(self) -> Cursor:
        """Where the epoch stands once this step is done."""

    def __len__(self) -> int:
        """Samples of the batch."""


class Schedule(Protocol):
    """How batches are scheduled."""

    @property
    def num_workers(self) -> int:
        """Threads that make batches; 0: the caller's."""

    @property
    def timeout_s(self) -> float:
        """To wait for one batch; 0: for ever."""

    def is_ahead(self, batches: Iterable[int], /) -> bool:
        """Whether enough is in the making, given the number of samples of each batch that is."""


class Maker(Protocol):
    """Makes batches, block by block. Thread-safe."""

    @property
    def options(self) -> Schedule: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def workers(self) -> Lending[Any]:
        """What a thread makes blocks with, one each."""

    @property
    def enter_thread(self) -> Callable[[], None] | None:
        """Called first in each thread that makes batches."""

    @property
    def dali(self) -> Any:
        """The `DaliStage` that decodes batches as a whole, between the last block and `finish`; None: there is none."""

    def prepare(self, picks: Any, /) -> Any:
        """A batch in the making."""

    def blocks(self, batch: Any, /) -> list[range]:
        """The rows of each block of it."""

    def spare(self, batch: Any, /) -> list[Callable[[Any], object]]:
        """Work for batches to come, each a function of a worker, done by threads that have nothing else to do."""

    def load_block(self, batch: Any, rows: range, worker: Any, /) -> None: ...

    def decode(self, batch: Any, pipeline: Any, worker: Any, /) -> None: ...

    def finish(self, batch: Any, /) -> Any:
        """What the user gets, or its arrival on a device."""
