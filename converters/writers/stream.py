"""The file of a shard while it is written from front to back: buffered, hashed, written, flushed to disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_WRITE_NBYTES = 4 << 20  # buffered before they are written


class ShardStream:
    """An open file that only grows. Not thread-safe; raises OSError as the file system does."""

    def __init__(self, path: Path, *, start: int = 0, on_write: Callable[[bytes], object] = lambda data: None) -> None:
        """Create `path`, which must not exist; the first byte goes to `start`. `on_write` gets all that is written."""
        self.position = start  # where the next byte goes
        self._on_write = on_write
        self._parts: list[bytes] = []
        self._buffered = 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.lseek(self.descriptor, start, os.SEEK_SET)

    def put(self, *parts: bytes) -> None:
        """Append bytes."""
        nbytes = sum(map(len, parts))
        self._parts.extend(parts)
        self.position += nbytes
        self._buffered += nbytes
        if self._buffered >= _WRITE_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the buffered bytes to the operating system."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        self._on_write(data)
        write_all(self.descriptor, data)

    def finish(self) -> None:
        """Flush everything to disk and close."""
        self.flush()
        os.fsync(self.descriptor)
        os.close(self.descriptor)

    def abandon(self) -> None:
        """Close without finishing."""
        os.close(self.descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` at the file's current position."""
    view = memoryview(data)
    while view:  # a full disk accepts a part first and fails at the next call
        view = view[os.write(descriptor, view) :]
