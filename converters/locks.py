"""Locks between processes that share a destination, also across machines if the file system supports it.

The kernel holds them (`flock`), so a killed process leaves none behind. Unlike lock libraries, this never creates the
directory of the lock: a finished destination must not be partly created again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.core.errors import StorageError


class LockGoneError(Exception):
    """The lock's directory was removed: its holder has finished the work."""


@contextlib.contextmanager
def hold(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock at `path` for the block; yield False at once if another process has it and `wait` is False.

    Raises LockGoneError if the directory does not exist, or no longer exists.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError as exc:
        raise LockGoneError(str(path)) from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as exc:
            raise StorageError(f"{path}: cannot be locked ({exc.strerror}); choose a file system with locks") from exc
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise LockGoneError(str(path))
        yield True
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return True if some process holds the lock at `path` at this moment."""
    with hold(path, wait=False) as is_free:
        return not is_free
