"""Documents: JSON lines of which each has a text, text files, or rows of Parquet and Arrow files.

They lie in a folder, an archive or a store, compressed or not. Nothing of a line is copied: its text is a member of the object in
a range of the file. What is compressed, lines in a store, and the texts of rows are unpacked once into the spool of the
conversion, where they can be read at random.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import FieldKind, FieldSpec, json_bytes, without_nulls
from datapipe.codecs.stored import member
from datapipe.containers.form import Form
from datapipe.containers.listing import ListedFile
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.containers.tables.files import open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.containers.tables.types import holds_bytes
from datapipe.core import regular_files
from datapipe.core.printable import listed
from datapipe.errors import DatapipeError, FormatError, OptionError, StorageError
from datapipe.index.listed import ANY_SIZE, ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide, join
from datapipe.index.tables import ColumnKind, TableColumn
from datapipe.sources.archives.members import scan_archive, split_archive_location, split_archive_path
from datapipe.sources.fields import in_order
from datapipe.sources.record_files import (
    JSON_SUFFIX,
    LINES_SUFFIXES,
    ROWS_SUFFIXES,
    TEXT_SUFFIXES,
    RecordFiles,
    compression_of,
    is_lines_name,
    is_rows_name,
    is_text_name,
    lines_of,
)
from datapipe.sources.spool import spooled
from datapipe.stores.location import Location, Place, is_url

_READ_NBYTES = 8 << 20
_TEXTS = ("text", "content", "document", "messages")  # members that are taken if none is chosen
_CHATS = "messages"  # the one whose values are no texts
_ABOUT = re.compile(rb"(?i)(readme|licen[cs]e|copying|notice|changelog|citation)\b.*")  # texts about data, which are none of it
_MOST_LOOKED = 1000  # lines at which one looks for the text


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place may be read as documents; None if it is rather something else.

    Files are known by their names and the first text in them; a folder is one of documents if at least half of its files are.
    """
    if look.nature is Nature.NOTHING:
        place = look.place
        split = split_archive_location(place) if isinstance(place, Location) else split_archive_path(place)
        is_text = split is not None and is_text_name(os.fsencode(place.name))
        return Evidence(f"it is {place.name} in an archive", Strength.WEAK) if is_text else None
    is_folder = look.nature is Nature.FOLDER
    names = [*look.all_files]
    found = frozenset(filter(_is_wanted if is_folder else _may_be_named, names))
    if is_folder:
        found = frozenset(name for name in found if not _ABOUT.fullmatch(name))
    num = sum(name in found for name in names)
    if (look.has_media or 2 * num < len(names)) if is_folder else num < len(names):
        return None
    first = next(look.paths(lambda name: name in found), None)
    if first is None:
        return None
    has_text = bool(form.fields) or look.once(f"text in {first}", lambda: _has_text(first))
    if not has_text and (is_folder or first.lower().endswith(".json")):
        return None
    strength = Strength.WEAK if has_text else Strength.IF_WANTED
    return look.evidence(os.path.basename(first), strength)


def _has_text(path: str) -> bool:
    """Return True if a file has texts by its name, or its first line has a member, or its rows a column, of text.

    True for what is not looked into. Raises StorageError.
    """
    name = os.fsencode(path)
    if is_text_name(name) or compression_of(name) is not None or (is_url(path) and not is_rows_name(name)):
        return True
    try:
        if is_rows_name(name):
            columns = open_table([path]).columns
            texts = (one.name for one in columns if one.kind is ColumnKind.TEXT and not holds_bytes(one))
            return any(one.name in _TEXTS for one in columns) or any("." not in name for name in texts)
        with regular_files.open_file(path) as file:
            value = json.loads(file.readline(_READ_NBYTES))
    except StorageError:
        raise
    except (DatapipeError, OSError, ValueError, RecursionError):  # what reads it says what is wrong
        return False
    return isinstance(value, dict) and any(isinstance(one, str) or name in _TEXTS for name, one in value.items())


