"""The interpreter's end, and daemon threads of the user's that iterate a loader then.

Once the interpreter ends, a daemon thread that asks for Python's lock is taken off its stack by `pthread_exit`. In torch's C++
code, as where a tensor dies, that aborts the process. So such threads are brought to rest first, within `next()`.
"""

from __future__ import annotations

import atexit
import threading
import time

_LIMIT_S = 2.0  # for a thread that is at something else: what it does with a batch, or waiting for a queue


class Ending:
    """Knows which daemon threads iterate loaders, and brings them to rest. Thread-safe."""

    def __init__(self) -> None:
        self._is_near = False
        self._threads: set[threading.Thread] = set()  # daemons that have called `next()`
        self._resting: set[int] = set()  # idents of those that will not go on, once the end is near

    def rest_if_near(self) -> None:
        """Begin a `next()`: once the interpreter ends, a daemon thread stays here for ever."""
        thread = threading.current_thread()
        if not thread.daemon:  # the main thread, or one that the interpreter waits for
            return
        if thread not in self._threads:
            self._threads.difference_update([one for one in self._threads.copy() if not one.is_alive()])
            self._threads.add(thread)
        if self._is_near:
            self._resting.add(threading.get_ident())
            for_ever = threading.Lock()
            for_ever.acquire()
            for_ever.acquire()

    def __enter__(self) -> None:
        """Wait for something, within `next()`: a thread that waits is at rest already."""
        self._resting.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.rest_if_near()
        self._resting.discard(threading.get_ident())

    def bring_to_rest(self) -> None:
        """Wait until all that are alive rest, but no longer than a thread may be expected to need for one batch."""
        self._is_near = True
        deadline = time.monotonic() + _LIMIT_S
        for thread in self._threads - {threading.current_thread()}:
            while thread.is_alive() and thread.ident not in self._resting and time.monotonic() < deadline:
                time.sleep(0.001)


ending = Ending()


def _come_first() -> None:
    """Register for the end only now, so as to come before what libraries have registered: DALI's end, and that of our threads."""
    atexit.register(ending.bring_to_rest)


# That runs when the main thread has ended, and what it registers when the other threads that are no daemons have ended too:
# until then a daemon may be what feeds them.
threading._register_atexit(_come_first)  # type: ignore[attr-defined]
