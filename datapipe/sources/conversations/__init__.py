"""Conversations and documents with images: JSON lists or lines, rows of Parquet and Arrow files, WebDataset's tars.

A record is brought into one form (`records`) and lies in the spool of the conversion, as do images that are parts of rows; other
images stay where they are: files that records name, members of tars.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import FieldKind, FieldSpec, json_bytes, without_nulls
from datapipe.codecs.stored import decode_stored
from datapipe.containers.form import Form
from datapipe.containers.listing import ListedFile, is_image_name
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.containers.tables.files import open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.containers.tar.scanner import split_name
from datapipe.core import regular_files
from datapipe.core.printable import listed
from datapipe.errors import DatapipeError, DecodeError, FormatError, OptionError, StorageError
from datapipe.index.listed import ANY_SIZE, ListedSample, Origin, ScanNotes, SourceFacts, Workspace, join
from datapipe.sources.archives.members import ArchiveMember, scan_archive
from datapipe.sources.conversations.records import COLUMNS, Record, record_of
from datapipe.sources.json_stream import list_elements
from datapipe.sources.lists.named_files import FileLookup, open_files, refuse_missing_root, root_of
from datapipe.sources.record_files import JSON_SUFFIX, RecordFiles, is_lines_name, is_rows_name, lines_of
from datapipe.sources.spool import SpoolWriter, spooled
from datapipe.stores.location import Location, Place
from datapipe.stores.random_access import RemoteBytes

CONVERSATION = FieldSpec("conversation", FieldKind.JSON)  # as `records.Record.content`
IMAGES = FieldSpec("images", FieldKind.IMAGES)
_ARE = "conversations are JSON lists or lines (.json, .jsonl), rows (.parquet, .arrow), or tars (.tar) of JSON and images"
_READ_NBYTES = 8 << 20
_MOST_LOOKED = 100  # records at which one looks for images
_ROWS_AT_ONCE = 64  # whose images are held in memory, besides those of the row group
_WITH_IMAGES = ("messages", "conversations", "prompt", "images", "image", "image_info")  # columns of rows that may have images
_SPACE = b" \t\r\n"
_WEB = ("http://", "https://")


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place may be read as conversations with images: its first record is one. None if it is not, or not known."""
    if look.is_stored or look.nature is Nature.NOTHING:
        return None
    first = next(look.paths(_may_be_named), None)
    is_one = first is not None and look.once(f"conversation in {first}", lambda: _has_images(Path(first)))
    return Evidence("one of its first records has images", Strength.LIKELY) if is_one else None


def _has_images(path: Path) -> bool:
    """Return True if one of the first records of a file is a conversation, or a document, with images. Raises StorageError."""
    try:
        return any(map(_is_with_images, itertools.islice(_first_records(path), _MOST_LOOKED)))
    except StorageError:
        raise
    except (DatapipeError, OSError, ValueError, RecursionError):  # what reads it says what is wrong
        return False


def _is_with_images(value: Any) -> bool:
    try:
        return bool(record_of(value).images)
    except DecodeError:
        return False


def _first_records(path: Path) -> Iterator[Any]:
    """Yield the records of a file of JSON or of rows, as far as there may be images in them."""
    if is_rows_name(os.fsencode(path)):
        names = {column.name.partition(".")[0] for column in open_table([str(path)]).columns}
        yield from _row_values(str(path)) if names.intersection(_WITH_IMAGES) else ()
    elif path.suffix.lower().encode() not in (JSON_SUFFIX, b".jsonl", b".ndjson"):
        return
    elif _is_list(path):
        yield from list_elements(path)
    else:
        with regular_files.open_file(path) as file:
            yield from (json.loads(line) for line in iter(lambda: file.readline(_READ_NBYTES), b"") if line.strip())


