"""Files that are complete or absent.

A file is written under a temporary name beside its final one, flushed to disk, and renamed; the
directory is flushed after the rename. A process killed at any moment leaves the old file, the new
file, or a temporary that every reader ignores.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TEMPORARY_SUFFIX = ".part"


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing; it appears, whole, when the block ends without an exception.

    The temporary name is unique to the process, so two writers of one path do not mix their bytes:
    the last to finish wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as sorted, indented JSON, atomically."""
    # file names may hold bytes that are not UTF-8; backslashreplace turns what stands for them into JSON escapes
    with atomic_writer(path) as file:
        file.write(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def move(source: Path, target: Path) -> None:
    """Rename within one file system and make the rename durable."""
    os.replace(source, target)
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk; where the file system has no such notion, do nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
