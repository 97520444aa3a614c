"""Find the videos that a path means, and the parts of them that clips are taken from: a folder, files, shards, or a list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import NO_LABEL
from datapipe.containers.formats import container_of
from datapipe.containers.forms import VIDEOS
from datapipe.containers.listing import is_video_name
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import OptionError
from datapipe.index.clips import VideoParts
from datapipe.index.media import MediaSource
from datapipe.opening.media import parts_of_files, parts_of_folder
from datapipe.opening.videos.indexing import open_videos
from datapipe.opening.videos.shards import are_video_shards, open_shards
from datapipe.opening.videos.source import KIND
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts, read_parts
from datapipe.stores.location import is_url, parse_place

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
        return _opened(parts_of_files(names, KIND), listed(names, most=1))
    name = path_name(source, "the path to the videos")
    if are_video_shards(name) or container_of(os.path.basename(name)) == "tar":
        return open_shards(name), name
    if is_video_name(os.fsencode(name)):
        return _opened(parts_of_files([name], KIND), name)
    if is_url(name) or os.path.isdir(name):
        root = parse_place(name)
        return _opened(parts_of_folder(root, VIDEOS, KIND), str(root))
    if name.lower().endswith(LIST_SUFFIXES):
        return _opened(read_parts(Path(name)), str(Path(name)))
    return _opened(parts_of_files([name], KIND), name)


def _opened(parts: ListedParts, where: str) -> tuple[VideoParts, str]:
    videos = open_videos([MediaSource(path) for path in parts.paths], where=where)
    labels = np.full(len(parts.file), NO_LABEL, np.int64) if parts.labels is None else parts.labels
    return VideoParts(videos, parts.file, parts.start, parts.end, labels, parts.classes), where
