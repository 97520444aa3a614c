"""A batch in the making: the task that threads work on and an iterator waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datapipe.errors import DecodeError
from datapipe.kernel.bad_samples import MAX_ATTEMPTS, BadSample, located
from datapipe.kernel.guarding import without_stop
from datapipe.kernel.kind import BadRow, BatchMaker, LeftToConsumer, Pass, Piece, Step
from datapipe.kernel.shared_pieces import LoadedPiece, PieceStore


@dataclass(frozen=True, slots=True)
class OpenPass:
    """A pass that has begun: what it is to be, who makes its batches, and the pieces that they share."""

    settings: Pass
    maker: BatchMaker
    store: PieceStore | None

    @classmethod
    def of(cls, settings: Pass, maker: BatchMaker) -> OpenPass:
        """Return the pass whose batches `maker` makes."""
        shared = maker.resources.shared
        if shared is None:
            return cls(settings, maker, None)
        first_step = settings.source.step_at(settings.start)
        return cls(settings, maker, PieceStore(shared, on_error=settings.options.on_error, first_step=first_step))


class Latch:
    """An event that one thread waits for and another opens, once.

    Ctrl-C in the middle of `threading.Event.wait` may leave the event's lock held, and then nothing can set it.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        self._is_open = True
        with contextlib.suppress(RuntimeError):  # already released
            self._closed.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether it was opened in time; None waits without a limit."""
        return self._is_open or self._closed.acquire(timeout=-1 if timeout_s is None else timeout_s)


class BatchTask:
    """One batch in the making: begun, its pieces filled, decoded if that is a stage of its own, finished; or failed."""

    def __init__(self, opened: OpenPass, step: Step) -> None:
        self.step = step
        self.done = Latch()
        self._opened, self._maker = opened, opened.maker
        self._batch: Any = None
        self._shared: dict[Any, LoadedPiece] = {}
        self._num_left = 0
        self.spare: list[Callable[[Any], object]] = []  # work for later batches, once this one has begun
        self._num_attempts: dict[int, int] = {}  # to replace the sample of a row
        self._result: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def begin(self) -> list[Piece]:
        """Look the batch up. Returns the pieces to fill next."""
        try:
            maker, store = self._maker, self._opened.store
            self._num_attempts.clear()  # of a beginning that Ctrl-C interrupted
            self._batch = batch = maker.begin(self.step)
            pieces = maker.pieces(batch)
            if store is not None:
                ahead = maker.ahead(batch) if maker.resources.options.num_threads else ()
                keys = [key for piece in pieces for key in piece.keys]
                self._shared, self.spare = store.use(self.step.step, keys, ahead)
            self._num_left = len(pieces)
            if not pieces:
                self._finish()
            return pieces
        except BaseException as exc:
            self._hold(exc)
        self.done.open()
        return []

    def fill(self, piece: Piece, worker: Any, again: Callable[[], object]) -> bool:
        """Fill one piece; the last one finishes the batch. Returns True if it is to be decoded next instead.

        Where other threads are at what it is filled from, nothing is done, and `again` is called when it may be filled.
        """
        try:
            if self._error is None:
                store, shared = self._opened.store, []
                if piece.keys and store is not None:
                    found = store.contents([self._shared[key] for key in piece.keys], worker, again)
                    if found is None:
                        return False
                    shared = found
                for bad in self._maker.fill(self._batch, piece, shared, worker):
                    self._settle(bad, worker)
            with self._lock:
                self._num_left -= 1
                is_last = self._num_left == 0
            if is_last and self._error is None:
                if self._maker.resources.lanes is not None:
                    return True
                self._finish()
            return False
        except BaseException as exc:
            self._hold(exc)
        self.done.open()
        return False

    def decode(self, lane: Any, worker: Any) -> None:
        """Decode the whole batch, and finish it."""
        try:
            self._maker.decode(self._batch, lane, worker, lambda bad: self._settle(bad, worker))
            self._finish()
            return
        except BaseException as exc:
            self._hold(exc)
        self.done.open()

    def finish_here(self) -> None:
        """Do what is left to the consumer's thread, which calls this. May be interrupted, and called again."""
        if type(self._result) is LeftToConsumer:
            try:
                self._result = self._result.finish()
            except Exception as exc:
                self._result = None
                self._hold(exc)

    def take(self) -> Any:
        """Return the finished batch, once. Raises the error of its making."""
        self._raise_error()
        result, self._result = self._result, None
        return result

    def raise_interrupt(self) -> None:
        """Raise, and forget, what interrupted the making of the batch without being an error of the batch."""
        if not isinstance(self._error, Exception):
            self._raise_error()

    def _settle(self, bad: BadRow, worker: Any) -> None:
        """Treat a bad sample as the policy says: raise its error, leave its row out, or replace it."""
        (row, reason), settings, maker = bad, self._opened.settings, self._maker
        sample = maker.locate(self._batch, row)
        if settings.options.on_error == "raise":
            raise located(reason, sample) from reason
        tried = self._num_attempts.get(row, 0)  # if a lane finds a replacement bad too, take the next one
        if not tried:
            found = BadSample(self.step.after.epoch, self.step.step, sample.id, str(sample), str(reason))
            settings.bad_samples.add(found)
        if settings.options.on_error == "skip":
            maker.leave_out(self._batch, row)
            return
        for attempt in range(tried + 1, MAX_ATTEMPTS + 1):
            self._num_attempts[row] = attempt
            if maker.replace(self._batch, row, attempt, worker):
                return
        raise DecodeError(
            f"{sample}: {reason}; {MAX_ATTEMPTS} samples drawn to replace it are bad too: look at the data with "
            "`datapipe inspect`"
        )

    def _raise_error(self) -> None:
        """Raise the error, once, and forget it.

        Its traceback refers to the iterator: keeping it would make a cycle, and the threads of an iterator that is dropped would
        not end before a garbage collection. For the same reason no variable holds it.
        """
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None

    def _finish(self) -> None:
        self._shared = {}  # not needed any more, unlike what `finish` may leave to the consumer
        self._result = self._maker.finish(self._batch)
        self._batch = None  # from here on only the user's references keep its memory
        self.done.open()

    def _hold(self, exc: BaseException) -> None:
        """Keep the error for the consumer.

        `done` is opened once the thread has left its handler: one that still held the error would free the consumer's iterator,
        to which the traceback leads by then, after the consumer has dropped it.
        """
        with self._lock:
            self._error = self._error or without_stop(exc)
