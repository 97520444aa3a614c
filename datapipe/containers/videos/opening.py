"""Find the videos that a path means, and the parts of them that clips are taken from: a folder, files, or a list of parts."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.file_tree import FileKind, FolderSource
from datapipe.containers.form import ClassFrom, Form
from datapipe.containers.lists.rows import JSON_SUFFIXES, read_rows
from datapipe.containers.videos.indexing import open_videos
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.clips import VideoPart, VideoParts
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.index.videos import VideoSource
from datapipe.stores.location import is_url

ClipSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".m2ts", ".wmv", ".flv", ".3gp", ".ogv")
LIST_SUFFIXES = (".csv", ".tsv", *JSON_SUFFIXES)
_PATHS = ("path", "video", "video_path", "file", "file_name", "filename", "filepath")  # columns of lists: the first that there is
_STARTS, _ENDS = ("start", "start_time", "time_start", "t_start"), ("end", "end_time", "time_end", "t_end")
_LABELS = ("label", "class", "target", "category", "class_name")


def is_video_name(name: bytes) -> bool:
    """Return True if a file's name says that it is a video."""
    return name.lower().endswith(tuple(suffix.encode() for suffix in SUFFIXES))


def open_parts(source: ClipSource) -> tuple[VideoParts, str]:
    """Return the parts of the videos that a source means, in order, and where they lie, for people.

    `source`: a folder of videos, whose top folders are classes if all of them lie in such; a file, a glob pattern or a list of
    files; or a list of parts, CSV or JSON lines, with a path, and start, end (seconds) and label if there are any.
    Raises MissingDataError, StorageError, FormatError or OptionError.
    """
    if not isinstance(source, (str, os.PathLike)):
        names = [path_name(one, "the path to a video") for one in source]
        if not names:
            raise OptionError("the list of videos is empty; name at least one")
        return _of_files([file for name in names for file in _matching(name)], listed(names, most=1))
    name = path_name(source, "the path to the videos")
    if is_url(name):
        raise OptionError(f"{name}: videos are read from local disks; copy them here")
    if os.path.isdir(name):
        return _of_folder(Path(name))
    if name.lower().endswith(LIST_SUFFIXES):
        return _of_list(Path(name))
    return _of_files(_matching(name), name)


def _matching(name: str) -> list[str]:
    """Return the files that a path or pattern names, by name."""
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise MissingDataError(f"{name}: no file matches")
    return found


def _of_files(paths: Sequence[str], where: str) -> tuple[VideoParts, str]:
    for path in paths:
        if not os.path.isfile(path):
            raise MissingDataError(f"{path}: is no file; name videos, or their folder")
    videos = open_videos([VideoSource(os.path.abspath(path)) for path in paths], where=where)
    return VideoParts.of(videos, [VideoPart(number) for number in range(len(paths))]), where


def _of_folder(root: Path) -> tuple[VideoParts, str]:
    kind = FileKind(FieldSpec("video", FieldKind.BYTES), is_video_name, "videos", ", ".join(SUFFIXES[:5]) + ", ...")
    has_classes = not any(is_video_name(os.fsencode(name)) for name in os.listdir(root)) and any(
        map(os.path.isdir, root.iterdir())
    )
    folder = FolderSource(root, Form("image-folder", class_from=ClassFrom.FOLDER if has_classes else ClassFrom.NONE), kind)
    notes = ScanNotes()
    samples = sorted(folder.scan(notes, Workspace(root, None)), key=lambda one: (one.place, one.directory, one.name))
    facts = folder.facts()
    if not samples:
        raise MissingDataError(f"{root}: {facts.nothing}; {facts.remedy}")
    paths = [os.path.join(os.fsencode(root.absolute()), sample.source) for sample in samples]
    videos = open_videos([VideoSource(os.fsdecode(path)) for path in paths], where=str(root))
    labels = [sample.label if has_classes else -1 for sample in samples]
    parts = [VideoPart(number, label=label) for number, label in enumerate(labels)]
    return VideoParts.of(videos, parts, facts.classes if has_classes else None), str(root)


def _of_list(path: Path) -> tuple[VideoParts, str]:
    rows = list(read_rows(path))
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
        video = numbers.setdefault(os.path.normpath(os.path.join(path.parent.absolute(), text)), len(numbers))
        begin = _seconds(row.cells, start, where, otherwise=0.0)
        stop = _seconds(row.cells, end, where, otherwise=math.inf)
        if not 0 <= begin < stop:
            raise FormatError(f"{where}: from {begin:g} to {stop:g} s is no part of a video; repair it")
        labels.append(None if label is None else row.cells.get(label))
        parts.append(VideoPart(video, begin, stop))
    videos = open_videos([VideoSource(name) for name in numbers], where=str(path))
    found, classes = _labels(labels, path, label)
    parts = [part._replace(label=number) for part, number in zip(parts, found, strict=True)]
    return VideoParts.of(videos, parts, classes), str(path)


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
