"""Find files that a list names, under a folder or in an archive (`--root val2017.zip`), or the reason why not."""

from __future__ import annotations

import itertools
import os
import shlex
import sqlite3
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from datapipe.containers.form import Form, on_disk
from datapipe.containers.listing import is_folder
from datapipe.core.database import open_scratch
from datapipe.core.directories import read_directory
from datapipe.core.regular_files import is_within
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.listed import Origin, ScanNotes, Workspace, join
from datapipe.sources.archives.members import scan_archive, split_archive_path
from datapipe.sources.file_tree import open_tree
from datapipe.stores.location import Location, Place

_MAX_FOLDERS = 4096  # folders whose real paths are remembered
_MISSES_IN_A_ROW = 20  # if the first files are all missing, the root is wrong
_MAX_AROUND, _MAX_ENTRIES = 4, 1000  # folders around a list, and entries of a folder, looked at for the right root


class NamedFiles:
    """Looks up files by the names in a list. A result never names anything outside `root`."""

    def __init__(self, root: Path, listed_in: Path, notes: ScanNotes) -> None:
        """`notes` gets what is not there. Raises MissingDataError if `root` is not a folder."""
        if not root.is_dir():
            raise MissingDataError(f"{root}: no such folder; check --root")
        self._root = root
        self._top = os.fsencode(os.path.realpath(root))
        self._listed_in = listed_in
        self._notes = notes
        self._folders: dict[bytes, bytes] = {}  # real paths
        self._num_missing = 0
        self._first_missing: str = ""
        self._why_missing: str | None = None
        self._num_outside = 0  # names that lead out of the root
        self._first_outside: tuple[str, bytes] = ("", b"")  # and the file that it names
        self._around_outside: bytes | None = None  # the folder that holds all of them
        self._has_found = False

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        """Return (path relative to the root, location of its bytes, problem); either the location or the problem is None.

        `text`: relative to the root, or absolute within it; a name that `..` leads out of the root is looked up from the folder
        of the list. Raises MissingDataError if the first names of a list are all missing, or all outside.
        """
        try:
            name = os.path.normpath(os.fsencode(text))
        except UnicodeEncodeError:
            return b"", None, f"{text!r} is not a name that a file can have"
        if b"\0" in name:
            return b"", None, f"{text!r} is not a name that a file can have"
        path = os.path.join(self._top, name)
        if _leads_out(name):
            path = os.path.join(os.path.realpath(os.fsencode(self._listed_in.parent)), name)
        if os.path.isabs(name) or _leads_out(name):
            real = os.path.join(self._real_folder(path), os.path.basename(path))
            name = os.path.relpath(real, self._top)
            if _leads_out(name):
                return b"", None, self._leading_out(text, real)
        try:
            status = os.lstat(path)
            real = os.path.join(self._real_folder(path), os.path.basename(path))
            if stat.S_ISLNK(status.st_mode):
                real, status = os.path.realpath(path), os.stat(path)
        except OSError as exc:
            self._notes.absent.add(name)
            return name, None, self._missing(text, path, exc)
        self._has_found = True
        if not is_within(real, self._top):
            return name, None, f"leads out of {self._root}, to {os.fsdecode(real)}; copy or bind-mount what it points to"
        if not stat.S_ISREG(status.st_mode):
            what = "folder" if stat.S_ISDIR(status.st_mode) else "pipe, socket or device"
            return name, None, f"not a regular file but a {what}"
        return name, Origin.whole(name, status.st_size, status.st_mtime_ns), None

    def refuse_wrong_root(self) -> None:
        """Raise MissingDataError if files were named and none exists."""
        if self._has_found:
            return
        if self._around_outside is not None and os.path.exists(self._first_outside[1]):
            raise MissingDataError(
                f"{self._listed_in}: none of its files lies in {self._root}, where names start from; the first is"
                f" {self._first_outside[0]!r}; pass --root {shlex.quote(os.fsdecode(self._around_outside))}"
            )
        if self._num_missing or self._num_outside:
            first = self._first_missing or self._first_outside[0]
            found = self._root_of(first)
            remedy = self._why_missing or "pass the folder that the names start from as --root"
            if found is not None:
                remedy = f"it is in {found}: pass --root {shlex.quote(str(found))}"
            raise MissingDataError(
                f"{self._listed_in}: none of the first {self._num_missing + self._num_outside} files is there; the first is"
                f" {first!r}, looked for in {self._root}; {remedy}"
            )

    def _root_of(self, text: str) -> Path | None:
        """Return a folder in which a file of this name lies: near the list or the root, in them or around them."""
        here = self._listed_in.parent
        near = (folder for start in (here, self._root) for folder in (start, *_folders_in(start)))
        around = list(here.absolute().parents)[:_MAX_AROUND]
        return next((folder for folder in itertools.chain(near, around) if os.path.isfile(folder / text)), None)

    def _leading_out(self, text: str, path: bytes) -> str:
        folder = os.path.dirname(path)
        if self._around_outside is None:
            self._first_outside, self._around_outside = (text, path), folder
        self._around_outside = os.path.commonpath([self._around_outside, folder])
        self._num_outside += 1
        return f"{text!r} leads out of {self._root}; pass a --root that holds all files"

    def _missing(self, text: str, path: bytes, exc: OSError) -> str:
        self._num_missing += 1
        self._first_missing = self._first_missing or text
        why = _why_missing(text, path)
        self._why_missing = self._why_missing or why
        if self._num_missing == _MISSES_IN_A_ROW:
            self.refuse_wrong_root()
        if not isinstance(exc, FileNotFoundError | NotADirectoryError):
            return f"cannot be examined: {exc.strerror}"
        return "; ".join(filter(None, ("no such file", why)))

    def _real_folder(self, path: bytes) -> bytes:
        folder = os.path.dirname(path)
        real = self._folders.get(folder)
        if real is None:
            if len(self._folders) >= _MAX_FOLDERS:
                self._folders.clear()
            real = self._folders[folder] = os.path.realpath(folder)
        return real


