"""Iterate over a torch loader, recording the place after each batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from datapipe.adapt.keys import KeyPass
from datapipe.deferral import lending
from datapipe.deferral.reports import Delivered, Tally
from datapipe.errors import LifecycleError
from datapipe.kernel.guarding import OneThread, without_stop
from datapipe.kernel.state import Epochs


class TorchIterator(Iterator[Any]):
    """The batches of one pass over torch's loader, in order. Nothing happens before the first `next()`.

    A batch that fails raises, counts as done, and the next `next()` continues after it. Do not share it between threads.
    """

    def __init__(
        self, begin: Callable[[], tuple[Iterator[Any], KeyPass]], num_steps: Callable[[], int], epochs: Epochs, tally: Tally
    ) -> None:
        self._begin, self._num_steps, self._epochs, self._tally = begin, num_steps, epochs, tally
        self._one_thread = OneThread()
        self._batches: Iterator[Any] | None = None
        self._walk: KeyPass | None = None
        self._is_over = self._has_workers = False
        self._num_handed_out = 0

    def __len__(self) -> int:
        """Return the steps of a whole epoch, whatever is left of this one."""
        return self._num_steps()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an iterator over a loader cannot be copied or pickled, as it holds torch's workers and batches in the making; copy "
            "the loader itself, or take its state_dict() and load it into a copy, which then continues from that place"
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
            self._has_workers = self._num_received() is not None
        lending.settle()
        walk, num_received = self._walk, self._num_received() if self._has_workers else None
        try:
            batch = next(self._batches)
        except StopIteration as exc:
            is_end = num_received == self._num_received() if self._has_workers else walk.is_over
            if not is_end:  # the user's code raised it
                self._epochs.last = walk.after.popleft()
                raise without_stop(exc) from exc
            self.close()
            try:
                if walk.error is not None:
                    raise walk.error from None
            finally:
                walk.error = None  # its traceback refers to this iterator
            self._epochs.end(walk.epoch)
            raise
        except Exception as exc:
            _free_reraised(exc)
            if num_received is None or num_received != self._num_received():  # otherwise the wait itself failed
                self._epochs.last = walk.after.popleft()
            raise
        self._epochs.last = after = walk.after.popleft()
        self._num_handed_out += 1
        if type(batch) is not Delivered:
            return batch
        return self._tally.take(batch, epoch=after.epoch, step=self._num_handed_out - 1)

    def _num_received(self) -> int | None:
        """Return how many batches have come from torch's workers, failed ones included; None if there are no workers."""
        return getattr(self._batches, "_rcvd_idx", None)


def _free_reraised(error: Exception) -> None:
    """Let the error of a worker be freed with its last user, and with it the pass to which its traceback leads.

    torch raises it in a function that keeps it in a variable. That cycle would keep the workers until a garbage collection; one
    that comes while other workers are forked ends these workers only after 5 seconds.
    """
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_name == "reraise":
            frames.tb_frame.clear()
        frames = frames.tb_next
