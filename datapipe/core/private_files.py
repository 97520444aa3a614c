"""Create files and directories for this user alone, as what is kept reveals the user's data, its pixels, names and places.

Nobody else may read it, or put anything there for us to read, whatever the umask and the permissions of the data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def private_directory(path: Path) -> Iterator[int]:
    """Create the directory `path` if it does not exist, and open it: yields a descriptor, for the block.

    Its mode is 0700 from then on, and that of parent directories created here. Raises OSError if it cannot be created, is
    a symbolic link, or belongs to another user.
    """
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process created it, or it is a dangling link
            directory.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _make_private(descriptor, 0o700, path)
        yield descriptor
    finally:
        os.close(descriptor)


def open_private(name: str, directory: int, *, where: Path) -> int:
    """Open the file `name` of a directory, given by its descriptor, for reading and writing; create it if it does not exist.

    Its mode is 0600 from then on. Raises OSError for a symbolic link, an irregular file, and another user's file.
    `where`: the path of the directory, for messages.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(where / name))
        _make_private(descriptor, 0o600, where / name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_private(descriptor: int, mode: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to another user", os.fspath(path))
    if stat.S_IMODE(status.st_mode) & ~mode:
        os.fchmod(descriptor, mode)
