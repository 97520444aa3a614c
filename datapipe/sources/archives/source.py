"""The images in archives: a zip, a tar (plain, compressed, of tars), or a folder of class tars; read where they are.

Paths in the archive stand for those of a folder, so that an archive gives the samples, classes and ids of the folder that
it was made of. A tar within an archive, and each archive of a folder of them, counts as a folder of its
name without the suffix.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from datapipe.codecs.field_values import IMAGE_FIELD
from datapipe.containers.form import ClassFrom, Form
from datapipe.containers.listing import held_apart_names, is_image_name
from datapipe.core.database import open_scratch
from datapipe.core.printable import counted, printable
from datapipe.errors import MissingDataError
from datapipe.index.listed import ListedSample, ScanNotes, SourceFacts, Workspace, divide
from datapipe.sources.archives.members import (
    ArchiveMember,
    archives_in,
    is_archive_name,
    objects_at,
    refuse_compressed,
    scan_archive,
    split_archive_location,
    split_archive_path,
    stem_of_archive,
)
from datapipe.sources.fields import FolderLabels
from datapipe.sources.file_tree import refuse_field_choices, refuse_several_sets
from datapipe.stores.location import Location, Place

_NO_FOLDER = (
    "lies in no folder of the archive that names its class; convert with --class-from none, or pass a .csv that lists files and"
    " labels, with the archive as its --root"
)
_MAX_TOPS = 100_000  # names of top folders that are remembered


class ArchiveSource:
    """The images in an archive, or in the archives of a folder."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises MissingDataError or StorageError if there is no archive, OptionError for choices that are not possible."""
        refuse_field_choices(form)
        self._source = place
        self._class_from = form.class_from or ClassFrom.FOLDER
        self._labels = FolderLabels(form, self._class_from, no_folder=_NO_FOLDER)
        self._inner = b""
        self.root: Place
        if isinstance(place, Location):
            split_location = split_archive_location(place)
            self._is_folder = split_location is None
            archives, self._inner = split_location or (place, b"")
            self.root, found = objects_at(archives, is_archive_name, what="archives")
            self._names = list(found)
            refuse_compressed(self.root, self._names)
        elif place.is_dir():
            self._is_folder = True
            self.root = place
            self._names = archives_in(place, is_archive_name, "no archives; pass an archive, or the folder that holds them")
        else:
            self._is_folder = False
            split = split_archive_path(place)
            if split is None:
                raise MissingDataError(f"{place}: no such archive; check the path of the source")
            self.root, self._inner = split[0].parent, split[1]
            self._names = [os.fsencode(split[0].name)]
        self._links: list[bytes] = []  # to folders
        self._left_out = b""  # the folder that everything lies in

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        self._left_out = b"" if self._is_folder else _common_folder(name for name, _ in self._images(ScanNotes(), space))
        tops: set[bytes] = set()
        self._links = notes.links
        with open_scratch(space.scratch, "names") as connection:
            connection.execute("CREATE TABLE names (name BLOB PRIMARY KEY) WITHOUT ROWID")
            for name, member in self._images(notes, space):
                path = name[len(self._left_out) + 1 :] if self._left_out else name
                top, slash, _ = path.partition(b"/")
                if slash and len(tops) < _MAX_TOPS:
                    tops.add(top)
                yield self._listed(path, member, is_first=_is_new(connection, path))
        self._refuse_several_sets(tops)

    def facts(self) -> SourceFacts:
        warnings = []
        if self._left_out and self._labels.fields:
            warnings.append(f"all images lie in {os.fsdecode(self._left_out)}/, which is left out of their names and classes")
        if self._links:
            shown = printable(os.fsdecode(self._links[0]))
            warnings.append(f"{counted(len(self._links), 'link')} to folders not followed, such as {shown}; pack the folders")
        return SourceFacts(
            fields=(IMAGE_FIELD, *self._labels.fields),
            classes=self._labels.classes(),
            labels=self._labels.labels(),
            warnings=tuple(warnings),
            made_from=self._made_from(),
            nothing="no images in it",
            remedy="images are recognised by suffix: .jpg, .jpeg, .png, ...; for other members of a tar pass --from tar",
        )

    def _made_from(self) -> dict[str, Any]:
        names = [os.fsdecode(name).encode(errors="backslashreplace").decode() for name in self._names]
        made_from: dict[str, Any] = {"container": "archive", "files": names[:: max(1, len(names) - 1)], "num_files": len(names)}
        return made_from | ({"folder": os.fsdecode(self._inner)} if self._inner else {})

    def _images(self, notes: ScanNotes, space: Workspace) -> Iterator[tuple[bytes, ArchiveMember]]:
        """Yield the images with their paths below the folder that was asked for."""
        for archive in self._names:
            prefix = stem_of_archive(archive) + b"/" if self._is_folder else b""
            for member in scan_archive(self.root, archive, space, notes):
                name = member.name
                if self._inner:
                    if not name.startswith(self._inner + b"/"):
                        continue
                    name = name[len(self._inner) + 1 :]
                if is_image_name(name):
                    yield prefix + name, member
                else:
                    notes.num_ignored += 1

    def _listed(self, path: bytes, member: ArchiveMember, *, is_first: bool) -> ListedSample:
        directory, name = divide(path)
        problem = member.problem or (None if is_first else "is in the archive twice, by the same name; remove one of them")
        label, why = self._labels.label_of(directory)
        return ListedSample(directory, name, 0, label, {IMAGE_FIELD.name: member.origin}, problem=problem or why)

    def _refuse_several_sets(self, tops: set[bytes]) -> None:
        names = held_apart_names(map(os.fsdecode, tops))
        if not names or self._class_from is ClassFrom.NONE or self._is_folder:
            return
        inner = "/".join(os.fsdecode(part) for part in (self._inner, self._left_out) if part)
        refuse_several_sets(self.root / os.fsdecode(self._names[0]) / inner, names)


def _common_folder(names: Iterator[bytes]) -> bytes:
    """Return the folder that all files lie in, such that each still lies in one below it; b"" if there is none."""
    common: list[bytes] | None = None
    for name in names:
        folders = name.split(b"/")[:-2]  # that of the file itself stays
        if common is None:
            common = folders
        while common != folders[: len(common)]:
            common.pop()
        if not common:
            return b""
    return b"/".join(common or [])


def _is_new(connection: sqlite3.Connection, name: bytes) -> bool:
    return connection.execute("INSERT OR IGNORE INTO names VALUES (?)", (name,)).rowcount == 1


open_source = ArchiveSource