def _why_missing(text: str, path: bytes) -> str | None:
    """Return why a file is not there by the name that a list gives it, as far as the name tells; None otherwise."""
    if "\\" in text:
        return "names with a backslash are those of Windows: write them with / in the list, from --root on and without a drive"
    for form in ("NFC", "NFD"):
        other = os.fsencode(unicodedata.normalize(form, os.fsdecode(path)))
        if other != path and os.path.lexists(other):
            return (
                f"there is one of the same letters, whose accents are encoded otherwise ({form}): write its name so in the list"
            )
    return None


def _leads_out(name: bytes) -> bool:
    return name == b".." or name.startswith(b"../")


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders directly in `folder`, of its first entries, sorted; none where it cannot be read."""
    try:
        entries = read_directory(folder).first(_MAX_ENTRIES)
        return sorted(folder / os.fsdecode(entry.name) for entry in entries if is_folder(entry))
    except OSError:
        return []


class FileLookup(Protocol):
    """Looks up files by the names in a list; `NamedFiles` says what its methods return and raise."""

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]: ...

    def refuse_wrong_root(self) -> None: ...


class _TableOfFiles:
    """Looks up files of an archive or a store by their names in it, or by those without the folder that all of them lie in."""

    def __init__(self, connection: sqlite3.Connection, where: Place, listed_in: Place, folders: tuple[str, ...]) -> None:
        self._connection = connection
        self._where = where
        self._listed_in = listed_in
        self._folders = folders  # looked into, in this order
        self._num_missing = 0
        self._first_missing = ""
        self._has_found = False

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        try:
            name = os.path.normpath(os.fsencode(text))
        except UnicodeEncodeError:
            return b"", None, f"{text!r} is not a name that a file can have"
        if b"\0" in name or name.startswith((b"/", b"../")) or name == b"..":
            return b"", None, f"{text!r} leads out of {self._where}; names in a list are those in it"
        for folder in self._folders:
            path = os.path.join(os.fsencode(folder), name)
            row = self._connection.execute("SELECT * FROM files WHERE name = ?", (path,)).fetchone()
            if row is not None:
                self._has_found = True
                _, problem, place, offset, nbytes, file_nbytes, mtime_ns, codec, is_spooled, etag, is_twice = row
                if is_twice:
                    problem = problem or "is in the archive twice, by the same name; remove one of them"
                origin = Origin(place, offset, nbytes, file_nbytes, mtime_ns, codec, bool(is_spooled), etag)
                return path, None if problem else origin, problem
        self._num_missing += 1
        self._first_missing = self._first_missing or text
        return name, None, f"no such file in {self._where}"

    def refuse_wrong_root(self) -> None:
        if self._num_missing and not self._has_found:
            remedy = f"pass the folder in it that the names start from, such as --root {self._where}/FOLDER"
            if isinstance(self._where, Location):
                remedy = f"put {self._listed_in.name} into the folder that the names start from"
            raise MissingDataError(
                f"{self._listed_in}: none of its {self._num_missing} files is in {self._where}; the first is"
                f" {self._first_missing!r}; {remedy}"
            )


def list_and_root(place: Place, form: Form, *, what: str) -> tuple[Path, Path]:
    """Return the file that lists, and the place that its names start from: the form's root, or its own folder.

    `what` is expected. Raises OptionError for a folder, and for a place in a store.
    """
    path = on_disk(place, form)
    if path.is_dir():
        raise OptionError(f"{path}: a folder; pass {what} in it")
    return path, form.root or path.parent


def root_of(root: Path) -> Path:
    """Return what paths are relative to: the folder that holds the archive, or `root` itself."""
    split = None if root.is_dir() else split_archive_path(root)
    return root if split is None else split[0].parent


@contextmanager
def open_files(root: Place, listed_in: Place, space: Workspace, notes: ScanNotes) -> Iterator[FileLookup]:
    """Open the files under `root`: a folder, an archive, a folder in an archive, or a prefix in a store, which is listed once.

    Raises MissingDataError if it is none of these, StorageError for an archive that is damaged.
    """
    if isinstance(root, Location):
        objects = (file for _, file in open_tree(root).files([b""], ScanNotes(), lambda name: True))
        named = ((join(one.directory, one.name), one) for one in objects)
        rows = ((path, None, *Origin.whole(path, one.nbytes, 0, one.etag), 0) for path, one in named)
        with _table_of(rows, space) as connection:
            yield _TableOfFiles(connection, root, listed_in, ("",))
        return
    assert isinstance(listed_in, Path)
    split = None if root.is_dir() else split_archive_path(root)
    if split is None:
        yield NamedFiles(root, listed_in, notes)
        return
    archive, inner = split
    seen = ScanNotes()
    members = scan_archive(archive.parent, os.fsencode(archive.name), space, seen)
    with _table_of(((one.name, one.problem, *one.origin, 0) for one in members), space) as connection:
        notes.problems += seen.problems
        notes.files |= seen.files
        folders = (os.fsdecode(inner),) if inner else ("", *_only_folder(connection))
        yield _TableOfFiles(connection, root, listed_in, folders)


@contextmanager
def _table_of(rows: Iterable[tuple[object, ...]], space: Workspace) -> Iterator[sqlite3.Connection]:
    """Put files into a table on the disk."""
    with open_scratch(space.scratch, "named") as connection:
        connection.execute(
            "CREATE TABLE files (name BLOB PRIMARY KEY, problem TEXT, path BLOB, offset INTEGER, nbytes INTEGER,"
            " file_nbytes INTEGER, mtime_ns INTEGER, codec TEXT, is_spooled INTEGER, etag TEXT, is_twice INTEGER) WITHOUT ROWID"
        )
        connection.executemany(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET is_twice = 1", rows
        )
        yield connection


def refuse_missing_root(root: Path) -> None:
    """Raise MissingDataError if `root` is neither a folder nor in an archive."""
    if not root.is_dir() and split_archive_path(root) is None:
        raise MissingDataError(f"{root}: no such folder or archive; check --root")


def _only_folder(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Return the folder that all files of the archive lie in, if there is one."""
    first, last = connection.execute("SELECT min(name), max(name) FROM files").fetchone()
    if first is None:
        return ()
    common = os.path.commonpath([os.path.dirname(b"/" + first), os.path.dirname(b"/" + last)])
    return (os.fsdecode(common[1:]),) if len(common) > 1 else ()
