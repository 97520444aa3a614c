"""Find the videos that a path means, and the parts of them that clips are taken from: a folder, files, shards, or a list."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from datapipe.containers.form import Form
from datapipe.containers.formats import container_of
from datapipe.containers.forms import VIDEOS
from datapipe.containers.listing import is_video_name
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.clips import VideoPart, VideoParts
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.index.videos import VideoSource
from datapipe.opening.videos.indexing import open_videos
from datapipe.opening.videos.shards import are_shards, open_shards
from datapipe.opening.videos.source import FIELD, KIND, parts_in
from datapipe.sources.file_tree import classes_if_all, placed
from datapipe.sources.lists.parts import LIST_SUFFIXES
from datapipe.stores.location import Place, is_url, parse_place

ClipSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_parts(source: ClipSource) -> tuple[VideoParts, str]:
    """Return the parts of the videos that a source means, in order, and where they lie, for people.

    `source`: a folder of videos, or a prefix of them in a store, whose top folders are classes if all of them lie in such; a
    file, a URL, a glob pattern or a list of those; shards with videos; or a list of parts, CSV or JSON lines, with a path, and
    start, end (seconds) and label if there are any. Raises MissingDataError, StorageError, FormatError or OptionError.
    """
    if not isinstance(source, (str, os.PathLike)):
        names = [path_name(one, "the path to a video") for one in source]
        if not names:
            raise OptionError("the list of videos is empty; name at least one")
        return _of_files([file for name in names for file in _matching(name)], listed(names, most=1))
    name = path_name(source, "the path to the videos")
    if are_shards(name) or container_of(os.path.basename(name)) == "tar":
        return open_shards(name), name
    if is_video_name(os.fsencode(name)):
        return _of_files(_matching(name), name)
    if is_url(name) or os.path.isdir(name):
        return _of_folder(parse_place(name))
    if name.lower().endswith(LIST_SUFFIXES):
        return _of_list(Path(name))
    return _of_files(_matching(name), name)


def _matching(name: str) -> list[str]:
    """Return the files that a path or pattern names, by name."""
    if is_url(name) or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise MissingDataError(f"{name}: no file matches")
    return found


def _of_files(paths: Sequence[str], where: str) -> tuple[VideoParts, str]:
    for path in paths:
        if not is_url(path) and not os.path.isfile(path):
            raise MissingDataError(f"{path}: is no file; name videos, or their folder")
    sources = [VideoSource(path if is_url(path) else os.path.abspath(path)) for path in paths]
    videos = open_videos(sources, where=where)
    return VideoParts.of(videos, [VideoPart(number) for number in range(len(paths))]), where


def _of_folder(root: Place) -> tuple[VideoParts, str]:
    folder = classes_if_all(root, Form(VIDEOS), KIND)
    space = Workspace(Path(), None)  # nothing is unpacked
    samples = sorted(folder.scan(ScanNotes(), space), key=lambda one: (one.place, one.directory, one.name))
    facts = folder.facts()
    if not samples:
        raise MissingDataError(f"{root}: {facts.nothing}; {facts.remedy}")
    sources = [VideoSource(placed(root, sample.origins[FIELD.name])) for sample in samples]
    videos = open_videos(sources, where=str(root))
    parts = [VideoPart(number, label=sample.label) for number, sample in enumerate(samples)]
    return VideoParts.of(videos, parts, facts.classes), str(root)


def _of_list(path: Path) -> tuple[VideoParts, str]:
    names, parts, classes = parts_in(path)
    return VideoParts.of(open_videos([VideoSource(name) for name in names], where=str(path)), parts, classes), str(path)
