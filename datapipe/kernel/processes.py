"""Worker processes: they do the work of decode threads where the interpreter's lock would be fought over.

A thread that decodes takes the lock several times for each sample. With many threads, each of these times means to wake a thread
that sleeps, which bounds the rate on many cores, and delays each kernel that the training's own thread launches. A thread with a
worker process asks it for a whole piece of a batch, and takes the lock once for that.

The workers of a process are forked by its *launcher*: a fresh interpreter, so that a script needs no `if __name__ ==
"__main__"`, that has imported what workers need, and that has no context of CUDA. It takes about two seconds to start; until
then, and where it cannot start, threads do the work themselves, with the same results.

What a worker makes lies in memory of its own, which its thread maps and copies from, so that batches are this process's alone,
also after a fork. A process's end is the end of its sockets: workers end with those who ask them, also if these are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from datapipe.core.environment import importing_as_here
from datapipe.core.printable import get_logger
from datapipe.errors import OptionError
from datapipe.kernel.process_main import Failure, Handler, receive, send

FEWEST = 8  # workers of a loader from which on the lock costs more than processes do, and some 40 MB each
_WHERE = "DATAPIPE_WORKERS"  # "threads" or "processes", where users decide
_DIAGNOSIS = "DATAPIPE_ATTACH"  # by which `datapipe diagnose` reaches the processes of a training
_MAIN = "from datapipe.kernel.process_main import main; main()"  # under its own name, by which pickle finds its classes
_END_S = 2.0
_POLL_S = 0.01
_PATIENCE_S = 20.0

logger = get_logger(__name__)


class WorkerEndedError(Exception):
    """A worker process that has ended, or could not begin: its thread is to do the work itself."""


class WorkerProcess:
    """A worker that serves one thread of one process. Ends when it is collected.

    `make`: called in the worker; what it returns answers requests. Raises WorkerEndedError if the worker cannot be begun, and
    what `make` raised.
    """

    def __init__(self, launcher: Launcher, make: Callable[[], Handler]) -> None:
        self._connection = launcher.fork()
        weakref.finalize(self, self._connection.close).atexit = False  # threads may still be asking then
        _workers.add(self)
        self._directory = ""
        self._memory = memoryview(b"")
        answer = self._talk(make)
        if isinstance(answer, Failure):
            raise answer.error

    def ask(self, request: Any) -> tuple[Any, memoryview]:
        """Return the answer, and the worker's scratch memory, which the next request overwrites.

        Raises what the handler raised, and WorkerEndedError.
        """
        try:
            directory = os.getcwd()
        except OSError:  # it was removed
            directory = self._directory
        answer = self._talk((request, None if directory == self._directory else directory))
        self._directory = directory
        if isinstance(answer, Failure):
            raise answer.error
        return answer, self._memory

    def close(self) -> None:
        """End it."""
        self._connection.close()

    def _talk(self, message: Any) -> Any:
        try:
            send(self._connection, message)
            answer, descriptor = receive(self._connection)
            if descriptor is not None:
                try:
                    self._memory = memoryview(mmap.mmap(descriptor, 0))
                finally:
                    os.close(descriptor)
        except (OSError, EOFError, MemoryError) as exc:
            self.close()
            raise WorkerEndedError(f"a worker process ended ({exc}); its samples are made by a thread from now on") from exc
        except BaseException:
            self.close()  # the rest of an answer may be on its way
            raise
        return answer


class Launcher:
    """Forks the workers of this process. Thread-safe. `imports`: modules that workers need."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._is_ready: bool | None = None  # None: it is not known yet
        variables = {name: value for name, value in importing_as_here().items() if not name.startswith(_DIAGNOSIS)}
        # Libraries start no threads of their own: where there are none, nothing is lost by forking.
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        variables["CUDA_VISIBLE_DEVICES"] = ""  # a library that looks for GPUs would take half a gigabyte of one in each worker
        self._control, theirs = socket.socketpair()
        with theirs:
            # Without the current directory (-P), which the script's own interpreter need not look at either.
            command = [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno()), *imports]
            self._started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=variables,
                start_new_session=True,  # Ctrl-C in the terminal is for the training
            )

    @property
    def is_ready(self) -> bool:
        """Whether workers can be forked at once."""
        with self._lock:
            if self._is_ready is None:
                try:
                    self._is_ready = self._control.recv(1, socket.MSG_DONTWAIT) == b"r"
                except BlockingIOError:  # it has not said yet
                    return False
                except OSError:
                    self._is_ready = False
                if not self._is_ready:
                    logger.warning("there are no worker processes, as their launcher ended; threads make the batches")
        return bool(self._is_ready)

    def wait(self, timeout_s: float) -> bool:
        """Return whether workers can be forked, at the latest after so many seconds."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready and self._is_ready is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return bool(self._is_ready)

    def fork(self) -> socket.socket:
        """Return the connection to a new worker. Raises WorkerEndedError."""
        try:
            ours, theirs = socket.socketpair()
            with theirs, contextlib.ExitStack() as unless_sent, self._lock:
                unless_sent.callback(ours.close)
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                unless_sent.pop_all()
        except OSError as exc:
            raise WorkerEndedError(f"no worker process can be begun ({exc})") from exc
        return ours

    def end(self) -> None:
        """Let the launcher end; its workers end by themselves."""
        with self._lock:  # a thread that waits for it meanwhile is not told of a launcher that ended by itself
            was_ready, self._is_ready = self._is_ready, False
        if not was_ready:
            self._started.kill()  # it has none yet, and would import to the end
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(_END_S)

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        self._control.close()
        self._started.returncode = 0  # not to be waited for here
        self._is_ready = False


_launchers: dict[tuple[str, ...], Launcher] = {}
_launching = threading.Lock()
_workers: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def launcher(imports: Sequence[str]) -> Launcher | None:
    """Return this process's launcher of workers that need these modules, begun at the first call. None: it cannot be begun."""
    with _launching:
        found = _launchers.get(tuple(imports))
        if found is None and not getattr(sys, "frozen", False):  # then sys.executable is the application
            try:
                found = _launchers[tuple(imports)] = Launcher(imports)
            except Exception as exc:  # no memory, no interpreter that could be started, ...
                logger.warning("there are no worker processes (%s); threads make the batches", exc)
    return found


def wanted(num_workers: int) -> bool:
    """Return whether a loader with so many workers should have processes. Raises OptionError if the environment says neither."""
    asked = os.environ.get(_WHERE, "")
    if asked not in ("", "threads", "processes"):
        raise OptionError(f"{_WHERE} is {asked!r:.40} in the environment; set it to 'threads' or 'processes', or unset it")
    if asked == "threads" or not hasattr(os, "memfd_create"):
        return False
    return num_workers >= (1 if asked == "processes" else FEWEST)


def await_launcher(imports: Sequence[str], num_workers: int) -> None:
    """Wait until a loader with so many workers would have its processes from the start: to measure what it does later on."""
    begun = launcher(imports) if wanted(num_workers) else None
    if begun is not None:
        begun.wait(_PATIENCE_S)


@atexit.register
def _end_all() -> None:
    for found in _launchers.values():
        found.end()


def _after_fork() -> None:
    """In a forked child: the parent's workers would outlive it if the child kept their connections."""
    global _launching
    _launching = threading.Lock()
    for worker in list(_workers):
        worker.close()
    for found in _launchers.values():
        found.forget()
    _launchers.clear()


os.register_at_fork(after_in_child=_after_fork)
