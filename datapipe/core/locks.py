"""Let one of several processes do a piece of work while the others wait, and then find it done."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import filelock

NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))  # the errors of file systems without flock(2)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock at `path` for the block; wait while another process holds it.

    Only for work that several processes may also do at once: on a file system without locks nobody waits. A
    lock file in place of the kernel's lock would outlive a killed process there. Raises OSError if `path` cannot be created.
    """
    lock = filelock.FileLock(path)
    try:
        lock.acquire()
    except NotImplementedError:  # an older filelock's name for ENOSYS
        pass
    except OSError as exc:
        if exc.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()
