"""Locate, write and use what is kept for the user between runs. Losing it costs the time to make it again.

It is for this user alone, as it reveals the user's data, its pixels, names and places: nobody else may read it, or put anything
there for us to read, whatever the umask and the permissions of the data.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import filelock
import platformdirs

from datapipe.core import atomic
from datapipe.core.printable import get_logger
from datapipe.core.regular_files import read_bytes
from datapipe.core.waiting import reported_wait
from datapipe.errors import StorageError

T = TypeVar("T")

_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))  # the errors of file systems without flock(2)

# Indexes of data that others wrote; decoded images; rates of backends on this machine; whether a GPU decodes regions.
INDEXES, IMAGES, RATES, TRIALS = "index", "decoded", "calibration", "trials"
# Of datasets in object stores: their indexes, cached shards, and conversions before their upload.
REMOTE_INDEXES, REMOTE_SHARDS, STAGED = "remote-index", "remote-shards", "staged"
HUB = "hub"  # what the Hub of Hugging Face has answered
TABLES = "tables"  # finished rows of tables
UNPACKED = "unpacked"  # recordings that lie compressed in shards

logger = get_logger(__name__)


def user_cache(name: str) -> Path:
    """Return the directory of one kind, which need not exist.

    It lies in the user's cache directory. A user without a home that can be written, as in many containers, has it in the
    temporary directory instead; a warning says so. Raises StorageError if that place belongs to another user.
    """
    return _root() / name


def _root() -> Path:
    try:
        usual = platformdirs.user_cache_path("datapipe")
    except RuntimeError:  # neither HOME nor an entry in /etc/passwd
        usual = Path("~")  # as older releases say it
    if os.environ.get("XDG_CACHE_HOME") or (usual.is_absolute() and _can_be_written(usual)):
        return usual
    reason = f"{usual} cannot be written" if usual.is_absolute() else "there is no home directory"
    instead = Path(tempfile.gettempdir()) / f"datapipe-{os.geteuid()}"
    _create(instead, "nothing can be kept")
    _warn_of(reason, instead)
    return instead


def _can_be_written(path: Path) -> bool:
    """Return True if the directory can be written, or created."""
    nearest = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    return os.access(nearest, os.W_OK | os.X_OK)


@functools.cache
def _warn_of(reason: str, instead: Path) -> None:
    """Warn once in a process."""
    logger.warning("%s: indexes and caches are kept in %s; set XDG_CACHE_HOME to keep them elsewhere", reason, instead)


def index_directory(kind: str, name: str) -> Path:
    """Create the directory of one index of that kind. Raises StorageError if nothing can be kept there."""
    home = user_cache(kind) / name
    _create(home, "the index cannot be kept")
    return home


def _create(path: Path, failure: str) -> None:
    """Create a private directory. Raises StorageError, which says `failure`."""
    try:
        with private_directory(path):
            pass
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: {failure} there ({exc.strerror}); set XDG_CACHE_HOME") from exc


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


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock at `path` for the block; wait while another process holds it.

    Only for work that several processes may also do at once: on a file system without locks nobody waits. A
    lock file in place of the kernel's lock would outlive a killed process there. Raises OSError if `path` cannot be created.
    """
    lock = filelock.FileLock(path)
    try:
        with reported_wait(f"the lock {path}", "another process holds it"):
            lock.acquire()
    except NotImplementedError:  # an older filelock's name for ENOSYS
        pass
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def remembered(
    kind: str,
    circumstances: Mapping[str, Any],
    *,
    make: Callable[[], Any],
    parse: Callable[[Any], T],
    is_kept: Callable[[T], bool] = lambda found: True,
) -> T:
    """Return the earlier result of `make` under the same circumstances, or call it now and keep the result.

    `circumstances` and the result of `make` are JSON-safe. `parse` turns the latter into the returned value; if it raises
    ValueError, KeyError or TypeError on a kept result, the result is made again. A result for which `is_kept` is False is
    returned and not kept. One of several processes calls `make`, and the others wait. If nothing can be kept, a warning is logged
    and `make` is called each time.
    """
    name = hashlib.sha256(json.dumps(dict(circumstances), sort_keys=True).encode()).hexdigest()[:16]
    path = user_cache(kind) / f"{name}.json"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(private_directory(path.parent))
            stack.enter_context(one_at_a_time(path.with_suffix(".lock")))
        except OSError as exc:
            logger.warning("%s cannot be kept in %s (%s); every process makes it again", kind, path.parent, exc)
            return parse(make())
        try:
            return parse(json.loads(read_bytes(path))["found"])
        except (OSError, ValueError, KeyError, TypeError):
            found = make()
        if not is_kept(parsed := parse(found)):
            return parsed
        try:
            atomic.write_json(path, {"circumstances": dict(circumstances), "found": found}, mode=0o600)
        except OSError as exc:
            logger.warning("%s cannot be kept in %s (%s)", kind, path.parent, exc)
        return parsed
