"""Read each directory once: within `remembered`, what was read of one serves whoever asks for it again.

What is kept is bounded: entries beyond the bound are read on, and not kept.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from datapipe.core.remembering import current_scope, recall

MAX_KEPT = 1 << 16  # entries, of all directories of a block


@dataclass(slots=True)
class _Kept:
    """The directories that were read within a block, by device and inode, and how many entries more may be kept."""

    directories: dict[tuple[int, int], Directory] = field(default_factory=dict)
    room: int = MAX_KEPT


def _kept() -> _Kept | None:
    """Return what is kept of the directories of the current block; None outside of one."""
    return None if current_scope() is None else recall("directories", _Kept)


class Directory:
    """A directory that is being read. Not thread-safe.

    `status`: of the directory, from before it was read, so that a later change shows. `is_whole`: False once entries were passed
    on that are not kept.
    """

    __slots__ = ("_entries", "_kept", "_rest", "is_whole", "status")

    def __init__(self, path: bytes, status: os.stat_result, kept: _Kept | None) -> None:
        self.status, self.is_whole = status, True
        self._kept = kept
        self._entries: list[os.DirEntry[bytes]] = []
        self._rest = os.scandir(path)

    def first(self, num: int) -> list[os.DirEntry[bytes]]:
        """Return the first entries, at most `num` of them, in the file system's order. Raises OSError."""
        self._keep(num - len(self._entries))
        if len(self._entries) < num and self._kept is None:
            self.close()
        return self._entries[:num]

    def __iter__(self) -> Iterator[os.DirEntry[bytes]]:
        """Return an iterator over all entries: those that are kept, then those that are still to be read. Raises OSError."""
        if self._kept is None:
            return self._rest
        self._keep(self._kept.room)
        beyond = next(self._rest, None)
        if beyond is None:
            return iter(self._entries)
        self.is_whole = False
        return itertools.chain(self._entries, [beyond], self._rest)

    def _keep(self, num: int) -> None:
        """Read up to `num` entries more, and keep them, as far as there is room for them."""
        room = num if self._kept is None else min(num, self._kept.room)
        found = [*itertools.islice(self._rest, max(0, room))]
        self._entries += found
        if self._kept is not None:
            self._kept.room -= len(found)

    def close(self) -> None:
        """Read no further."""
        self._rest.close()


def read_directory(path: str | bytes | os.PathLike[str]) -> Directory:
    """Return a directory, as it is read now, or as it was within the block of `remembered`. Raises OSError."""
    name = os.fsencode(path)
    scope, kept, status = current_scope(), _kept(), os.stat(name)
    if scope is None or kept is None:
        return Directory(name, status, None)
    identity = status.st_dev, status.st_ino
    found = kept.directories.get(identity)
    if found is None or not found.is_whole:
        found = kept.directories[identity] = Directory(name, status, kept)
        scope.closing.callback(found.close)
    return found


def status_of(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a directory from before it was read, if that was within the block of `remembered`. Raises OSError."""
    kept, status = _kept(), os.stat(path)
    found = None if kept is None else kept.directories.get((status.st_dev, status.st_ino))
    return status if found is None else found.status


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """Return the names in a directory, sorted. Raises OSError."""
    return sorted(os.fsdecode(entry.name) for entry in read_directory(path))


def walk_folders(top: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, names of folders in it, names of files in it) of a folder and those below, as `os.walk`, each sorted.

    Folders whose names begin with a dot, and links to folders, are not entered. What cannot be read is left out.
    """
    waiting = [os.fspath(top)]
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        files: list[str] = []
        entered: list[str] = []
        try:
            for entry in read_directory(folder):
                name = os.fsdecode(entry.name)
                try:
                    is_folder = entry.is_dir()
                except OSError:
                    is_folder = False
                (folders if is_folder else files).append(name)
                if is_folder and not name.startswith(".") and not entry.is_symlink():
                    entered.append(os.path.join(folder, name))
        except OSError:
            continue
        yield folder, sorted(folders), sorted(files)
        waiting += sorted(entered, reverse=True)


def files_below(top: str | os.PathLike[str]) -> list[str]:
    """Return the paths of all files in a folder and those below, as `walk_folders` enters them, sorted."""
    return sorted(os.path.join(folder, name) for folder, _, names in walk_folders(top) for name in names)


def matching(pattern: str) -> list[str]:
    """Return the paths that a pattern matches, sorted, as `glob.glob` finds them; `**` is any number of folders."""
    folder, name = os.path.split(pattern)
    if glob.has_magic(folder) or name == "**" or not glob.has_magic(name):
        return recall(("matching", pattern), lambda: sorted(glob.glob(pattern, recursive=True)))
    try:
        names = names_in(folder or ".")
    except OSError:
        return []
    shown = names if name.startswith(".") else [one for one in names if not one.startswith(".")]
    return [os.path.join(folder, one) for one in fnmatch.filter(shown, name)]
