"""Run worker processes: the launcher forks them, and each answers requests until its asker is gone. See `processes`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from typing import Any

_HEAD = struct.Struct("<QQ")  # the bytes of a message, and how many descriptors come with it
_GROWTH = 1.5  # of scratch memory, so that it seldom grows

# Does the work of one request; what it returns is the answer. `Scratch` takes what is too large to be sent.
Handler = Callable[[Any, "Scratch"], Any]


class Scratch:
    """Memory that a worker shares with its asker, which reads it before it asks again. An anonymous file, memfd_create(2)."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._untold: list[int] = []  # the descriptor, until the asker has it

    def take(self, nbytes: int) -> memoryview:
        """Return that much of it, writable; what it held before is gone."""
        if self._memory is None or len(self._memory) < nbytes:
            self._untold = [os.memfd_create("datapipe-worker", os.MFD_CLOEXEC)]
            os.ftruncate(self._untold[0], max(1, int(_GROWTH * nbytes)))
            self._memory = mmap.mmap(self._untold[0], 0)
        return memoryview(self._memory)[:nbytes]

    def tell(self) -> list[int]:
        """Return the descriptor, if the asker does not have it yet; the caller sends and closes it."""
        told, self._untold = self._untold, []
        return told


def send(connection: socket.socket, value: Any, descriptors: list[int] | None = None) -> None:
    """Send a value that pickle takes, and at most one descriptor, which stays open here."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    socket.send_fds(connection, [_HEAD.pack(len(data), len(descriptors or ()))], descriptors or [])
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, int | None]:
    """Return what the other side sent, and its descriptor. Raises EOFError if there is no other side, or no descriptor, any more.

    After any error the connection is of no use: the rest of a message may be in it.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, _HEAD.size, 1)
    try:
        while len(head) < _HEAD.size:
            head += _some(connection.recv(_HEAD.size - len(head)))
        nbytes, num_descriptors = _HEAD.unpack(head)
        if num_descriptors != len(descriptors):
            raise EOFError("no file can be opened any more")
        data = memoryview(bytearray(nbytes))
        num = 0
        while num < nbytes:
            num += len(_some(data[num : num + connection.recv_into(data[num:])]))
        return pickle.loads(data), descriptors[0] if descriptors else None
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _some(data: Any) -> Any:
    if not len(data):
        raise EOFError("the other process has ended")
    return data


def main() -> None:
    """Import what workers need, say so, and fork a worker for each connection that comes. Ends with the process that began it."""
    warnings.simplefilter("ignore")
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child is waited for
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # the worker that needs it says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that collections in workers do not copy the pages that they share
    with contextlib.suppress(ConnectionError):  # the training has ended already
        control.sendall(b"r")
    while True:
        descriptors: list[int] = []
        with contextlib.suppress(ConnectionError):
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            os._exit(0)  # at once: the training may be waiting for it
        if os.fork() == 0:
            control.close()
            try:
                with socket.socket(fileno=descriptors[0]) as connection:
                    _serve(connection)
            finally:
                os._exit(0)  # neither this process's nor the launcher's cleanup is due
        os.close(descriptors[0])


def _serve(connection: socket.socket) -> None:
    """Make the handler that the first message describes, and answer requests until the asker is gone."""
    scratch = Scratch()
    try:
        try:
            make, _ = receive(connection)
            handler: Handler = make()
        except (EOFError, ConnectionError):
            raise
        except Exception as exc:
            send(connection, Failure.of(exc))
            return
        send(connection, None)
        while True:
            (request, directory), _ = receive(connection)
            try:
                if directory is not None:
                    os.chdir(directory)
                answer = handler(request, scratch)
            except Exception as exc:
                answer = Failure.of(exc)
            told = scratch.tell()
            send(connection, answer, told)
            for descriptor in told:
                os.close(descriptor)
    except (EOFError, OSError):
        return


class Failure:
    """An exception of a worker, for the thread that asked."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return one that pickle takes, with the same words."""
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return cls(RuntimeError(f"{type(error).__qualname__}: {error}"))
        return cls(error.with_traceback(None))