class DocumentSource:
    """The documents under a place."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises OptionError for choices that are not possible."""
        for name in ("root", "class_from", "class_map"):
            if getattr(form, name) is not None:
                raise OptionError(f"--{name.replace('_', '-')} has no effect with --from documents, which have no labels")
        for choice in form.fields:
            choice.refuse_unless(("text", "json"))
        self._place = place
        self._kinds = {choice.name: FieldKind(choice.kind) for choice in form.fields}
        self._inner: bytes | None = None  # the folder in an archive
        split = split_archive_location(place) if isinstance(place, Location) else split_archive_path(place)
        if split is not None:
            self._archive: Place = split[0]
            self._inner = split[1]
            self.root: Place = self._archive.parent
            return
        self._files = RecordFiles(place, may_be=_may_be_named, is_wanted=_is_wanted, nothing=f"documents; {DOCUMENTS_ARE}")
        self.root = self._files.root

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        if self._inner is not None:
            yield from self._in_archive(os.fsencode(self._archive.name), self._inner, space, notes)
            return
        several: list[ListedFile] = []
        for file in self._files.listed(notes):
            if is_text_name(file.name):
                yield self._text_file(file)
            else:
                several.append(file)
        places = itertools.count(1)
        for file in sorted(several, key=lambda one: (one.directory, one.name)):
            notes.files[join(file.directory, file.name)] = file.nbytes, file.mtime_ns
            yield from self._rows(file, space, places) if is_rows_name(file.name) else self._lines(file, space, places)

    def facts(self) -> SourceFacts:
        fields = self._kinds or {"text": FieldKind.TEXT}
        return SourceFacts(
            fields=in_order([FieldSpec(name, kind) for name, kind in fields.items()]),
            classes=None,
            nothing="no documents in it",
            remedy=DOCUMENTS_ARE,
        )

    # -- what lies there -----------------------------------------------------------------------------

    def _in_archive(self, name: bytes, inner: bytes, space: Workspace, notes: ScanNotes) -> Iterator[ListedSample]:
        for found in scan_archive(self.root, name, space, notes):
            below = found.name
            if inner:
                if not below.startswith(inner + b"/"):
                    continue
                below = below[len(inner) + 1 :]
            if is_text_name(below):
                directory, file = divide(below)
                yield ListedSample(directory, file, 0, origins={self._text_field(): found.origin}, problem=found.problem)
            elif is_lines_name(below):
                raise OptionError(f"{self._place}: holds {os.fsdecode(found.name)}; unpack the archive to read JSON lines in it")
            else:
                notes.num_ignored += 1

    def _text_field(self) -> str:
        """Return the field of text files. Raises OptionError if others were chosen."""
        if not self._kinds:
            return "text"
        if list(self._kinds) != ["text"]:
            raise OptionError(f"{self._place}: holds text files, which have the field `text` alone; leave --field out")
        return "text"

    def _text_file(self, file: ListedFile) -> ListedSample:
        path = join(file.directory, file.name)
        origin = Origin(path, 0, file.nbytes, file.nbytes, file.mtime_ns, etag=file.etag)
        return ListedSample(file.directory, file.name, 0, origins={self._text_field(): origin}, problem=file.problem)

    # -- JSON lines --------------------------------------------------------------------------------------

    def _lines(self, file: ListedFile, space: Workspace, places: Iterator[int]) -> Iterator[ListedSample]:
        path = join(file.directory, file.name)
        held, holder = self._files.unpacked(file, space)
        if not self._kinds:
            self._kinds = self._chosen(held, path)
        steps = {name: member(name, is_text=kind is FieldKind.TEXT) for name, kind in self._kinds.items()}
        for line, start, end in lines_of(held):
            origins = {name: holder.origin(start, end - start, codec) for name, codec in steps.items()}
            yield ListedSample(path, b"line %d" % line, next(places), origins=origins)

    def _chosen(self, held: Path, path: bytes) -> dict[str, FieldKind]:
        """Return the member that is the text, from the first lines, of which some may be bad. {} if there are none.

        Raises FormatError or OptionError, of the first line, if none of them says it.
        """
        where = self.root / os.fsdecode(path)
        problem: DatapipeError | None = None
        chosen = ""
        with regular_files.open_file(held) as file:
            for line, start, end in itertools.islice(lines_of(held), _MOST_LOOKED):
                try:
                    value = _object_of(os.pread(file.fileno(), end - start, start), f"{where}: line {line}")
                    chosen = chosen or _text_among(value, f"{where}: which member is the text? Its lines have")
                except DatapipeError as exc:
                    problem = problem or exc
                    continue
                if value.get(chosen) is not None:
                    return {chosen: FieldKind.JSON if isinstance(value[chosen], (list, dict)) else FieldKind.TEXT}
        if chosen:
            return {chosen: FieldKind.JSON if chosen == _CHATS else FieldKind.TEXT}
        if problem is not None:
            raise problem
        return {}

    # -- rows -----------------------------------------------------------------------------------------------

    def _rows(self, file: ListedFile, space: Workspace, places: Iterator[int]) -> Iterator[ListedSample]:
        path = join(file.directory, file.name)
        here = self.root / os.fsdecode(path)
        if space.spool is None:
            raise FormatError(f"{here}: its rows are not read one by one as documents; convert it")
        table = open_table([str(here)])
        if not self._kinds:
            found = _text_among([column.name for column in table.columns], f"{here}: which column is the text? It has")
            self._kinds = {found: _kind_of(table.column(found), here)}
        for name in self._kinds:
            table.column(name)  # refuses a column that is not there
        mtime_ns = self._files.time_of(file)
        names = list(self._kinds)
        spooled_as = path + b"\0" + "\0".join(f"{name}={kind.value}" for name, kind in self._kinds.items()).encode()
        with spooled(space, spooled_as, nbytes=file.nbytes, mtime_ns=mtime_ns) as writer:
            reader = GroupReader(names)
            number = 0
            for group in range(table.num_groups):
                columns = {name: array.to_pylist() for name, array in reader.read(table.group(group)).items()}
                for values in zip(*(columns[name] for name in names), strict=True):
                    number += 1
                    origins = {
                        name: Origin(writer.name, writer.put(data), len(data), ANY_SIZE, mtime_ns, is_spooled=True)
                        for name, value in zip(names, values, strict=True)
                        if (data := _bytes_of(value)) is not None
                    }
                    problem = next((f"field {name!r}: is null" for name in names if name not in origins), None)
                    yield ListedSample(path, b"row %d" % number, next(places), origins=origins, problem=problem)


