"""Lists of parts of videos: CSV or JSON lines with a path, and start, end (seconds) and label if there are any."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipe.containers.listing import VIDEO_SUFFIXES
from datapipe.containers.lists.rows import JSON_SUFFIXES, read_rows
from datapipe.errors import DatapipeError, FormatError, MissingDataError
from datapipe.index.clips import VideoPart
from datapipe.stores.location import is_url

LIST_SUFFIXES = (".csv", ".tsv", *JSON_SUFFIXES)
_PATHS = ("path", "video", "video_path", "file", "file_name", "filename", "filepath")  # columns of lists: the first that there is
_STARTS, _ENDS = ("start", "start_time", "time_start", "t_start"), ("end", "end_time", "time_end", "t_end")
_LABELS = ("label", "class", "target", "category", "class_name")


def lists_videos(path: Path) -> bool:
    """Return True for a list whose first row names a video; a list that does not parse is left to what reads it."""
    row = None
    with contextlib.suppress(DatapipeError):
        row = next(read_rows(path), None)
    named = None if row is None else _first(row.cells, _PATHS)
    cell = None if row is None or named is None else row.cells[named]
    return isinstance(cell, str) and cell.lower().endswith(VIDEO_SUFFIXES)


def read_parts(path: Path, root: Path | None = None) -> tuple[list[str], list[VideoPart], tuple[str, ...] | None]:
    """Return the videos that a list names, each once, the parts in its order, and the names of classes by label.

    Names are those of files relative to `root`, the folder of the list unless it is given, or URLs. Raises MissingDataError,
    StorageError, or FormatError for a list that names no videos, or a part that none can have.
    """
    rows = list(read_rows(path))
    base = (root or path.parent).absolute()
    if not rows:
        raise MissingDataError(f"{path}: names no videos")
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    named, start, end, label = (_first(columns, names) for names in (_PATHS, _STARTS, _ENDS, _LABELS))
    if named is None:
        raise FormatError(f"{path}: no column names the videos ({', '.join(columns)}); call it path")
    numbers: dict[str, int] = {}
    parts, labels = [], []
    for row in rows:
        where = f"{path}: line {row.line}"
        text = row.cells.get(named)
        if not isinstance(text, str) or not text:
            raise FormatError(f"{where}: {named} is {text!r:.60}; name a video")
        name = text if is_url(text) else os.path.normpath(os.path.join(base, text))
        begin = _seconds(row.cells, start, where, otherwise=0.0)
        stop = _seconds(row.cells, end, where, otherwise=math.inf)
        if not 0 <= begin < stop:
            raise FormatError(f"{where}: from {begin:g} to {stop:g} s is no part of a video; repair it")
        labels.append(None if label is None else row.cells.get(label))
        parts.append(VideoPart(numbers.setdefault(name, len(numbers)), begin, stop))
    found, classes = _labels(labels, path, label)
    return [*numbers], [part._replace(label=number) for part, number in zip(parts, found, strict=True)], classes


def _first(columns: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _seconds(cells: Mapping[str, Any], column: str | None, where: str, *, otherwise: float) -> float:
    """Return a number of seconds; `otherwise` for an empty cell."""
    cell = None if column is None else cells.get(column)
    if cell is None or cell == "":
        return otherwise
    try:
        seconds = float(cell)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise FormatError(f"{where}: {column} is {cell!r:.60}; give seconds, such as 12.5")
    return seconds


def _labels(cells: Sequence[Any], path: Path, column: str | None) -> tuple[list[int], tuple[str, ...] | None]:
    """Return labels as numbers: those of the list if all are whole numbers, else places among the sorted names."""
    texts = [str(cell) if isinstance(cell, (str, int)) and not isinstance(cell, bool) else "" for cell in cells]
    if column is None or not any(texts):
        return [-1] * len(cells), None
    if "" in texts:
        raise FormatError(f"{path}: row {texts.index('') + 1} has no {column}; give one to each row, or to none")
    if all(text.isdecimal() for text in texts):
        return [int(text) for text in texts], None
    classes = tuple(sorted({*texts}, key=os.fsencode))
    known = {name: label for label, name in enumerate(classes)}
    return [known[text] for text in texts], classes
