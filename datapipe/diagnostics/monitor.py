"""`Monitor`: measure a loader in the process that uses it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from datapipe.diagnostics.live import EVERY, Live, log_to
from datapipe.errors import OptionError, StorageError
from datapipe.instruments.attach import loaders
from datapipe.instruments.attach.exchanges import ExchangeReader
from datapipe.instruments.attach.lock_sampler import LockSampler
from datapipe.instruments.attach.session import Session
from datapipe.instruments.measure.watching import Hooks, Watch

if TYPE_CHECKING:
    from datapipe.instruments.attach.recording import Recording
    from datapipe.instruments.measure.bracket import ThreadBracket
    from datapipe.instruments.measure.recorded import Process

MIN_STEPS_OF_WINDOW = 32
_ELSEWHERE = "this process runs under `datapipe diagnose`, which will write the diagnosis"


class Monitor:
    """Passes on a loader's batches unchanged, measures how long the training waits for them, and says so.

    >>> for images, labels in datapipe.Monitor(loader, log=writer, saves="run.dpr"):
    ...     train(images, labels)

    Where data starves the training, one line on the standard error says so after the first 200 steps, and another one if the
    loop comes to wait longer later on; `quiet` leaves them out. Other than that a monitor only keeps what it measures: it costs
    about 1% of steps of 20 ms, however many there are, and bounded memory.

    `loader`: torch's, datapipe's, or any iterable; attributes that the monitor lacks are the loader's. None: whatever the
    process iterates within `with`, for a framework that has the loop. `log`: takes figures every `every` training steps: a
    function of a dict and the number of steps, TensorBoard's SummaryWriter, W&B's run, the module mlflow, Lightning's loggers,
    or an Accelerator. The figures: "data/waiting" (share of the time spent waiting for data, 0 to 1), "data/waiting/STAGE" (the
    same by stage), "data/supply" (samples/s that the loader can make), "data/demand" (that the loop would take if it never
    waited). `saves`: a directory to record the run in, a file for each process, for `datapipe diagnose DIRECTORY`; what an
    earlier run has recorded there for the same rank is replaced.

    Without `with`, a `for` over the monitor is measured until it ends or is left. Use it in the training thread: all monitors of
    a process share one clock, which is that thread's, so that a pass over one loader within a step of another is distinguished.
    In a script that runs under `datapipe diagnose`, monitors only pass batches on.

    Raises OptionError for arguments that make no sense, and StorageError for a directory that cannot be made.
    """

    def __init__(
        self,
        loader: Any = None,
        *,
        log: Any = None,
        every: int = EVERY,
        saves: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> None:
        if every < MIN_STEPS_OF_WINDOW:
            raise OptionError(f"every={every}: figures are those of at least {MIN_STEPS_OF_WINDOW} steps")
        self._loader = loader
        self._key: int | None = None  # its number in the session; None: not iterated yet, or all loaders
        self._since_ns = time.perf_counter_ns()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._is_elsewhere = False
        self._num_open = 0
        self._saves = None if saves is None else Path(saves)
        more = "run it by `datapipe diagnose` to see why" if saves is None else f"`datapipe diagnose {saves}` says more"
        logs = None if log is None else log_to(log)
        self._live = Live(self._latest, log=logs, every=every, more=more, writes=not quiet, judged=_shared.judged)

    def __enter__(self) -> Self:
        self._is_elsewhere = not _shared.open(self._live, self._saves)
        self._num_open += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._num_open -= 1
        if not self._is_elsewhere:
            _shared.close(self._live)

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise OptionError("a Monitor of no loader has no batches: `with Monitor():` around the training, or Monitor(loader)")
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
    def is_open(self) -> bool:
        """Whether it measures at the moment."""
        return self._num_open > 0

    def figures(self) -> dict[str, float] | None:
        """Return the figures of the latest `every` steps, by name, once; None: they are not known yet, or `log` has them."""
        window = self._live.take()
        return None if window is None else window.figures()

    def _latest(self, num_steps: int) -> Process:
        assert _shared.recording is not None
        found = _shared.recording.process(latest=num_steps)
        return found.part(self._key, since_ns=self._since_ns)

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

        command = Command((), None, self._started_at, (time.perf_counter_ns() - self._since_ns) * 1e-9)
        bracket, recording = _shared.bracket, _shared.recording
        is_new = self._loader is not None and self._key is None
        if self._is_elsewhere or is_new or bracket is None or recording is None:
            return as_json(diagnose([], command, troubles=[_ELSEWHERE] if self._is_elsewhere else []).document)
        bracket.finish()
        process = recording.process().part(self._key, since_ns=self._since_ns)
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
        self._lives: list[Live] = []  # of the monitors that are open
        self._directory: Path | None = None  # the latest that a monitor has named
        self._saves_since_ns = 0
        self._lock = threading.Lock()
        self._lock_sampler = LockSampler()
        self._exchanges = ExchangeReader()

    def open(self, live: Live, directory: Path | None) -> bool:
        """Start measuring; return False if another tool already measures this process."""
        with self._lock:
            if loaders.current_session() not in (None, self.session):
                return False
            if directory is not None and self._directory != directory:
                try:
                    directory.mkdir(parents=True, exist_ok=True)
                except OSError as exc:
                    raise StorageError(f"saves={directory}: cannot be made ({exc.strerror}); name another directory") from exc
                self._directory, self._saves_since_ns = directory, time.perf_counter_ns()
                if self.recording is not None:
                    self.recording.save_into(directory, since_ns=self._saves_since_ns)
            live.open(0 if self.bracket is None else self.bracket.timeline.training.num_steps)
            self._lives.append(live)
            self._lock_sampler.start()
            loaders.set_session(self.session)
            loaders.patch_all()
            return True

    def close(self, live: Live) -> None:
        """Undo one `open`."""
        live.close()
        with self._lock:
            self._lives.remove(live)
            if self._lives:
                return
            self._lock_sampler.stop()
            if loaders.current_session() is self.session:
                loaders.set_session(None)
            if self._directory is not None and self.bracket is not None and self.recording is not None:
                self.bracket.finish()
                self.recording.save()

    def _open_watch(self, hooks: Hooks) -> Watch:
        from datapipe.instruments.attach.recording import Recording, open_bracket

        self.bracket = open_bracket(hooks, on_read=self._tell)
        self.recording = Recording(self.bracket, lock=self._lock_sampler, exchanges=self._exchanges)
        if self._directory is not None:
            self.recording.save_into(self._directory, since_ns=self._saves_since_ns)
        return Watch(self.bracket, self.recording)

    def judged(self, is_starved: bool) -> None:
        """Look at Python's lock only as long as the training waits: looking takes a hundredth of a core."""
        with self._lock:
            if not is_starved or not self._lives:
                self._lock_sampler.stop()
            else:
                self._lock_sampler.start()

    def _tell(self, num_steps: int) -> None:
        self._exchanges(num_steps)
        for live in self._lives:
            live(num_steps)


_shared = _Shared()
