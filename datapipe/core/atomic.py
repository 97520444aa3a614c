"""Write files so that they are complete or absent.

A file is written under a temporary name next to its final one, flushed to disk, and renamed; the
directory is flushed after the rename. A process killed at any moment leaves the old file, the new
file, or a temporary that every reader ignores. A rename replaces anything of that name, also a device
or a named pipe, so the present file is checked first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from datapipe.errors import StorageError

TEMPORARY_SUFFIX = ".part"
_NAME_LENGTH = 50  # characters of the name that its temporary keeps, within the file system's limit


def refuse_to_replace(path: Path) -> None:
    """Raise StorageError unless `path` is a regular file or does not exist: the places that may be written.

    A symbolic link is refused too, as it may lead anywhere; so is a name that the file system does not accept.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StorageError(exc.errno, f"cannot be written ({exc.strerror}); choose another place", os.fspath(path)) from exc
    except ValueError as exc:
        raise StorageError(errno.EINVAL, f"is not a valid file name ({exc})", os.fspath(path)) from exc
    if not stat.S_ISREG(mode):
        what = next((what for is_one, what in _IRREGULAR if is_one(mode)), "not a regular file")
        raise StorageError(errno.EEXIST, f"is {what} and would be replaced; choose another place", os.fspath(path))


_IRREGULAR = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that the user asked for, such as a picture. Raises StorageError if it cannot be written."""
    try:
        with atomic_writer(path) as file:
            write(file)
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be written ({exc.strerror}); choose another place") from exc


@contextlib.contextmanager
def atomic_writer(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open `path` for writing; it appears, whole, when the block ends without an exception.

    `mode`: that of the new file, less the umask. `durable`: whether to wait until the disk has it. The temporary name is unique,
    so two writers of one path do not mix their bytes: the last to finish wins. Raises as `refuse_to_replace`, and OSError.
    """
    refuse_to_replace(path)
    temporary = path.with_name(f".{path.name[:_NAME_LENGTH]}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o666) -> None:
    """Write `value` as sorted, indented JSON, atomically."""
    # file names may hold bytes that are not UTF-8; backslashreplace turns their surrogates into JSON escapes
    with atomic_writer(path, mode=mode) as file:
        file.write(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the bytes to an open file, from that offset on. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def move(source: Path, target: Path) -> None:
    """Rename within one file system and make the rename durable."""
    os.replace(source, target)
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk; does nothing if the file system does not support it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
