"""Lists of parts of recordings or videos: a path, and start, end (seconds), label and text if there are any; CSV, JSON lines."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.containers.forms import AUDIO, AUDIO_SUFFIXES, VIDEO_SUFFIXES, VIDEOS
from datapipe.containers.labels import LABEL_NAMES, LabelCensus, class_number, label_said
from datapipe.containers.look import Look
from datapipe.core import regular_files
from datapipe.errors import DatapipeError, FormatError, MissingDataError, OptionError
from datapipe.sources.lists.rows import JSON_SUFFIXES, ManifestRow, read_rows
from datapipe.stores.location import is_url

LIST_SUFFIXES = (".csv", ".tsv", *JSON_SUFFIXES)

_FIRST_NBYTES = 64 << 10  # in which the first line of a list ends

# Columns: the first that there is.
_PATHS = (
    "path", "video", "video_path", "audio", "audio_path", "audio_filepath", "file", "file_name", "filename", "filepath",
)  # fmt: skip
_STARTS, _ENDS = ("start", "start_time", "time_start", "t_start", "offset"), ("end", "end_time", "time_end", "t_end")
_DURATIONS = ("duration",)
TEXTS = ("text", "sentence", "transcript", "transcription", "caption")


def what_it_lists(look: Look) -> str:
    """Return the form of the media that a list names, VIDEOS or AUDIO; "" for what is no list of these."""
    if look.is_stored or not os.fsdecode(look.name).lower().endswith(LIST_SUFFIXES):
        return ""
    path = Path(str(look.place))
    forms = ((VIDEOS, VIDEO_SUFFIXES), (AUDIO, AUDIO_SUFFIXES))
    return look.once("lists", lambda: next((form for form, suffixes in forms if lists_files(path, suffixes)), ""))


def lists_files(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Return True for a list whose first row names a file that ends so; a list that does not parse is left to what reads it."""
    row = None
    with contextlib.suppress(DatapipeError):
        row = next(read_rows(path), None) if path.suffix.lower() != ".json" or _has_lines(path) else None
    cells = {} if row is None else row.cells
    cell = cells.get(next((name for name in _PATHS if name in cells), ""))
    return isinstance(cell, str) and cell.lower().endswith(suffixes)


def _has_lines(path: Path) -> bool:
    """Return False for a large JSON document, which would be parsed for its first line."""
    with regular_files.open_file(path) as file:
        return b"\n" in (head := file.read(_FIRST_NBYTES)) or len(head) < _FIRST_NBYTES


@dataclass(frozen=True, slots=True, eq=False)
class ListedParts:
    """The parts that a list names, in its order."""

    paths: tuple[str, ...]  # of the files, each once: absolute, or URLs
    file: NDArray[np.int64]  # (p,) the number of each part's file
    start: NDArray[np.float64]  # (p,) seconds
    end: NDArray[np.float64]  # (p,) seconds; infinite: the end of the file
    labels: NDArray[np.int64] | None = None  # (p,); None: the list has none
    classes: tuple[str, ...] | None = None  # by label; None: labels are numbers, or there are none
    texts: list[str] | None = None  # of each part; None: the list has none

    @classmethod
    def whole(cls, paths: tuple[str, ...], **known: Any) -> ListedParts:
        """Return files that are a part each, whole. `known`: their labels, classes and texts."""
        num = len(paths)
        return cls(paths, np.arange(num), np.zeros(num), np.full(num, np.inf), **known)


def read_parts(path: Path, *, root: Path | None = None, has_quotes: bool = True) -> ListedParts:
    """Return the parts that a list names. Paths are relative to `root`, by default the list's folder.

    `has_quotes`: whether quotes of a CSV mean anything. Raises MissingDataError, StorageError, or FormatError, which names the
    line, for a list that names nothing, or a part that no file can have.
    """
    rows = list(read_rows(path, has_quotes=has_quotes))
    if not rows:
        raise MissingDataError(f"{path}: names no files")
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    named, start, end, duration, label, text = (
        next((name for name in names if name in columns), None)
        for names in (_PATHS, _STARTS, _ENDS, _DURATIONS, LABEL_NAMES["parts"], TEXTS)
    )
    if named is None:
        raise FormatError(f"{path}: no column names the files ({', '.join(columns)}); call it path")
    base = (root or path.parent).absolute()
    numbers: dict[str, int] = {}
    file, starts, ends = [], [], []
    for row in rows:
        where = f"{path}: line {row.line}"
        name = row.cells.get(named)
        if not isinstance(name, str) or not name:
            raise FormatError(f"{where}: {named} is {name!r:.60}; name a file")
        name = _possible(name if is_url(name) else os.path.normpath(os.path.join(base, name)))
        file.append(numbers.setdefault(name, len(numbers)))
        begin = _seconds(row.cells, start, where, otherwise=0.0)
        stop = _seconds(row.cells, end, where, otherwise=begin + _seconds(row.cells, duration, where, otherwise=math.inf))
        if not 0 <= begin < stop:
            raise FormatError(f"{where}: from {begin:g} to {stop:g} s is no part of a file; repair it")
        starts.append(begin)
        ends.append(stop)
    labels, classes = (None, None) if label is None else _labels(rows, path, label)
    texts = None if text is None else [_text(row, text, path) for row in rows]
    return ListedParts(tuple(numbers), np.array(file, np.int64), np.array(starts), np.array(ends), labels, classes, texts)


def _possible(name: str) -> str:
    """Return a name that a file can have: NUL, and half of a surrogate pair, which JSON can have, are written out."""
    name = name.replace("\0", "\\x00")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return name.encode(errors="backslashreplace").decode()
    return name


def _seconds(cells: Mapping[str, Any], column: str | None, where: str, *, otherwise: float) -> float:
    """Return a number of seconds; `otherwise` for an empty cell."""
    cell = None if column is None else cells.get(column)
    if cell is None or cell == "":
        return otherwise
    try:
        seconds = float(cell)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise FormatError(f"{where}: {column} is {cell!r:.60}; give seconds, such as 12.5")
    return seconds


def _labels(rows: Sequence[ManifestRow], path: Path, column: str) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Return labels as numbers: those of the list if all are whole numbers, else places among the sorted names."""
    cells = [row.cells.get(column) for row in rows]
    texts = [label_said(cell) or "" for cell in cells]
    if not any(texts):
        return None, None
    if "" in texts:
        raise FormatError(f"{path}: row {texts.index('') + 1} has no {column}; give one to each row, or to none")
    numbers = [*map(class_number, texts)]
    if None not in numbers:
        return np.array(numbers, np.int64), None
    census, met = LabelCensus(), []
    for row, text in zip(rows, texts, strict=True):
        try:
            met.append(census.number(text))
        except OptionError as exc:
            raise OptionError(f"{path}: line {row.line}: {exc}") from exc
    try:
        labels = census.labels()
    except OptionError as exc:
        raise OptionError(f"{path}: {exc}") from exc
    return np.array([labels[number] for number in met], np.int64), census.classes()


def _text(row: ManifestRow, column: str, path: Path) -> str:
    cell = row.cells.get(column)
    if cell is not None and not isinstance(cell, str):
        raise FormatError(f"{path}: line {row.line}: {column} is {cell!r:.60}; give a text")
    return cell or ""