class ConversationSource:
    """The conversations of a place; see `Source`."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises OptionError for choices that are not possible, MissingDataError for a pattern that matches nothing."""
        for name in ("class_from", "class_map", "fields"):
            if getattr(form, name):
                raise OptionError(f"--{name.replace('_', '-').rstrip('s')} has no effect with --from conversations; leave it out")
        self._place = place
        self._num_images = 0  # files beside those of records
        self._files = RecordFiles(place, may_be=_may_be_named, is_wanted=self._is_wanted, nothing=f"conversations; {_ARE}")
        if form.root is not None:
            if isinstance(place, Location):
                raise OptionError(f"--root {form.root}: names in a store start from the folder of their file; leave it out")
            refuse_missing_root(form.root)
        self._given_root = form.root
        self.root: Place = self._files.root if form.root is None else root_of(form.root)

    def _is_wanted(self, name: bytes) -> bool:
        self._num_images += is_image_name(name)
        return _may_be_named(name)

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        files = sorted(self._files.listed(notes), key=lambda one: (one.directory, one.name))
        notes.num_ignored -= self._num_images
        places = itertools.count(1)
        with contextlib.ExitStack() as stack:
            lookup: FileLookup | None = None
            for file in files:
                if file.name.endswith(b".tar"):
                    yield from self._in_tar(file, notes, space, places)
                    continue
                if lookup is None:
                    lookup = stack.enter_context(open_files(self._given_root or self.root, self._listed_in(file), space, notes))
                with _spooled(space, self._files, file) as writer:
                    listing = _Listing(join(file.directory, file.name), writer, self._files.time_of(file))
                    for name, value in self._values(file, space):
                        yield listing.sample(name, value, next(places), lookup)
            if lookup is not None:
                lookup.refuse_wrong_root()

    def facts(self) -> SourceFacts:
        return SourceFacts(
            fields=(CONVERSATION, IMAGES),
            classes=None,
            nothing="no conversations in it",
            remedy=_ARE,
        )

    def _listed_in(self, file: ListedFile) -> Place:
        return self._files.root / os.fsdecode(join(file.directory, file.name))

    def _values(self, file: ListedFile, space: Workspace) -> Iterator[tuple[bytes, Any]]:
        """Yield the records of a file, each with its name, or what is wrong with it."""
        if is_rows_name(file.name):
            yield from ((b"row %d" % number, one) for number, one in enumerate(_row_values(str(self._listed_in(file))), 1))
            return
        held, _ = self._files.unpacked(file, space)
        if _is_list(held):
            yield from ((b"record %d" % number, one) for number, one in enumerate(list_elements(held), 1))
            return
        with regular_files.open_file(held) as lines:
            for line, start, end in lines_of(held):
                yield b"line %d" % line, _parsed(os.pread(lines.fileno(), end - start, start))

    def _in_tar(self, file: ListedFile, notes: ScanNotes, space: Workspace, places: Iterator[int]) -> Iterator[ListedSample]:
        """Yield the samples of a tar: a JSON file each, and the images of the same key."""
        if self._given_root is not None:
            raise OptionError(f"--root {self._given_root}: images lie in the tars of {self._place}; leave it out")
        path = join(file.directory, file.name)
        groups = itertools.groupby(scan_archive(self.root, path, space, notes), lambda one: _divided(one.name)[0])
        with _spooled(space, self._files, file) as writer:
            listing = _Listing(path, writer, self._files.time_of(file))
            for key, members in groups:
                found = list(members)
                yield listing.sample(key, self._json_among(found, space), next(places), _Members(found))

    def _json_among(self, members: Sequence[ArchiveMember], space: Workspace) -> Any:
        """Return the record among the members of a key, or what is wrong with them."""
        texts = [one for one in members if one.name.lower().endswith(JSON_SUFFIX)]
        if len(texts) != 1:
            shown = listed([os.fsdecode(one.name) for one in members])
            return DecodeError(f"has {len(texts)} members of JSON ({shown}); expected one, which says the conversation")
        if texts[0].problem is not None:
            return DecodeError(f"{os.fsdecode(texts[0].name)}: {texts[0].problem}")
        try:
            return _parsed(self._bytes_of(texts[0].origin, space))
        except DecodeError as exc:
            return exc

    def _bytes_of(self, origin: Origin, space: Workspace) -> bytes:
        """Return a member of a tar. Raises DecodeError, StorageError."""
        root = self.root
        if origin.is_spooled:
            assert space.spool is not None
            root = space.spool
        place = root / os.fsdecode(origin.path)
        if isinstance(place, Location):
            data = RemoteBytes(str(place))[origin.offset : origin.offset + origin.nbytes]
        else:
            with regular_files.open_file(place) as file:
                data = os.pread(file.fileno(), origin.nbytes, origin.offset)
        return decode_stored(data, origin.codec)


