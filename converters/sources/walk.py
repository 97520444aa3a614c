"""The files under a folder, as a stream: every one whose name is wanted, whatever it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from converters.sources import join
from datapipe.containers.listing import (
    ListedFile,
    ScanNotes,
    ScanProblem,
    is_folder,
    is_junk,
    listed_file,
    may_descend,
)
from datapipe.errors import MissingDataError, StorageError


def walk(root: Path, start: bytes, notes: ScanNotes, is_wanted: Callable[[bytes], bool]) -> Iterator[ListedFile]:
    """The files below `start` (relative to `root`; b"" for all of it), one directory after the other, unsorted.

    Hidden files and folders, links that lead out of the root or up, and unreadable folders are treated as
    `datapipe.containers.listing.scan_class` treats them. Memory grows with the directories that wait to be read.
    """
    top = os.fsencode(os.path.realpath(root))
    waiting: list[tuple[bytes, tuple[tuple[int, int], ...]]] = []
    first = os.path.join(top, start)
    if not start or may_descend(first, top, (), start, notes, is_link=os.path.islink(first)):
        waiting.append((start, ()))
    while waiting:
        directory, parents = waiting.pop()
        path = os.path.join(top, directory)
        try:
            status = os.stat(path)
            here = (*parents, (status.st_dev, status.st_ino))
            with os.scandir(path) as entries:
                for entry in entries:
                    if is_junk(entry.name):
                        notes.num_junk += 1
                    elif is_folder(entry):
                        child = join(directory, entry.name)
                        if may_descend(entry.path, top, here, child, notes, is_link=entry.is_symlink()):
                            waiting.append((child, here))
                    elif not is_wanted(entry.name):
                        notes.num_ignored += 1
                    else:
                        yield listed_file(entry, top, b"", directory)
        except OSError as exc:
            notes.problems.append(ScanProblem(directory or b".", f"directory cannot be read: {exc.strerror}"))


def list_folders(root: Path) -> list[bytes]:
    """The folders directly under `root`, hidden ones left out, sorted. Raises MissingDataError or StorageError."""
    try:
        with os.scandir(os.fsencode(root)) as entries:
            return sorted(entry.name for entry in entries if not is_junk(entry.name) and is_folder(entry))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{root}: no such directory; check the path of the source") from exc
    except NotADirectoryError as exc:
        raise MissingDataError(f"{root}: not a directory; pass a folder, or say with --from what it is") from exc
    except OSError as exc:
        raise StorageError(f"{root}: cannot be read ({exc.strerror}); check its permissions") from exc
