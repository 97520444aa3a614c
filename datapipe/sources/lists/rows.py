"""Read the rows of a manifest: CSV with a header, or a JSON object per line. Errors name file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from datapipe.core import regular_files
from datapipe.errors import FormatError, MissingDataError, StorageError

_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_UTF8_BOM = b"\xef\xbb\xbf"
MAX_LINE_NBYTES = 16 << 20  # held in memory several times
_DELIMITERS = (",", "\t", ";")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """The row of one sample."""

    line: int  # in the file, from 1; the last line of a row of several lines
    cells: dict[str, Any]  # by column: texts in CSV, JSON values otherwise; absent keys are left out


def is_json_lines(path: Path) -> bool:
    """Return True if the manifest's name says that it is JSON lines."""
    return path.suffix.lower() in JSON_SUFFIXES


def read_rows(path: Path, *, has_quotes: bool = True) -> Iterator[ManifestRow]:
    """Yield the rows. `has_quotes`: whether quotes of a CSV mean anything.

    Raises MissingDataError, StorageError or FormatError, which names the line.
    """
    return _json_rows(path) if is_json_lines(path) else _csv_rows(path, has_quotes=has_quotes)


def read_header(path: Path) -> list[str]:
    """Return the columns of a CSV, in order. Raises as `read_rows` does."""
    lines = text_lines(path)
    try:
        return next(_parsed(path, lines))[1]
    except StopIteration:
        raise FormatError(f"{path}: is empty; its first line must name the columns, such as `path,label`") from None


def _csv_rows(path: Path, *, has_quotes: bool) -> Iterator[ManifestRow]:
    rows = _parsed(path, text_lines(path), has_quotes=has_quotes)
    columns = next(rows, (0, []))[1]
    _check_header(path, columns)
    for line, cells in rows:
        if not cells:
            continue
        if len(cells) != len(columns):
            raise FormatError(
                f"{path}: line {line} has {len(cells)} cells, the header {len(columns)} columns ({', '.join(columns)});"
                " repair it, or quote cells that hold commas"
            )
        yield ManifestRow(line, dict(zip(columns, cells, strict=True)))


def _check_header(path: Path, columns: list[str]) -> None:
    for number, name in enumerate(columns, 1):
        if not name.strip():
            raise FormatError(f"{path}: line 1: column {number} has no name; the first line must name the columns")
        if columns.count(name) > 1:
            raise FormatError(f"{path}: line 1: two columns are called {name!r}; rename one")


def _parsed(path: Path, lines: Iterator[str], *, has_quotes: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) by Python's csv module, strict about quotes; the delimiter is the one that the header uses."""
    first = next(lines, None)
    if first is None:
        return
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    if path.suffix.lower() == ".tsv":
        delimiter = "\t"

    def all_lines() -> Iterator[str]:
        yield first
        yield from lines

    reader = csv.reader(
        all_lines(), delimiter=delimiter, strict=True, quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    )
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as exc:
        raise FormatError(f"{path}: line {reader.line_num}: not CSV ({exc}); repair it, and check the quotes before it") from exc


def _json_rows(path: Path) -> Iterator[ManifestRow]:
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as exc:
            raise FormatError(f"{path}: line {number}: not JSON ({exc}); every line must be one JSON object") from exc
        if not isinstance(value, dict):
            raise FormatError(f"{path}: line {number}: holds {type(value).__name__}, not an object; write one object per line")
        yield ManifestRow(number, value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON; write null")


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text with their ends: the line feeds, and no other character that could end a line.

    Raises MissingDataError, StorageError, or FormatError for what is not UTF-8; a byte order mark is passed over.
    """
    try:
        with regular_files.open_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_NBYTES + 1), b""), 1):
                if len(line) > MAX_LINE_NBYTES:
                    raise FormatError(f"{path}: line {number} has more than {MAX_LINE_NBYTES} bytes: no manifest; check the path")
                if number == 1:
                    if line[:2] in _BOMS:
                        raise FormatError(f"{path}: is {_BOMS[line[:2]]} text; save it as UTF-8")
                    line = line.removeprefix(_UTF8_BOM)
                try:
                    yield line.decode()
                except UnicodeDecodeError as exc:
                    raise FormatError(
                        f"{path}: line {number}: byte 0x{line[exc.start]:02x} is not UTF-8; save the file as UTF-8"
                    ) from exc
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check the path of the source") from exc
    except OSError as exc:
        raise StorageError(f"{path}: cannot be read ({exc.strerror}); check its permissions") from exc
