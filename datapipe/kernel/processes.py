"""Worker processes: they do the work of decode threads where the interpreter's lock would be fought over.

A thread that decodes takes the lock several times for each sample. With many threads, each of these times means to wake a thread
that sleeps, which on 16 cores bounds the rate to a few thousand samples a second, and delays each kernel that the training's own
thread launches. A thread that has a worker process asks it for a whole piece of a batch, and takes the lock once for that.

The workers of a process are forked by its *launcher*: a fresh interpreter, so that a script needs no `if __name__ ==
"__main__"`, that has imported what workers need, and that has no threads and no CUDA context. It takes about two seconds to
start; until then, and where it cannot start, threads do the work themselves, with the same results.

A process's end is the end of its sockets: workers end with those who ask them, also if these are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from datapipe.core.printable import get_logger
from datapipe.kernel import shared_slabs
from datapipe.kernel.process_main import Failure, Handler, receive, send
from datapipe.kernel.shared_slabs import Slab

FEWEST = 4  # workers of a loader from which on processes pay for their memory, some 40 MB each
_WHERE = "DATAPIPE_WORKERS"  # "threads" or "processes", where users decide
_DIAGNOSIS = "DATAPIPE_ATTACH"  # by which `datapipe diagnose` reaches the processes of a training
_MAIN = "from datapipe.kernel.process_main import main; main()"  # under its own name, by which pickle finds its classes
_END_S = 2.0

logger = get_logger(__name__)


class WorkerEndedError(Exception):
    """A worker process that has ended, or could not begin: its thread is to do the work itself."""


class WorkerProcess:
    """A worker that serves one thread. Ends when it is collected.

    `make`: called in the worker; what it returns answers requests. Raises WorkerEndedError if the worker cannot be begun.
    """

    def __init__(self, launcher: Launcher, make: Callable[[], Handler]) -> None:
        self._connection = launcher.fork()
        self._process = os.getpid()
        self._known: set[int] = set()  # slabs that the worker maps
        weakref.finalize(self, self._connection.close)
        self._talk(make, ())

    def ask(self, request: Any, slabs: Iterable[Slab] = ()) -> tuple[Any, list[int]]:
        """Return the answer, and the descriptors that came with it. Raises what the handler raised, and WorkerEndedError.

        `slabs`: shared memory that the request names by its numbers.
        """
        arriving = [slab for slab in slabs if slab.number not in self._known]
        gone = [number for number in self._known if not shared_slabs.exists(number)]
        found = self._talk((request, [slab.number for slab in arriving], gone), [slab.descriptor for slab in arriving])
        self._known.update(slab.number for slab in arriving)
        self._known.difference_update(gone)
        return found

    def _talk(self, message: Any, descriptors: Sequence[int]) -> tuple[Any, list[int]]:
        assert os.getpid() == self._process, "a forked process has no workers of its parent's"
        try:
            send(self._connection, message, descriptors)
            answer, made = receive(self._connection)
        except (OSError, EOFError) as exc:
            raise WorkerEndedError(f"a worker process ended ({exc}); its samples are made by a thread from now on") from exc
        if isinstance(answer, Failure):
            raise answer.error
        return answer, made


class Launcher:
    """Forks the workers of this process. Thread-safe. `imports`: modules that workers need."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._is_ready = False
        self._is_lost = False
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_DIAGNOSIS)}
        # Libraries start no threads of their own: where there are none, nothing is lost by forking.
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        command = [sys.executable, "-c", _MAIN, str(theirs.fileno()), *imports]
        try:
            self._started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=variables,
                start_new_session=True,  # Ctrl-C in the terminal is for the training
            )
        finally:
            theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether workers can be forked at once."""
        return self._is_ready or self._await(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Return whether workers can be forked, at the latest after so many seconds."""
        return self._is_ready or self._await(timeout_s)

    def fork(self) -> socket.socket:
        """Return the connection to a new worker. Raises WorkerEndedError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                raise WorkerEndedError(f"no worker process can be begun ({exc})") from exc
        return ours

    def end(self) -> None:
        """Let the launcher end; its workers end by themselves."""
        if not self._is_ready:
            self._started.kill()  # it has none yet, and would import to the end
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(_END_S)

    def _await(self, timeout_s: float) -> bool:
        with self._lock:
            if not (self._is_ready or self._is_lost):
                self._control.settimeout(timeout_s)
                with contextlib.suppress(BlockingIOError, TimeoutError):  # not yet
                    self._is_ready = self._control.recv(1) == b"r"
                    self._is_lost = not self._is_ready
                self._control.settimeout(None)
                if self._is_lost:
                    logger.warning("there are no worker processes, as their launcher ended; threads make the batches")
        return self._is_ready


_launchers: dict[tuple[str, ...], Launcher] = {}
_launching = threading.Lock()


def launcher(imports: Sequence[str]) -> Launcher | None:
    """Return this process's launcher of workers that need these modules, begun at the first call. None: it cannot be begun."""
    with _launching:
        found = _launchers.get(tuple(imports))
        if found is None:
            try:
                found = _launchers[tuple(imports)] = Launcher(imports)
            except (OSError, ValueError) as exc:  # no memory, or no interpreter that could be started
                logger.warning("there are no worker processes (%s); threads make the batches", exc)
    return found


def wanted(num_workers: int) -> bool:
    """Return whether a loader with so many workers should have processes."""
    asked = os.environ.get(_WHERE, "")
    return (
        hasattr(os, "memfd_create") and asked != "threads" and num_workers > 0 and (asked == "processes" or num_workers >= FEWEST)
    )


@atexit.register
def _end_all() -> None:
    for found in _launchers.values():
        found.end()


def _after_fork() -> None:
    """In a forked child: the parent's launcher is none of its own."""
    global _launching
    _launching = threading.Lock()
    for found in _launchers.values():
        found._control.close()
        found._started.returncode = 0  # it is no child of this process
    _launchers.clear()


os.register_at_fork(after_in_child=_after_fork)
