"""List an image folder: which files are samples, and in which order.

A folder of class folders is read in the order of torchvision's `ImageFolder`: classes by name; within
a class by (path of the directory, file name), all compared as bytes. A sample's id is its place in
that listing, so the folder and everything converted from it agree on ids.

The differences from `ImageFolder`, each for safety: hidden files and folders, `Thumbs.db` and macOS's
`._*` are not samples; a symbolic link that leads out of the root is not followed; a link to a
directory that contains it, at any depth, is not descended into; a file with an image's name that cannot be a sample (a
named pipe, a dangling link) keeps its place in the listing, with a `problem` instead of contents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datapipe.containers.forms import AUDIO_SUFFIXES, VIDEO_SUFFIXES
from datapipe.core.directories import read_directory
from datapipe.core.printable import counted
from datapipe.core.regular_files import file_type, is_within
from datapipe.errors import MissingDataError, StorageError
from datapipe.index.listed import ScanNotes, ScanProblem

IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp", b".gif")
_JUNK = frozenset((b"thumbs.db", b"desktop.ini", b"__macosx"))
_TOOLS_FOLDERS = frozenset((b"__pycache__", b"node_modules", b"site-packages"))
_TOOLS_MARKS = (b"pyvenv.cfg", b"conda-meta", b"CACHEDIR.TAG")  # in virtual environments, and in caches (bford.info/cachedir)
_VIDEO_ENDS, _AUDIO_ENDS = (tuple(map(os.fsencode, suffixes)) for suffixes in (VIDEO_SUFFIXES, AUDIO_SUFFIXES))
NO_FOLDER = "pass a folder, or say with --from what it is"  # the remedy if a folder is expected
_MAX_SHOWN = 5  # links in a message
_TRAIN_NAMES = ("train", "training")
_HELD_OUT_NAMES = ("val", "valid", "validation", "test")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file that the listing counts as a sample."""

    directory: bytes  # path relative to the root; no slash at either end
    name: bytes
    nbytes: int
    mtime_ns: int
    problem: str | None = None  # why it cannot be read, if known without opening it
    etag: str = ""  # of an object in a store, which has no time


def told_of_loops(loops: Sequence[str]) -> str:
    """Return a message about `loops`, the paths of links, of which there is at least one."""
    shown = ", ".join(loops[:_MAX_SHOWN]) + (", ..." if len(loops) > _MAX_SHOWN else "")
    return (
        f"{counted(len(loops), 'symbolic link')} to a folder around {'it' if len(loops) == 1 else 'them'} not followed: {shown}"
    )


def is_junk(name: bytes) -> bool:
    """Return True for the name of a file or folder that a desktop leaves behind, not data."""
    return name.startswith(b".") or name.lower() in _JUNK


def is_kept_by_tools(folder: bytes) -> bool:
    """Return True for a virtual environment, a folder of packages, or a cache: images in it are nobody's data set."""
    return os.path.basename(folder) in _TOOLS_FOLDERS or any(os.path.lexists(os.path.join(folder, mark)) for mark in _TOOLS_MARKS)


def is_image_name(name: bytes) -> bool:
    """Return True if the name ends like an image's; `datapipe.codecs.probe` decides by content."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_video_name(name: bytes) -> bool:
    """Return True if a file's name says that it is a video."""
    return name.lower().endswith(_VIDEO_ENDS)


def is_audio_name(name: bytes) -> bool:
    """Return True if a file's name says that it is sound."""
    return name.lower().endswith(_AUDIO_ENDS)


def list_folders(root: Path, *, otherwise: str) -> list[bytes]:
    """Return the folders directly under `root`, sorted, without hidden ones.

    Raises MissingDataError, with the remedy `otherwise` if it is not a directory, or StorageError.
    """
    try:
        return sorted(entry.name for entry in read_directory(root) if not is_junk(entry.name) and is_folder(entry))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{root}: no such file or directory; check the path of the source") from exc
    except NotADirectoryError as exc:
        raise MissingDataError(f"{root}: not a directory; {otherwise}") from exc
    except OSError as exc:
        raise StorageError(f"{root}: cannot be read ({exc.strerror}); check its permissions") from exc


