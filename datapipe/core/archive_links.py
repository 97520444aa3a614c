"""Links within archives: the member that a link leads to. What leads out of the archive is never followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

_MAX_HOPS = 40  # links that lead to links
_MAX_NBYTES = 1 << 28  # of the names that are remembered
_NAME_NBYTES = 400  # in addition to a name's own bytes

_Found = TypeVar("_Found")


class Link(NamedTuple):
    """A link in an archive."""

    name: bytes
    target: bytes
    is_hard: bool  # a name of the archive's, of a member before this; else a path from the folder of the link


class NoTarget(NamedTuple):
    """Why a link leads to no file of its archive."""

    reason: str
    is_folder: bool = False  # it leads to a folder of it


class Targets(Generic[_Found]):
    """The files and links of an archive by name, in which links are followed."""

    def __init__(self, members: Iterable[tuple[bytes, _Found] | Link]) -> None:
        self._found: dict[bytes, _Found | Link] = {}
        self._twice: set[bytes] = set()
        self._folders: set[bytes] = set()
        self._is_whole = True
        room = _MAX_NBYTES
        for member in members:
            name = _inside(b"", member[0])
            room -= len(member[0]) + _NAME_NBYTES
            if room < 0:
                self._is_whole = False
                return
            if name in self._found:
                self._twice.add(name)
            elif name is not None:
                self._found[name] = member if isinstance(member, Link) else member[1]
                self._add_folders(name)

    def _add_folders(self, name: bytes) -> None:
        folder = name.rpartition(b"/")[0]
        while folder and folder not in self._folders:
            self._folders.add(folder)
            folder = folder.rpartition(b"/")[0]

    def resolve(self, link: Link) -> _Found | NoTarget:
        """Return the file that a link leads to, or why there is none."""
        here: _Found | Link = link
        for _ in range(_MAX_HOPS):
            if not isinstance(here, Link):
                return here
            name = _inside(b"" if here.is_hard else here.name.rpartition(b"/")[0], here.target)
            shown = repr(here.target[:80].decode(errors="backslashreplace"))
            if name is None:
                return NoTarget(f"is a link that leads out of the archive, to {shown}; pack what it leads to")
            if name in self._folders:
                return NoTarget(f"is a link to the folder {shown}, which is not followed; pack the folder", is_folder=True)
            if name not in self._found and not self._is_whole:
                return NoTarget("is a link in an archive of too many members to find what it leads to; unpack the archive")
            if name not in self._found:
                return NoTarget(f"is a link to {shown}, which is no file in the archive; pack what it leads to")
            if name in self._twice:
                return NoTarget(f"is a link to {shown}, of which the archive has several; remove all but one")
            here = self._found[name]
        return NoTarget("is a link that leads back to itself, or through too many others; pack what it should lead to")


def _inside(folder: bytes, path: bytes) -> bytes | None:
    """Return a path, from a folder of the archive, as one from its top, as members are named; None if it leads out."""
    if path.startswith(b"/"):
        return None
    parts: list[bytes] = []
    for part in (*folder.split(b"/"), *path.split(b"/")):
        if part == b"..":
            if not parts:
                return None
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)