class _Listing:
    """Lists the records of one file, whose contents go to the spool."""

    def __init__(self, path: bytes, writer: SpoolWriter, mtime_ns: int) -> None:
        self._path, self._writer, self._mtime_ns = path, writer, mtime_ns

    def sample(self, name: bytes, value: Any, place: int, lookup: FileLookup | _Members) -> ListedSample:
        """Return a record as a sample. `value`: its JSON, or what is wrong with it."""
        try:
            if isinstance(value, DecodeError):
                raise value
            record = record_of(value, beside=lookup.names if isinstance(lookup, _Members) else ())
        except DecodeError as exc:
            return ListedSample(self._path, name, place, problem=str(exc))
        origins, problem = self._origins_of(record, lookup)
        return ListedSample(self._path, name, place, origins=origins, problem=problem)

    def _origins_of(self, record: Record, lookup: FileLookup | _Members) -> tuple[Mapping[str, Origin], str | None]:
        """Return where the parts of a record lie, and what is wrong with the first image that cannot be found."""
        try:
            data = json_bytes(record.content)
        except UnicodeEncodeError:
            return {}, "has half of a surrogate pair, which is no text"
        origins = {CONVERSATION.name: self._put(data)}
        problem: str | None = None
        for number, image in enumerate(record.images):
            name, why = f"{IMAGES.name}/{number}", None
            if isinstance(image, bytes):
                origins[name] = self._put(image)
                continue
            if image.startswith(_WEB):
                why = "on the web; fetch the images first, as img2dataset does, and have the records name the files"
            else:
                _, origin, why = lookup.find(image)
                if origin is not None:
                    origins[name] = origin
            problem = problem or (None if why is None else f"image {number + 1}, {image[:200]!r}: {why}")
        return origins, problem

    def _put(self, data: bytes) -> Origin:
        return Origin(self._writer.name, self._writer.put(data), len(data), ANY_SIZE, self._mtime_ns, is_spooled=True)


class _Members:
    """Finds the images of a record among the members of its key: by their paths, their names, or what follows the key."""

    def __init__(self, members: Sequence[ArchiveMember]) -> None:
        images = sorted((one for one in members if is_image_name(one.name)), key=lambda one: _numbers_apart(one.name))
        self.names = [os.fsdecode(one.name) for one in images]  # 2 before 10
        self._found = {
            name: one
            for one in images
            for name in (_divided(one.name)[1], os.path.basename(os.fsdecode(one.name)), os.fsdecode(one.name))
        }

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        """Return as `FileLookup.find` does."""
        found = self._found.get(text, self._found.get(os.path.basename(text)))
        if found is None and len(self.names) == 1:
            found = self._found[self.names[0]]
        if found is None:
            return b"", None, f"is none of the images of its key: {listed(self.names) or 'there are none'}"
        return found.name, None if found.problem else found.origin, found.problem


open_source = ConversationSource


@contextlib.contextmanager
def _spooled(space: Workspace, files: RecordFiles, file: ListedFile) -> Iterator[SpoolWriter]:
    """Open the spooled file for the records of a file."""
    path = join(file.directory, file.name)
    if space.spool is None:
        raise FormatError(f"{files.root / os.fsdecode(path)}: conversations are not read in place; convert them, --to tokens")
    with spooled(space, path + b"\0conversations", nbytes=file.nbytes, mtime_ns=files.time_of(file)) as writer:
        yield writer


def _may_be_named(name: bytes) -> bool:
    """Return True for the name of a file of records."""
    return is_lines_name(name) or is_rows_name(name) or name.lower().endswith((JSON_SUFFIX, b".tar"))


def _divided(name: bytes) -> tuple[bytes, str]:
    """Return the key of a member, and what follows it."""
    return split_name(name) or (name, "")


def _numbers_apart(name: bytes) -> list[bytes | int]:
    """Return the parts of a name, its numbers as such, so that names sort as people count."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(rb"(\d+)", name))]


def _is_list(path: Path) -> bool:
    """Return True for a file of one JSON list."""
    with regular_files.open_file(path) as file:
        return file.read(_READ_NBYTES).lstrip(b"\xef\xbb\xbf" + _SPACE).startswith(b"[")


def _parsed(data: bytes) -> Any:
    """Return a JSON value, or a DecodeError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        return DecodeError(f"not JSON ({exc}); every line must be one JSON object, or the file one list of them")


def _row_values(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as records, with the columns that may belong to one. Raises as reading tables does."""
    table = open_table([path])
    names = [column.name for column in table.columns if column.name.partition(".")[0] in COLUMNS]
    if not names:
        raise OptionError(f"{path}: has none of the columns {', '.join(COLUMNS)}; it holds no conversations")
    reader = GroupReader(names)
    for group in range(table.num_groups):
        arrays = reader.read(table.group(group))
        for first in range(0, table.group(group).num_rows, _ROWS_AT_ONCE):
            columns = [arrays[name].slice(first, _ROWS_AT_ONCE).to_pylist() for name in names]
            yield from (_row(names, values) for values in zip(*columns, strict=True))


def _row(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the record in a row. A struct, whose members are columns, is null if all of them are."""
    row: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        top, _, inner = name.partition(".")
        if not inner:
            row[top] = value
        elif value is not None:
            row.setdefault(top, {})[inner] = value
    return {name: without_nulls(value) for name, value in row.items()}