def held_apart(root: Path, classes: list[bytes]) -> tuple[bytes, ...]:
    """Return the names among `classes` that are whole sets, as in a folder of `train/` and `val/`; empty if it is one set."""
    top = os.fsencode(root)
    named = held_apart_names(map(os.fsdecode, classes))
    found = held_apart_names(name for name in named if _has_folders(os.path.join(top, os.fsencode(name))))
    return tuple(map(os.fsencode, found))


def held_apart_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of `names` that name sets for training and for testing; empty unless there are both."""
    lowered = {name.lower(): name for name in names}
    train = [lowered[name] for name in _TRAIN_NAMES if name in lowered]
    held_out = [lowered[name] for name in _HELD_OUT_NAMES if name in lowered]
    return (*train, *held_out) if train and held_out else ()


def walk(root: Path, start: bytes, notes: ScanNotes, is_wanted: Callable[[bytes], bool]) -> Iterator[ListedFile]:
    """Yield the files below `start` (relative to `root`; b"" for all of it) whose names are wanted, in the file system's order.

    Hidden files and folders are left out, links that lead out of the root or up are not followed; `notes` records them,
    folders that cannot be read, and those that were read, with their times. Streams: memory grows with the number of
    directories, not with the number of files.
    """
    top = os.fsencode(os.path.realpath(root))
    first = os.path.join(top, start)
    waiting: list[tuple[bytes, tuple[tuple[int, int], ...]]] = []
    around = tuple(map(_identity, _directories_around(start, top)))
    if not start or _may_descend(first, top, around, start, notes, is_link=os.path.islink(first)):
        waiting.append((start, around))
    while waiting:
        directory, parents = waiting.pop()
        path = os.path.join(top, directory)
        try:
            entries = read_directory(path)
            here = (*parents, (entries.status.st_dev, entries.status.st_ino))
            notes.directories[directory] = entries.status.st_mtime_ns
            for entry in entries:
                if is_junk(entry.name):
                    notes.num_junk += 1
                elif is_folder(entry):
                    child = directory + b"/" + entry.name if directory else entry.name
                    if _may_descend(entry.path, top, here, child, notes, is_link=entry.is_symlink()):
                        waiting.append((child, here))
                elif not is_wanted(entry.name):
                    notes.num_ignored += 1
                else:
                    yield _listed_file(entry, top, directory)
        except OSError as exc:
            notes.problems.append(ScanProblem(directory or b".", f"directory cannot be read: {exc.strerror}"))


def is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Return True for a directory or a link to one; False for a link that leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _directories_around(start: bytes, top: bytes) -> Iterator[bytes]:
    """Yield `top`, and the directories between it and `start`; nothing if `start` is b"", which means `top`."""
    path = top
    for part in filter(None, start.split(b"/")):
        yield path
        path = os.path.join(path, part)


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _may_descend(
    path: bytes, top: bytes, parents: tuple[tuple[int, int], ...], source: bytes, notes: ScanNotes, *, is_link: bool
) -> bool:
    """Return True if the walk enters a directory: always, unless a link leads out of the root or back up."""
    if not is_link:
        return True
    if _identity(path) in parents:
        notes.loops.append(source)
        return False
    target = os.path.realpath(path)
    if not is_within(target, top):
        notes.problems.append(ScanProblem(source, _leads_out(target)))
        return False
    return True


def _listed_file(entry: os.DirEntry[bytes], top: bytes, directory: bytes) -> ListedFile:
    problem = None
    try:
        status = entry.stat()
    except OSError as exc:
        reason = "dangling symbolic link" if entry.is_symlink() else f"cannot be examined: {exc.strerror}"
        return ListedFile(directory, entry.name, 0, 0, reason)
    if not stat.S_ISREG(status.st_mode):
        problem = f"not a regular file but a {file_type(status.st_mode)}"
    elif entry.is_symlink():
        target = os.path.realpath(entry.path)
        if not is_within(target, top):
            problem = _leads_out(target)
    if problem is not None:
        return ListedFile(directory, entry.name, 0, 0, problem)
    return ListedFile(directory, entry.name, status.st_size, status.st_mtime_ns)


def _leads_out(target: bytes) -> str:
    shown = target.decode(errors="backslashreplace")
    return f"symbolic link leads out of the source, to {shown}; copy or bind-mount its target"


def _has_folders(path: bytes) -> bool:
    try:
        return any(is_folder(entry) and not is_junk(entry.name) for entry in read_directory(path))
    except OSError:
        return False
