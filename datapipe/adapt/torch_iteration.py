"""One pass over a torch loader, with the place after each batch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from datapipe.adapt.deferral import lending
from datapipe.adapt.deferral.reports import Delivered, Tally
from datapipe.core.errors import LifecycleError
from datapipe.loader.iteration import Epochs, OneThread
from datapipe.order.plan import Cursor


class TorchIterator(Iterator[Any]):
    """The batches of one pass over torch's loader, in order. Nothing happens before the first `next()`.

    A batch that fails raises, counts as done, and the next `next()` goes on after it. Not to be shared between threads.
    """

    def __init__(
        self, begin: Callable[[], tuple[Iterator[Any], Walk]], num_steps: Callable[[], int], epochs: Epochs, tally: Tally
    ) -> None:
        self._begin, self._num_steps, self._epochs, self._tally = begin, num_steps, epochs, tally
        self._one_thread = OneThread()
        self._batches: Iterator[Any] | None = None
        self._walk: Walk | None = None
        self._is_over = False
        self._num_handed_out = 0

    def __len__(self) -> int:
        """Steps of a whole epoch, whatever is left of this one."""
        return self._num_steps()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an iterator over a loader cannot be copied or pickled, as it holds torch's workers and batches in the making; copy "
            "the loader itself, or take its state_dict() and load it into a copy, which then goes on from that place"
        )

    def __next__(self) -> Any:
        with self._one_thread:
            return self._next()

    def close(self) -> None:
        """End the pass. May be called again."""
        self._is_over, self._batches = True, None
        lending.forget_ended_workers()

    def __del__(self) -> None:
        if self._batches is not None and not sys.is_finalizing():
            self.close()

    def _next(self) -> Any:
        if self._is_over:
            raise StopIteration
        if self._batches is None or self._walk is None:
            self._batches, self._walk = self._begin()
        lending.settle()
        walk, num_received = self._walk, self._num_received()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.close()
            try:
                if walk.error is not None:
                    raise walk.error from None
            finally:
                walk.error = None  # its traceback leads here
            self._epochs.end(walk.epoch)
            raise
        except Exception:
            if num_received is None or num_received != self._num_received():  # else it is the wait that failed
                self._epochs.last = walk.after.popleft()
            raise
        self._epochs.last = after = walk.after.popleft()
        self._num_handed_out += 1
        if type(batch) is not Delivered:
            return batch
        return self._tally.take(batch, epoch=after.epoch, step=self._num_handed_out - 1)

    def _num_received(self) -> int | None:
        """How many batches have come from torch's workers, those that failed included; None where there are no workers."""
        return getattr(self._batches, "_rcvd_idx", None)


class Walk:
    """One pass over the keys: asked in the consumer's thread, as many batches ahead as torch likes."""

    def __init__(self, keys: Iterator[tuple[Any, Cursor]], epoch: int) -> None:
        self._keys = keys
        self.epoch = epoch
        self.after: deque[Cursor] = deque()  # places behind the batches that are asked for and not yet handed out
        self.error: Exception | None = None  # of the sampler, raised once the batches before it are handed out

    def __iter__(self) -> Iterator[Any]:
        try:
            for keys, cursor in self._keys:
                self.after.append(cursor)
                yield keys
        except Exception as exc:
            self.error = exc
