"""How often Python's global lock was taken when a thread of the training process wanted it, and which threads took it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from types import FrameType

from datapipe.instruments.measure.observed import LockHolder, LockUse
from datapipe.instruments.torch_stages.user_code import is_of_user

_PERIOD_S = 0.02  # of looks
_LATE_NS = 1_500_000  # a thread that has to wait for the lock of another one's Python waits for up to 5 ms
_LOOKS_PER_COUNT = 50  # looks from one reading of the threads' CPU times to the next
_LEAST_SHARE = 0.15  # of the CPU time of the Python threads, below which one is not named
_MOST_PLACES = 1000
_BUSY_NS = 20_000_000  # of CPU time from one reading to the next
_OWN = "datapipe-"  # names of the threads that measure


class LockSampler:
    """Sleeps for a moment in a thread of its own, and looks how late it runs again: it does not before it has the lock.

    Time in which the thread had no core is not counted. To be made in the training thread, which is not named: its Python is the
    training.
    """

    def __init__(self) -> None:
        self._trains = threading.get_ident()
        self._num = self._num_late = self._late_ns = 0
        self._cpu_ns: Counter[int] = Counter()  # by native id
        self._has_busy = False  # whether a thread that may be named computes: only then frames are looked at, which others use
        self._names: dict[int, str] = {}  # by native id
        self._places: dict[int, Counter[str]] = {}  # by native id: where the thread was when the lock was taken
        self._stopped = threading.Event()
        self._stopped.set()

    def start(self) -> None:
        """Begin to look, or go on. Does nothing if it looks already."""
        if self._stopped.is_set():
            self._stopped = threading.Event()
            threading.Thread(target=self._run, args=(self._stopped,), name=f"{_OWN}lock", daemon=True).start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()

    def summary(self) -> LockUse | None:
        """Return what was seen; None if nothing was."""
        if not self._num:
            return None
        total_ns = max(1, sum(self._cpu_ns.values()))
        busy = [(cpu_ns / total_ns, native) for native, cpu_ns in self._cpu_ns.most_common(8)]
        return LockUse(
            late_share=self._num_late / self._num,
            holders=tuple(
                LockHolder(self._names.get(native, "?"), self._places[native].most_common(1)[0][0], share)
                for share, native in busy
                if share >= _LEAST_SHARE and native in self._places
            ),
            late_s=self._late_ns * 1e-9 / max(1, self._num_late),
        )

    def _run(self, stopped: threading.Event) -> None:
        with suppress(Exception):
            own = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            try:
                before: dict[int, int] = {}
                for look in range(sys.maxsize):
                    if look % _LOOKS_PER_COUNT == 0:
                        before = self._count(before)
                    if stopped.is_set():
                        return
                    self._look(own)
            finally:
                os.close(own)

    def _look(self, own: int) -> None:
        queued_ns = _queued_ns(own)
        start_ns = time.perf_counter_ns()
        time.sleep(_PERIOD_S)
        late_ns = time.perf_counter_ns() - start_ns - int(_PERIOD_S * 1e9)
        queued_ns = _queued_ns(own) - queued_ns
        waited_ns = late_ns - queued_ns
        if queued_ns > _LATE_NS and waited_ns <= _LATE_NS:
            return  # where threads wait for cores, the lock may lie free for one that has none yet
        self._num += 1
        if waited_ns > _LATE_NS:
            self._num_late += 1
            self._late_ns += waited_ns
            if self._has_busy:
                self._note_places()

    def _note_places(self) -> None:
        threads = threading.enumerate()
        frames = sys._current_frames()  # held for microseconds alone: what lives in them cannot be freed meanwhile
        for thread in threads:
            frame = frames.get(thread.ident or 0)
            place = None if frame is None or self._is_left_out(thread) else _place(frame)
            if place is not None and thread.native_id is not None:
                places = self._places.setdefault(thread.native_id, Counter())
                if len(places) < _MOST_PLACES:
                    places[place] += 1

    def _count(self, before: dict[int, int]) -> dict[int, int]:
        """Add the CPU time of each thread since it was read before; return what it is now, by native id."""
        now, self._has_busy = {}, False
        for thread in threading.enumerate():
            native = thread.native_id
            if native is None or thread.name.startswith(_OWN):
                continue
            self._names[native] = thread.name
            with suppress(OSError, ValueError), open(f"/proc/self/task/{native}/schedstat") as file:
                now[native] = int(file.read().split()[0])
                spent_ns = now[native] - before.get(native, now[native])
                self._cpu_ns[native] += spent_ns
                self._has_busy = self._has_busy or (spent_ns > _BUSY_NS and not self._is_left_out(thread))
        return now

    def _is_left_out(self, thread: threading.Thread) -> bool:
        return thread.ident == self._trains or thread.name.startswith(_OWN)


def _queued_ns(schedstat: int) -> int:
    """Return how long this thread has waited for a core."""
    return int(os.pread(schedstat, 100, 0).split()[1])


def _place(innermost: FrameType) -> str | None:
    """Return file:line and the name of the innermost function of the user's; None if there is none."""
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        if is_of_user(code.co_filename):
            return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
        frame = frame.f_back
    return None
