"""What runs in worker processes: a launcher that forks them, and the loop in which each does its work. See `processes`."""

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
from collections.abc import Callable, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_MAX_DESCRIPTORS = 4

# Does the work of one request. The second argument maps memory that the asker shares: (its number, bytes) -> a writable buffer.
Handler = Callable[[Any, Callable[[int, int], memoryview]], "tuple[Any, Sequence[int]]"]


def send(connection: socket.socket, value: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a value that pickle takes, and descriptors, which stay open here."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    socket.send_fds(connection, [_LENGTH.pack(len(data))], list(descriptors))
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return what the other side sent, and its descriptors. Raises EOFError if there is no other side any more."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MAX_DESCRIPTORS)
    while len(head) < _LENGTH.size:
        more = connection.recv(_LENGTH.size - len(head))
        if not more:
            raise EOFError("the other process has ended")
        head += more
    data = memoryview(bytearray(_LENGTH.unpack(head)[0]))
    num = 0
    while num < len(data):
        got = connection.recv_into(data[num:])
        if not got:
            raise EOFError("the other process has ended")
        num += got
    return pickle.loads(data), list(descriptors)


def main() -> None:
    """Import what workers need, say so, and fork a worker for each connection that comes. Ends with the process that began it."""
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
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            os._exit(0)  # at once: the training may be waiting for it
        (descriptor,) = descriptors
        if os.fork() == 0:
            control.close()
            try:
                _serve(socket.socket(fileno=descriptor))
            finally:
                os._exit(0)  # neither this process's nor the launcher's cleanup is due
        os.close(descriptor)


def _serve(connection: socket.socket) -> None:
    """Make the handler that the first message describes, and answer requests until the asker is gone."""
    memory: dict[int, mmap.mmap] = {}

    def mapped(number: int, nbytes: int) -> memoryview:
        return memoryview(memory[number])[:nbytes]

    try:
        try:
            make, _ = receive(connection)
            handler: Handler = make()
        except Exception as exc:
            send(connection, Failure.of(exc))
            return
        send(connection, None)
        while True:
            (request, arriving, gone), descriptors = receive(connection)
            for number, descriptor in zip(arriving, descriptors, strict=True):
                memory[number] = mmap.mmap(descriptor, 0)
                os.close(descriptor)
            for number in gone:
                memory.pop(number, None)
            try:
                answer, made = handler(request, mapped)
            except Exception as exc:
                answer, made = Failure.of(exc), ()
            send(connection, answer, made)
            for descriptor in made:
                os.close(descriptor)
    except (EOFError, ConnectionError):
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
