"""Work that several processes would do at once, done by one of them: the others wait, and find it done."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import filelock

NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))  # what file systems without flock(2) answer


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock at `path` for the block, as long as another process holds it wait.

    Only for work that may as well be done by several processes at once: on a file system without locks nobody waits. A
    lock file in place of the kernel's lock would outlive a killed process there. Raises OSError where `path` cannot be made.
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
