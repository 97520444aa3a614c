"""Keep the runs of conversions apart that share a destination, also across machines if the file system supports locks.

The kernel holds the locks (`flock`), so a killed process leaves none behind. Unlike lock libraries, this never creates the
directory of the lock: a finished destination must not be partly created again.

A run that dies may leave processes of its own on other machines for a while, and a *fence* keeps these from publishing what they
wrote. Each run writes a token of its own into a file of its part, and whoever publishes a shard compares the token first.
Publishing holds a shared lock on the file, writing a token an exclusive one, so that no process is between the comparison and its
last rename when the next run begins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from converters.options import Part
from datapipe.core import atomic, regular_files
from datapipe.core.waiting import Wait, reported_wait
from datapipe.errors import DatapipeError, FormatError, StorageError


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
        if not _lock(descriptor, path, wait=wait):
            yield False
            return
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise LockGoneError(str(path))
        yield True
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, wait: bool) -> bool:
    """Lock an open file; return False at once if another process has it locked and `wait` is False. Raises StorageError."""
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
            with reported_wait(f"the lock {path}", "another process holds it"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as exc:
        raise StorageError(f"{path}: cannot be locked ({exc.strerror}); choose a file system with locks") from exc
    return True


def is_held(path: Path) -> bool:
    """Return True if some process holds the lock at `path` at this moment."""
    with hold(path, wait=False) as is_free:
        return not is_free


T = TypeVar("T")
_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space within the quota",
    errno.EACCES: "check its permissions",
    errno.EROFS: "choose a file system that is not read-only",
}
_MAX_RECORD_NBYTES = 1 << 32
_SUFFIX = ".fence"
_WAIT_S = 120.0  # for processes that are publishing: some renames and small files each
_POLL_S = 0.02


def to_json(value: object) -> Any:
    """Return a dataclass, whose members may be paths, as JSON for a record, or for a process of this run."""
    return msgspec.to_builtins(value, enc_hook=os.fspath)


def from_json(value: object, kind: type[T]) -> T:
    """Return what `to_json` was given. Raises msgspec.ValidationError for a value that it did not make."""
    return msgspec.convert(value, kind, dec_hook=lambda kind, value: kind(value))


def read_record(path: Path, kind: type[T], what: str, remedy: str) -> T:
    """Return what an earlier run recorded as JSON. Raises FileNotFoundError, and FormatError for a file that no run wrote."""
    try:
        return from_json(json.loads(regular_files.read_bytes(path, at_most=_MAX_RECORD_NBYTES)), kind)
    except FormatError:
        raise
    except (ValueError, msgspec.ValidationError, RecursionError) as exc:  # 0.20's is no ValueError
        raise FormatError(f"{path}: not {what} ({exc!s:.100}); {remedy}") from exc


@contextlib.contextmanager
def translated(destination: Path) -> Iterator[None]:
    """Turn an OSError about the destination, and the end of another run's work there, into a StorageError with a remedy."""
    try:
        yield
    except DatapipeError:
        raise
    except LockGoneError as exc:
        raise StorageError(f"{destination}: another process ended a conversion into it; run the same command again") from exc
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        what = f"cannot be written: {exc.strerror or exc}{where}"
        remedy = _REMEDIES.get(exc.errno or 0, "resolve that")
        raise StorageError(f"{destination}: {what}; {remedy} and run the same command again: it resumes") from exc


@dataclass(frozen=True, slots=True)
class Fence:
    """A token that lets a process publish shards for one run."""

    path: Path
    token: str

    def temporary(self, name: str) -> str:
        """Return a name for a file of that name being written: no other process, on any machine, uses the same."""
        host = re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname())[:32]
        return f"{name}.{host}-{self.token}-{os.getpid()}{atomic.TEMPORARY_SUFFIX}"

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Publish within this block. Raises StorageError if another run has begun since, or finished the conversion."""
        with contextlib.ExitStack() as stack:
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise self._lost() from None
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.pread(descriptor, 256, 0) != self.token.encode():
                raise self._lost()
            yield

    def check(self) -> None:
        """Raise StorageError if another run has begun since, or finished the conversion."""
        with self.passed():
            pass

    def _lost(self) -> StorageError:
        return StorageError(
            f"{self.path.parent.parent}: another run has taken this conversion over; this one stops, and publishes nothing more"
        )


def begin_run(building: Path, part: Part) -> Fence:
    """Return the fence of a new run of `part`, and shut out earlier ones of it, and all that divided the shards differently.

    The caller holds the part's lock. Raises StorageError if a process of an earlier run does not stop publishing.
    """
    for path in building.glob(f"part-*{_SUFFIX}"):
        if not path.name.endswith(f"-of-{part.count}{_SUFFIX}"):
            _write(path, b"")
            path.unlink(missing_ok=True)
    fence = Fence(building / f"part-{part.index}-of-{part.count}{_SUFFIX}", secrets.token_hex(8))
    _write(fence.path, fence.token.encode())
    return fence


def _write(path: Path, token: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + _WAIT_S
        wait: Wait | None = None
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"{path.parent.parent}: a process of an earlier run has been publishing a shard for {_WAIT_S:.0f} s;"
                        " end it on the machine where it runs, and run the same command again"
                    ) from None
                wait = wait or Wait(f"{path}", "a process of an earlier run is publishing a shard")
                wait.report_if_long()
                time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, token, 0)
    finally:
        os.close(descriptor)
