"""`Monitor`: measure a loader in the process that uses it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from datapipe.diagnostics.attach import loaders
from datapipe.diagnostics.attach.lock_sampler import LockSampler
from datapipe.diagnostics.attach.session import Session
from datapipe.diagnostics.measure.watching import Hooks, Watch

if TYPE_CHECKING:
    from datapipe.diagnostics.attach.recording import Recording
    from datapipe.diagnostics.measure.bracket import ThreadBracket

_ELSEWHERE = "this process runs under `datapipe diagnose`, which will write the diagnosis"


class Monitor:
    """Passes on a loader's batches unchanged and measures how long the training waited for them.

    ::

        with datapipe.Monitor(loader) as batches:
            for images, labels in batches:
                ...
        print(batches.screen())

    `loader`: torch's, datapipe's, or any iterable; attributes that the monitor lacks are the loader's. Without `with`, a
    `for` over the monitor is measured until it ends or is left. Use it in the training thread: all monitors of a process
    share one clock, which is that thread's, so that a pass over one loader within a step of another is distinguished. In a
    script that runs under `datapipe diagnose`, monitors only pass batches on.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._key: int | None = None  # its number in the session; None: not iterated yet
        self._since_ns = time.perf_counter_ns()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._is_elsewhere = False

    def __enter__(self) -> Self:
        self._is_elsewhere = not _shared.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if not self._is_elsewhere:
            _shared.close()

    def __iter__(self) -> Iterator[Any]:
        with self:
            watch = None if self._is_elsewhere else _shared.session.watch()
            if watch is None:
                yield from iter(self._loader)
                return
            if self._key is None:
                self._key = _shared.session.key(self._loader if _can_be_kept(self._loader) else self)
            run, iterator = loaders.measured_pass(self._loader, _shared.session, watch, self._key)
            try:
                while True:
                    try:
                        batch = run.next(next, iterator)
                    except StopIteration:
                        return
                    yield batch
                    del batch  # only the user may hold it while the next one is awaited
            finally:
                run.stop()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Monitor' object has no attribute {name!r}")
        return getattr(self._loader, name)

    @property
    def starvation(self) -> float | None:
        """The share of the steps' time spent waiting for data, in the steady state; None: not measured."""
        found = self.diagnosis()["verdict"]["figures"]["starvation"]
        return None if found is None else float(found["value"])

    def diagnosis(self) -> dict[str, Any]:
        """Return the measurements since the monitor was made, as the JSON-safe document that `datapipe diagnose` writes.

        Ends the step in progress, and waits for the device once. Nothing is tried: remedies are those that follow from the
        measurements.
        """
        from datapipe.diagnostics.diagnosis import Command, diagnose
        from datapipe.diagnostics.document import as_json
        from datapipe.diagnostics.measure.recorded import process_of

        command = Command((), None, self._started_at, (time.perf_counter_ns() - self._since_ns) * 1e-9)
        bracket, recording = _shared.bracket, _shared.recording
        if self._is_elsewhere or self._key is None or bracket is None or recording is None:
            return as_json(diagnose([], command, troubles=[_ELSEWHERE] if self._is_elsewhere else []).document)
        bracket.finish()
        process = process_of(recording.to_json(loader=self._key, since_ns=self._since_ns))
        return as_json(diagnose([process], command).document)

    def screen(self) -> str:
        """Return the diagnosis as text: at most 24 lines of 100 columns."""
        from datapipe.diagnostics.report.screen import screen

        return screen(self.diagnosis())


def _can_be_kept(loader: Any) -> bool:
    """Return True if a loader can be registered in the session, which needs a hash and weak references."""
    try:
        weakref.ref(loader)
        hash(loader)
    except TypeError:
        return False
    return True


class _Shared:
    """The shared measurement of a process's monitors, kept so that passes of one loader add up."""

    def __init__(self) -> None:
        self.session = Session(self._open_watch)
        self.bracket: ThreadBracket | None = None
        self.recording: Recording | None = None
        self._num_open = 0
        self._lock = threading.Lock()
        self._lock_sampler = LockSampler()

    def open(self) -> bool:
        """Start measuring; return False if another tool already measures this process."""
        with self._lock:
            if loaders.current_session() not in (None, self.session):
                return False
            self._num_open += 1
            self._lock_sampler.start()
            loaders.set_session(self.session)
            loaders.patch_all()
            return True

    def close(self) -> None:
        """Undo one `open`."""
        with self._lock:
            self._num_open -= 1
            if not self._num_open:
                self._lock_sampler.stop()
            if not self._num_open and loaders.current_session() is self.session:
                loaders.set_session(None)

    def _open_watch(self, hooks: Hooks) -> Watch:
        from datapipe.diagnostics.attach.recording import Recording, open_bracket

        self.bracket = open_bracket(hooks)
        self.recording = Recording(self.bracket, lock=self._lock_sampler)
        return Watch(self.bracket, self.recording)


_shared = _Shared()