def _is_wanted(name: bytes) -> bool:
    return is_lines_name(name) or is_text_name(name) or is_rows_name(name)


def _may_be_named(name: bytes) -> bool:
    """Return True for the name of a file that is read as documents if it is asked for, and not found in a folder."""
    return _is_wanted(name) or name.lower().endswith(JSON_SUFFIX)


def _object_of(line: bytes, where: str) -> dict[str, Any]:
    """Return the object in a line. Raises FormatError if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"{where}: not JSON ({exc}); every line must be one JSON object") from exc
    if not isinstance(value, dict):
        raise FormatError(f"{where}: JSON, but no object; every line must be one, as `jq -c '.[]'` makes them of a list")
    return value


def _kind_of(column: TableColumn, where: Place) -> FieldKind:
    """Return what the values of a column are as texts. Raises OptionError for numbers."""
    if column.kind in (ColumnKind.NUMBER, ColumnKind.DECIMAL):
        raise OptionError(f"{where}: its column {column.name!r} has {column.type} and no texts; say --field NAME")
    is_text = column.kind is ColumnKind.TEXT or column.type == "null"
    return FieldKind.TEXT if is_text else FieldKind.JSON


def _text_among(names: Iterable[str], question: str) -> str:
    """Return the name that the text is likely to have. Raises OptionError if there is none."""
    known = list(names)
    found = next((name for name in _TEXTS if name in known), None)
    if found is None:
        raise OptionError(f"{question} {listed(known) or 'nothing'}; say --field NAME")
    return found


def _bytes_of(value: Any) -> bytes | None:
    """Return the value of a row in the form that fields have; None if there is none."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    return value.encode(errors="surrogatepass") if isinstance(value, str) else json_bytes(without_nulls(value))


open_source = DocumentSource


DOCUMENTS_ARE = "documents are {}".format(
    ", ".join(
        f"{what} ({', '.join(suffix.decode() for suffix in suffixes)})"
        for what, suffixes in (
            ("JSON lines, compressed or not", LINES_SUFFIXES),
            ("such lines, compressed, or named by a pattern", (JSON_SUFFIX,)),
            ("text files", TEXT_SUFFIXES),
            ("rows", ROWS_SUFFIXES),
        )
    )
)
