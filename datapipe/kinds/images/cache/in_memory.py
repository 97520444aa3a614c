"""Keep stores in memory, shared by the processes of a node and freed with the last of them.

They are anonymous files (memfd_create(2)): they have no name and no size limit of a /dev/shm, and the kernel frees them when
the last process that has them open ends, however it ends. Other processes find them through `/proc/PID/fd`, by a small list of
holders, kept under a lock. Processes that do not see each other (other users, other containers) have stores of their
own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from datapipe.core.printable import get_logger
from datapipe.core.waiting import reported_wait
from datapipe.errors import StorageError
from datapipe.kinds.images.cache.store import StoreFiles

logger = get_logger(__name__)

_held: dict[str, _Held] = {}  # until this process ends: a new loader finds what an earlier one kept


class _Held(NamedTuple):
    files: StoreFiles
    token: str
    process: int  # the process in the list with it; another one after a fork


class Holder(NamedTuple):
    """A process that has a store open."""

    name: str  # of the store
    process: int
    token: str  # which of the stores that have had that name
    index_descriptor: int  # in that process
    data_descriptor: int


def open_in_memory(name: str) -> StoreFiles:
    """Return the files of the store of that name: those that a process of this node holds, else new ones.

    They stay open until this process ends. Raises StorageError if the system has no such files.
    """
    held = _held.get(name)
    if held is not None and held.process == os.getpid():
        return held.files
    with _locked_list() as descriptor:
        holders = [holder for holder in _read(descriptor) if _is_there(holder)]
        held = _held.get(name)
        if held is None or held.process != os.getpid():
            files, token = held[:2] if held is not None else _shared_store(name, holders) or _made(name)
            held = _held[name] = _Held(files, token, os.getpid())
            holders.append(Holder(name, os.getpid(), token, files.index, files.data))
            _write(descriptor, holders)
    return held.files


def _made(name: str) -> tuple[StoreFiles, str]:
    token = secrets.token_hex(8)
    opened: list[int] = []
    try:
        for part in ("index", "data"):
            opened.append(os.memfd_create(_file_name(name, token, part), os.MFD_CLOEXEC))  # noqa: PERF401  # closed on error
    except (OSError, AttributeError) as exc:
        for descriptor in opened:
            os.close(descriptor)
        raise StorageError(f"cache='ram': the system provides no memory to share ({exc}); pass cache='disk'") from exc
    return StoreFiles(*opened, where="memory", in_memory=True), token


def _shared_store(name: str, holders: list[Holder]) -> tuple[StoreFiles, str] | None:
    """Return the files of the store of that name that another process holds, and its token."""
    for holder in holders:
        if holder.name != name:
            continue
        opened: list[int] = []
        try:
            for descriptor in (holder.index_descriptor, holder.data_descriptor):
                opened.append(os.open(f"/proc/{holder.process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))  # noqa: PERF401
        except OSError as exc:
            for descriptor in opened:
                os.close(descriptor)
            if not isinstance(exc, FileNotFoundError):
                logger.warning("cache='ram': that of process %d cannot be shared (%s)", holder.process, exc)
            continue
        return StoreFiles(*opened, where="memory", in_memory=True), holder.token
    return None


def _is_there(holder: Holder) -> bool:
    """Return True if the process still has the files open. Its number may have been reused since."""
    for descriptor, part in ((holder.index_descriptor, "index"), (holder.data_descriptor, "data")):
        try:
            target = os.readlink(f"/proc/{holder.process}/fd/{descriptor}")
        except PermissionError:
            return True  # unknown; opening it fails too, and reports that
        except OSError:
            return False
        if target != f"/memfd:{_file_name(holder.name, holder.token, part)} (deleted)":
            return False
    return True


def _file_name(name: str, token: str, part: str) -> str:
    return f"datapipe-{name}-{token}-{part}"


# -- the list ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked_list() -> Iterator[int]:
    """Open and lock the list of holders. Yields its descriptor."""
    path = _list_path()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StorageError(exc.errno, f"cache='ram': {path}: cannot be opened ({exc.strerror}); pass cache='disk'") from exc
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise StorageError(f"cache='ram': {path}: belongs to another user; remove it, or pass cache='disk'")
        try:
            with reported_wait(f"the lock {path}", "another process holds it"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as exc:
            raise StorageError(
                exc.errno,
                f"cache='ram': {path}: cannot be locked ({exc.strerror}); point TMPDIR at a local disk, or pass no cache",
            ) from exc
        yield descriptor
    finally:
        os.close(descriptor)


def _list_path() -> str:
    """Return the path of the list: one for each user and PID namespace, as numbers in another namespace mean other processes."""
    space = os.stat("/proc/self/ns/pid").st_ino
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else tempfile.gettempdir()
    return os.path.join(directory, f"datapipe-caches-{os.geteuid()}-{space}")


def _read(descriptor: int) -> list[Holder]:
    """Return the holders; none if the list is damaged because a process was killed while it wrote."""
    with contextlib.suppress(ValueError, TypeError):
        listed: Any = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0) or b"[]")
        return [Holder(*line) for line in listed]
    return []


def _write(descriptor: int, holders: list[Holder]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holders).encode(), 0)
