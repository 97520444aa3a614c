"""Files of values that cannot be read at random in their source, as they are compressed together: unpacked once, in order.

A spooled file bears the modification time of the source's file, and appears when it is complete, so that a run that goes on
with a conversion finds it and does not write it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import IO

from converters.sources import Workspace
from datapipe.core import atomic


class SpoolWriter:
    """A spooled file being written, or one that is complete, of which only the places are counted again."""

    def __init__(self, name: bytes, sink: IO[bytes] | None) -> None:
        self.name = name  # in the spool
        self.position = 0  # bytes
        self._sink = sink

    @property
    def is_complete(self) -> bool:
        """True if an earlier run wrote the file."""
        return self._sink is None

    def put(self, data: bytes) -> int:
        """Append a value and return its offset."""
        offset = self.position
        self.position += len(data)
        if self._sink is not None:
            self._sink.write(data)
        return offset


@contextlib.contextmanager
def spooled(space: Workspace, path: bytes, *, nbytes: int, mtime_ns: int) -> Iterator[SpoolWriter]:
    """Open the spooled file of the source's file `path` (relative to its root), which has that size and time.

    The file appears when the block ends without an exception. Raises OSError.
    """
    digest = hashlib.sha256(b"%d %d " % (nbytes, mtime_ns) + path).hexdigest()[:32]
    target = space.spool / digest
    if target.exists():
        yield SpoolWriter(digest.encode(), None)
        return
    space.spool.mkdir(exist_ok=True)
    with atomic.atomic_writer(target) as sink:
        yield SpoolWriter(digest.encode(), sink)
        sink.flush()
        os.utime(sink.fileno(), ns=(mtime_ns, mtime_ns))
