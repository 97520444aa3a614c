"""A manifest: a CSV or JSON-lines file with one row per sample that names its files, its label and further values.

A sample's id is its row's position. The manifest is read twice: once to find the contents of its columns, once to list.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import NO_LABEL, FieldKind
from datapipe.containers.form import ClassFrom, Form
from datapipe.containers.labels import LabelCensus, label_said
from datapipe.containers.listing import is_audio_name, is_image_name, is_video_name
from datapipe.containers.look import Evidence, Look, Strength
from datapipe.core.regular_files import open_file
from datapipe.errors import DatapipeError, FormatError, MissingDataError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide
from datapipe.sources.fields import Choices, in_order, is_finite
from datapipe.sources.lists.columns import Census, KeptColumn, assign
from datapipe.sources.lists.named_files import list_and_root, open_files, refuse_missing_root, root_of
from datapipe.sources.lists.parts import what_it_lists
from datapipe.sources.lists.rows import ManifestRow, is_json_lines, read_header, read_rows
from datapipe.stores.location import Place

_LISTS = re.compile(r".+\.(csv|tsv|jsonl|ndjson)", re.IGNORECASE)
_OF_FILES = re.compile(rb"(?i)\b(images?|path|file|file_?name|filepath|image_path|video|audio)\b")  # columns
_HEAD_NBYTES = 64 << 10
_LOOKED_AT = 5  # rows that decide whether a text lists files


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a file is a list of samples; None if it is none. One whose cells name no files may be one, if it is wanted."""
    name = os.fsdecode(look.name)
    if look.is_stored or not _LISTS.fullmatch(name) or what_it_lists(look):
        return None
    is_list = form.has_choices or names_files(look, str(look.place))
    return Evidence(f"its name ends with {look.suffix}", Strength.CERTAIN if is_list else Strength.GUESS)


def names_files(look: Look, path: str) -> bool:
    """Return True for a list whose first rows name images, videos or sound, or files beside it.

    Of one that does not parse, the names of its columns tell.
    """
    return look.once(f"files named in {path}", lambda: _names_files(Path(path)))


def _names_files(path: Path) -> bool:
    try:
        cells = [cell for row in itertools.islice(read_rows(path), _LOOKED_AT) for cell in row.cells.values()]
    except DatapipeError:
        with contextlib.suppress(OSError), open_file(path) as file:
            return _OF_FILES.search(file.readline(_HEAD_NBYTES)) is not None
        return False
    return any(_is_file(cell, path.parent) for cell in cells if isinstance(cell, str) and cell)


def _is_file(cell: str, folder: Path) -> bool:
    """Return True if a cell names a file of samples, or one that is there."""
    try:
        name = os.fsencode(cell)
        return is_image_name(name) or is_video_name(name) or is_audio_name(name) or (folder / cell).is_file()
    except (OSError, ValueError):
        return False


