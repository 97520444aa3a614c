"""Trees of files: a folder on a disk, or a prefix in a store, with the same files in the same folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from converters.options import Place
from datapipe.containers.listing import (
    ListedFile,
    ScanNotes,
    held_apart,
    held_apart_names,
    is_image_name,
    is_junk,
    list_folders,
    scan_class,
    walk,
)
from datapipe.core.errors import MissingDataError
from datapipe.stores.location import Location
from datapipe.stores.objects import ListedObject, list_below, list_each, list_names, list_objects, refuse_unlistable

_MAX_FOLDERS = 10_000_000

IsWanted = Callable[[bytes], bool]  # by name


class Tree(Protocol):
    """The files under a place. Paths are relative to it, without a slash at either end."""

    def folders(self, *, otherwise: str) -> list[bytes]:
        """Return the top folders, sorted, without hidden ones.

        Raises MissingDataError, with the remedy `otherwise` if it is no folder, or StorageError.
        """

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        """Return the names among `folders` that are whole sets, such as `train` and `val`; empty if it is one set."""

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        """Yield the wanted files below `folders` (b"" for the place itself), in any order, each with its folder's number."""


class FolderTree:
    """The files under a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, *, otherwise: str) -> list[bytes]:
        return list_folders(self._root, otherwise=otherwise)

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        return held_apart(self._root, folders)

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        for number, folder in enumerate(folders):
            if folder and is_wanted is is_image_name:  # the same listing that indexes the folder, so that ids agree
                found = scan_class(self._root, folder, notes)
            else:
                found = walk(self._root, folder, notes, is_wanted)
            for file in found:
                yield number, file


class PrefixTree:
    """The objects under a prefix: slashes in their keys make folders. Folders are listed several at once."""

    def __init__(self, root: Location) -> None:
        self._root = root

    def folders(self, *, otherwise: str) -> list[bytes]:
        refuse_unlistable(self._root)
        names = list_names(self._root, at_most=_MAX_FOLDERS)
        if not names:
            raise MissingDataError(f"{self._root}: no objects under this prefix; check the URL, or {otherwise}")
        return sorted(name[:-1].encode() for name in names if name.endswith("/") and not is_junk(name[:-1].encode()))

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        names = held_apart_names(folder.decode() for folder in folders)
        has_folders = [any(one.endswith("/") for one in list_names(self._root / name)) for name in names]
        return tuple(name.encode() for name in names) if names and all(has_folders) else ()

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        for number, folder, page in self._pages(folders):
            for one in page:
                path = f"{folder.decode()}/{one.name}" if folder else one.name
                parts = path.encode().split(b"/")
                if not parts[-1]:  # what some tools make in place of a folder
                    continue
                if any(map(is_junk, parts)):
                    notes.num_junk += 1
                elif not is_wanted(parts[-1]):
                    notes.num_ignored += 1
                else:
                    yield number, ListedFile(parts[0], b"/".join(parts[:-1]), parts[-1], one.nbytes, 0, etag=one.etag or "")

    def _pages(self, folders: Sequence[bytes]) -> Iterator[tuple[int, bytes, list[ListedObject]]]:
        """Yield (number of the folder, the folder that names are below, objects)."""
        if list(folders) != [b""]:
            with contextlib.closing(list_each([self._root / folder.decode() for folder in folders])) as pages:
                yield from ((number, folders[number], page) for number, page in pages)
            return
        flat = list_below(self._root)
        first = next(flat, [])
        if all("/" not in one.name for one in first):  # no folders to be listed at once, as far as is known
            yield 0, b"", first
            yield from ((0, b"", page) for page in flat)
            return
        flat.close()
        yield 0, b"", list_objects(self._root)
        tops = [name[:-1].encode() for name in list_names(self._root, at_most=_MAX_FOLDERS) if name.endswith("/")]
        yield from ((0, top, page) for _, top, page in self._pages(tops))


def open_tree(root: Place) -> Tree:
    """Return the files under a directory or a prefix."""
    return PrefixTree(root) if isinstance(root, Location) else FolderTree(root)
