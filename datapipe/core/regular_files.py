"""Open input files: regular ones only, without ever blocking, and inside the directory in which they are named.

Nothing in a dataset is trusted: a shard may be a named pipe, on which `open` blocks for ever, or a link to a
device; a file name stored in a file may lead anywhere. All code that reads a file which this process has not just written
opens it here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from datapipe.errors import FormatError

AnyPath = str | bytes | os.PathLike[str]

MAX_DOCUMENT_NBYTES = 256 << 20  # of a file that is read as a whole: the manifest of about 500,000 shards

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_TYPES = {
    stat.S_IFDIR: "folder", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}  # fmt: skip


def open_descriptor(path: AnyPath) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor, which the caller closes, and its status.

    Raises FormatError if it is not a regular file, and OSError as `os.open` does.
    """
    _refuse_irregular(os.stat(path), path)  # before opening it: opening a device may have effects
    descriptor = os.open(path, _FLAGS)
    try:
        status = os.fstat(descriptor)
        _refuse_irregular(status, path)  # it may have been replaced since
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_file(path: AnyPath, *, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, as the builtin `open` does in mode "rb". Raises as `open_descriptor` does."""
    descriptor, _ = open_descriptor(path)
    return open(descriptor, "rb", buffering=buffering)


def read_bytes(path: AnyPath, *, at_most: int = MAX_DOCUMENT_NBYTES) -> bytes:
    """Return the bytes of a regular file. Raises FormatError, without reading, if it has more than `at_most`.

    Raises as `open_descriptor` does.
    """
    descriptor, status = open_descriptor(path)
    with open(descriptor, "rb", buffering=0) as file:
        if status.st_size > at_most:
            raise FormatError(f"{os.fsdecode(path)}: {status.st_size} bytes, more than the limit of {at_most}; is it damaged?")
        return file.read()


@contextlib.contextmanager
def opened_by_name(path: AnyPath) -> Iterator[str]:
    """Yield a name of the open file, for libraries that open files themselves: it means this file and no other.

    The name is valid within the block only; a library that has opened it keeps a descriptor of its own. Raises as
    `open_descriptor` does.
    """
    descriptor, _ = open_descriptor(path)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def range_in_memory(descriptor: int, start: int, nbytes: int) -> int:
    """Return the descriptor of a copy, in memory, of a range of an open file, for libraries that read a file from its beginning.

    The caller closes it. It is shorter where the file ends before the range.
    """
    with _in_memory("datapipe-range") as copy:
        while nbytes and (num := os.sendfile(copy, descriptor, start, nbytes)):
            start, nbytes = start + num, nbytes - num
    return copy


def bytes_in_memory(data: bytes) -> int:
    """Return the descriptor of a file in memory that holds these bytes, for libraries that read files. The caller closes it."""
    view = memoryview(data)
    with _in_memory("datapipe-bytes") as copy:
        while view:
            view = view[os.write(copy, view) :]
    return copy


@contextlib.contextmanager
def _in_memory(name: str) -> Iterator[int]:
    """Open a file in memory to be filled in the block, after which it is at its beginning; closes it only if that fails."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise


def refuse_irregular(path: AnyPath) -> None:
    """Raise FormatError for a path that exists and is not a regular file; for files that only a library can open."""
    with contextlib.suppress(FileNotFoundError):
        _refuse_irregular(os.stat(path), path)


def file_type(mode: int) -> str:
    """Return what a path that is no regular file is, in words."""
    return _TYPES.get(stat.S_IFMT(mode), "special file")


def path_inside(root: str, name: str, *, named_in: AnyPath, follows: bool = False) -> str:
    """Return the path of `name` under `root`, where `name` was read from the file `named_in`.

    Raises FormatError for a name that leads out: an absolute path, one with `..`, or an empty one. With `follows`, a symbolic
    link may lead anywhere, as its maker is trusted; otherwise its target must lie under `root` too.
    """
    parts = name.split("/")
    if not name or parts[0] == "" or ".." in parts or "\0" in name:
        raise FormatError(f"{os.fsdecode(named_in)}: names the file {name!r:.200}, outside of {root}; do not use this dataset")
    path = os.path.join(root, name)
    if not follows:
        _refuse_leading_out(root, path, parts, named_in)
    return path


def leads_out(root: AnyPath, path: AnyPath) -> bool:
    """Return True if `path`, with all symbolic links followed, lies outside of the directory `root`.

    Hugging Face's cache counts as a whole: a snapshot in it is a folder of links to `blobs`, next to `snapshots`.
    """
    top, real = os.fsencode(os.path.realpath(root)), os.fsencode(os.path.realpath(path))
    if is_within(real, top):
        return False
    before, snapshots, _ = top.rpartition(b"/snapshots/")
    return not (snapshots and is_within(real, before + b"/blobs"))


def is_within(real: bytes, top: bytes) -> bool:
    """Return True if a path is, or lies under, the directory `top`; both with all links followed."""
    return real == top or real.startswith(top.rstrip(b"/") + b"/")


def _refuse_leading_out(root: str, path: str, parts: list[str], named_in: AnyPath) -> None:
    if len(parts) == 1 and not os.path.islink(path):  # nothing to follow, the usual case
        return
    if leads_out(root, path):
        raise FormatError(
            f"{os.fsdecode(named_in)}: names {path}, a link that leads out of {root}, to {os.path.realpath(path)};"
            " copy or bind-mount its target"
        )


def _refuse_irregular(status: os.stat_result, path: AnyPath) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(
            f"{os.fsdecode(path)}: a {file_type(status.st_mode)}, not a regular file; remove it, or put the file in its place"
        )