class ManifestSource:
    """The rows of a manifest."""

    def __init__(self, place: Place, form: Form) -> None:
        """Read all of the manifest once.

        Raises MissingDataError, StorageError, FormatError for a file that does not parse, OptionError if the roles of columns are
        not clear.
        """
        self._path, self._place = list_and_root(place, form, what="the list, a .csv, .tsv or .jsonl")
        self.root = root_of(self._place)
        refuse_class_from(form)
        self._is_typed = is_json_lines(self._path)
        refuse_missing_root(self._place)
        self._columns = assign(str(self._path), self._take_census(), Choices(form.fields), is_typed=self._is_typed)
        self._census = LabelCensus(form.class_map)
        self._label = next((column for column in self._columns if column.is_label), None)
        if self._label is None and form.class_map is not None:
            raise OptionError(f"--class-map {form.class_map}: {self._path} has no label; choose it by --field COLUMN=label")

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        with open_files(self._place, self._path, space, notes) as self._files:
            for place, row in enumerate(read_rows(self._path)):
                yield self._listed(place, row)
            self._files.refuse_wrong_root()

    def facts(self) -> SourceFacts:
        return SourceFacts(
            fields=in_order(column.field for column in self._columns),
            classes=None if self._label is None else self._census.classes(),
            labels=None if self._label is None else self._census.labels(),
        )

    def _take_census(self) -> dict[str, Census]:
        found = {} if self._is_typed else {name: Census() for name in read_header(self._path)}
        row = None
        for row in read_rows(self._path):
            for name, cell in row.cells.items():
                if name not in found:
                    found[name] = Census()
                found[name].count(cell)
        if row is None:
            raise MissingDataError(
                f"{self._path}: no rows{'' if self._is_typed else ' below its header'}; check the path of the source"
            )
        return found

    def _listed(self, place: int, row: ManifestRow) -> ListedSample:
        origins: dict[str, Origin] = {}
        values: dict[str, str] = {}
        problems: list[str] = []
        source = b""
        for column in self._columns:
            cell, name = row.cells.get(column.name), column.field.name
            if column.is_label:
                continue
            try:
                if column.is_path:
                    path, origins[name] = self._find(column, cell)
                    source = source if source and name != "image" else path
                else:
                    values[name] = _value(column, cell, is_typed=self._is_typed)
            except _BadCell as exc:
                problems.append(str(exc))
                source = source or exc.path
        label = NO_LABEL
        if self._label is not None:
            try:
                label = self._number(self._label, row)
            except _BadCell as exc:
                problems.append(str(exc))
        directory, file = divide(source or b"line %d" % row.line)
        problem = f"line {row.line}: {'; '.join(problems)}" if problems else None
        return ListedSample(directory, file, place, label, origins, values, problem=problem)

    def _find(self, column: KeptColumn, cell: Any) -> tuple[bytes, Origin]:
        if not isinstance(cell, str) or not cell:
            raise _BadCell(f"{column.name!r} is {_shown(cell)}, not the name of a file")
        path, origin, problem = self._files.find(cell)
        if origin is None:
            named = "" if str(problem).startswith(repr(cell)) else f" is {cell!r}"
            raise _BadCell(f"{column.name!r}{named}: {problem}", path)
        return path, origin

    def _number(self, column: KeptColumn, row: ManifestRow) -> int:
        cell = row.cells.get(column.name)
        said = label_said(cell)
        if said == "":
            raise _BadCell(f"{column.name!r} is empty: no label")
        if said is None:
            raise FormatError(
                f"{self._path}: line {row.line}: {column.name!r} is {_shown(cell)}: not a class;"
                f" keep it as a value with --field {column.name}=json"
            )
        try:
            os.fsencode(said)
        except UnicodeEncodeError as exc:
            raise _BadCell(f"{column.name!r} is {_shown(cell)}, which contains half of a surrogate pair") from exc
        try:
            return self._census.number(said)
        except OptionError as exc:
            raise OptionError(f"{self._path}: line {row.line}: {exc}") from exc


class _BadCell(Exception):  # noqa: N818  # never leaves this module
    """The reason why a row is a bad sample, and its name if known."""

    def __init__(self, reason: str, path: bytes = b"") -> None:
        super().__init__(reason)
        self.path = path


def _value(column: KeptColumn, cell: Any, *, is_typed: bool) -> str:
    """Return the plan's form of a cell: text, or JSON text. Raises _BadCell."""
    if column.number and not _is_number(column.number, cell, is_typed=is_typed):
        raise _BadCell(f"{column.name!r} is {_shown(cell)}, not {'a whole' if column.number == 'int' else 'a'} number")
    if column.field.kind is FieldKind.TEXT:
        if cell is not None and not isinstance(cell, str):
            raise _BadCell(f"{column.name!r} is {_shown(cell)}, not a text")
        if cell is None and is_typed:
            raise _BadCell(f"{column.name!r} is missing")
        return str(cell or "")
    if is_typed:
        try:
            return json.dumps(cell, ensure_ascii=False, allow_nan=False)
        except ValueError as exc:
            raise _BadCell(f"{column.name!r} holds a number that is too large for JSON") from exc
    return cell.strip() or "null"


def _is_number(wanted: str, cell: Any, *, is_typed: bool) -> bool:
    if cell is None or cell == "":
        return True
    if not is_typed:
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return False
    return is_finite(cell) and (wanted == "float" or isinstance(cell, int))


def _shown(cell: Any) -> str:
    if cell is None or cell == "":
        return "empty"
    text = repr(cell)
    return text if len(text) <= 40 else text[:37] + "..."


def refuse_class_from(form: Form) -> None:
    """Raise OptionError if classes should come from folders, for a source that provides labels itself."""
    if form.class_from not in (None, ClassFrom.NONE):
        raise OptionError(
            f"--class-from {form.class_from.value}: has no effect with --from {form.name}, which provides the labels"
        )


open_source = ManifestSource
