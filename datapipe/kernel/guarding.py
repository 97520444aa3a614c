"""Guard an iterator's `next()`: one thread at a time, no StopIteration but its own, and no daemon thread once Python ends.

At the interpreter's end, `pthread_exit` unwinds a daemon thread that asks for Python's lock. Within torch's C++ code,
for example where a tensor is freed, that aborts the process. So such threads are halted first, within `next()`.
"""

from __future__ import annotations

import atexit
import threading
import time

from datapipe.errors import LifecycleError

_LIMIT_S = 2.0  # for a thread that is busy elsewhere: with a batch, or waiting for a queue


class Ending:
    """Knows which daemon threads iterate loaders, and halts them at the interpreter's end. Thread-safe."""

    def __init__(self) -> None:
        self._is_exiting = False
        self._threads: set[threading.Thread] = set()  # daemons that have called `next()`
        self._resting: set[int] = set()  # idents of threads that will not go on once the end is near

    def halt_if_exiting(self) -> None:
        """Call first in `next()`: once the interpreter ends, a daemon thread stays here for ever."""
        thread = threading.current_thread()
        if not thread.daemon:  # the main thread, or one that the interpreter joins
            return
        if thread not in self._threads:
            self._threads.difference_update([one for one in self._threads.copy() if not one.is_alive()])
            self._threads.add(thread)
        if self._is_exiting:
            self._resting.add(threading.get_ident())
            for_ever = threading.Lock()
            for_ever.acquire()
            for_ever.acquire()

    def __enter__(self) -> None:
        """Begin to wait for something within `next()`: a thread that waits counts as halted."""
        self._resting.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.halt_if_exiting()
        self._resting.discard(threading.get_ident())

    def halt_threads(self) -> None:
        """Wait until all live threads are halted, but no longer than a thread may need for one batch."""
        self._is_exiting = True
        deadline = time.monotonic() + _LIMIT_S
        for thread in self._threads - {threading.current_thread()}:
            while thread.is_alive() and thread.ident not in self._resting and time.monotonic() < deadline:
                time.sleep(0.001)


ending = Ending()


def _register_at_exit() -> None:
    """Register at the end only, so as to run before what libraries registered: DALI's end, and that of our threads."""
    atexit.register(ending.halt_threads)


# `_register_at_exit` runs when the main thread has ended, and the function that it registers once the other non-daemon threads
# have ended too: until then a daemon thread may feed them.
threading._register_atexit(_register_at_exit)  # type: ignore[attr-defined]


def without_stop(error: BaseException) -> BaseException:
    """Return what `next()` may raise for an error of the user's code: for StopIteration, as in a generator, a RuntimeError.

    A loop would take StopIteration for the end of the epoch.
    """
    if not isinstance(error, StopIteration):
        return error
    instead = RuntimeError(
        "StopIteration was raised while a batch was made, which would end the epoch before its last batch; catch it where your"
        " code calls next(), or raise another error"
    )
    instead.__cause__ = error
    return instead


class OneThread:
    """Guards an iterator's `next()`: refuses a second thread while one is inside, and stops a daemon once Python ends."""

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}  # `setdefault` and `pop` are atomic

    def __enter__(self) -> None:
        ending.halt_if_exiting()
        me = threading.get_ident()
        if self._inside.setdefault("thread", me) != me:
            raise LifecycleError(
                "two threads called next() on one iterator at once; do not share an iterator between threads: let one "
                "thread iterate and pass batches on through a queue.Queue, or give each thread a loader of its own, such as "
                "one of loader.dataset.select(...), a part of the samples"
            )

    def __exit__(self, *_: object) -> None:
        self._inside.pop("thread", None)
