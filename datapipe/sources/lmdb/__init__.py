"""LMDB databases of encoded images, as LSUN's: every value is an image, its key the name; read where it lies in the file.

Either one database (a folder with `data.mdb`, or a file), or a folder of them, whose names are the classes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from datapipe.codecs.field_values import IMAGE_FIELD
from datapipe.codecs.probe import encoding_of
from datapipe.containers.form import ClassFrom, Form, on_disk
from datapipe.containers.listing import list_folders
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core import regular_files
from datapipe.core.directories import names_in
from datapipe.core.environment import importing_as_here, install_command
from datapipe.errors import DependencyError, FormatError, MissingDataError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide, join
from datapipe.sources.fields import FolderLabels
from datapipe.sources.file_tree import refuse_field_choices
from datapipe.sources.lmdb import listing
from datapipe.sources.lmdb.listing import CUT_OFF, NO_DATABASE, NO_LIBRARY, RECORD
from datapipe.stores.location import Place

DATA_NAME = "data.mdb"
_HEAD_NBYTES = 256


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a database, or a folder of them; None if it is none."""
    if look.is_stored:
        return None
    if look.nature is Nature.FILE:
        return Evidence(f"its name ends with {look.suffix}") if look.suffix in (".mdb", ".lmdb") else None
    in_folders = ((folder, names) for folder, names in look.below if b"/" not in folder)
    found = (folder for folder, names in ((b"", look.files), *in_folders) if DATA_NAME.encode() in names)
    where = next((os.path.join(os.fsdecode(folder), DATA_NAME) for folder in found), None)
    return None if where is None else Evidence(f"it holds {where}", Strength.DECISIVE)


class LmdbSource:
    """The entries of a database, or of the databases of a folder."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises MissingDataError if there is no database, OptionError for choices that are not possible."""
        refuse_field_choices(form)
        source = on_disk(place, form)
        self._folders = _folder_times(source)
        self.root, self._names = _databases(source)
        has_classes = len(self._names) > 1 or self._names[0].count("/") > 0
        allowed = (ClassFrom.NONE, *((ClassFrom.FOLDER,) if has_classes else ()))
        if form.class_from is not None and form.class_from not in allowed:
            raise OptionError(f"--class-from {form.class_from.value}: of {source}, at most the database names a class")
        class_from = (form.class_from or ClassFrom.FOLDER) if has_classes else ClassFrom.NONE
        self._labels = FolderLabels(form, class_from, no_folder="")  # every database lies in one

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        place = 0
        notes.directories |= self._folders
        for name in self._names:
            path = os.fsencode(name)
            label, _ = self._labels.label_of(os.path.dirname(path))
            with regular_files.open_file(self.root / name) as file:
                status = os.fstat(file.fileno())
                notes.files[path] = status.st_size, status.st_mtime_ns
                for key, offset, nbytes in _entries(self.root / name):
                    if not place:
                        _refuse_other_values(self.root / name, key, os.pread(file.fileno(), min(nbytes, _HEAD_NBYTES), offset))
                    directory, stem = divide(join(os.path.dirname(path), _printed(key)))
                    origin = Origin(path, offset, nbytes, status.st_size, status.st_mtime_ns)
                    yield ListedSample(directory, stem, place, label, {IMAGE_FIELD.name: origin})
                    place += 1

    def facts(self) -> SourceFacts:
        return SourceFacts(
            fields=(IMAGE_FIELD, *self._labels.fields),
            classes=self._labels.classes(),
            labels=self._labels.labels(),
            made_from={"container": "lmdb", "files": self._names[:: max(1, len(self._names) - 1)], "num_files": len(self._names)},
            nothing="no entries",
            remedy="the values of a database are the images",
        )


def _folder_times(source: Path) -> dict[bytes, int]:
    """Return the times (ns) of the folders in which databases are looked for, relative to `source`; none for a file."""
    folders = (b"", *list_folders(source, otherwise="")) if source.is_dir() else ()
    return {folder: os.stat(os.path.join(os.fsencode(source), folder)).st_mtime_ns for folder in folders}


def _databases(source: Path) -> tuple[Path, list[str]]:
    """Return the root and the data files, relative to it."""
    if source.is_file():
        return source.parent, [source.name]
    if (source / DATA_NAME).is_file():
        return source, [DATA_NAME]
    names = sorted(f"{name}/{DATA_NAME}" for name in (names_in(source) if source.is_dir() else ()))
    names = [name for name in names if (source / name).is_file()]
    if not names:
        raise MissingDataError(f"{source}: no LMDB database: expected {DATA_NAME} in it, or in folders of it")
    return source, names


def _entries(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset, bytes) of every entry, as a process of its own lists them. Raises FormatError or DependencyError."""
    # As a script: the module is found without importing the rest of the package. -P: what lies next to it shadows nothing.
    command = [sys.executable, "-P", os.path.abspath(listing.__file__), os.fspath(path.absolute())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=importing_as_here()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield from _records(process.stdout)
            said = process.stderr.read().decode(errors="replace").strip()
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    why = said.splitlines()[-1] if said else f"status {status}"
    if status == NO_LIBRARY:
        raise DependencyError(f"{path}: LMDB databases need the library lmdb: {install_command('lmdb')}")
    if status == CUT_OFF:
        raise FormatError(f"{path}: the file ends before its last page: it was cut off; get it again")
    if status == NO_DATABASE:
        raise FormatError(f"{path}: not an LMDB database, or damaged ({why}); get it again")
    if status:
        raise FormatError(f"{path}: damaged, reading it failed ({why}); get it again")


def _records(stream: IO[bytes]) -> Iterator[tuple[bytes, int, int]]:
    while len(head := stream.read(RECORD.size)) == RECORD.size:
        offset, nbytes, len_key = RECORD.unpack(head)
        key = stream.read(len_key)
        if len(key) == len_key:
            yield key, offset, nbytes


def _printed(key: bytes) -> bytes:
    """Return a key as a name: in hex if it is not plain text."""
    is_plain = key.isascii() and key.decode().isprintable() and key.strip(b"/.") != b""
    return key if is_plain else key.hex().encode()


def _refuse_other_values(path: Path, key: bytes, head: bytes) -> None:
    if encoding_of(head) is None:
        raise FormatError(
            f"{path}: the value of {_printed(key).decode()!r:.60} is no encoded image (it begins with {head[:8]!r}); databases of"
            " pickles, Datum messages or several fields are not read: write the images as files, or a manifest"
        )


open_source = LmdbSource
