"""The videos that a path means: the parts of them that clips are taken from, and samples of a conversion."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import VideoTrack
from datapipe.codecs.video.transport import BEGINNING_NBYTES, Framing
from datapipe.containers.field_names import is_video
from datapipe.containers.form import Form, on_disk, refuse_root
from datapipe.containers.formats import container_of
from datapipe.containers.forms import FORMS, VIDEO_SUFFIXES, VIDEOS
from datapipe.containers.listing import is_video_name
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.core.remembering import remembered
from datapipe.errors import FormatError, OptionError
from datapipe.index.clips import VideoParts
from datapipe.index.grids import frames_between
from datapipe.index.listed import Origin, Source
from datapipe.index.media import MediaSource
from datapipe.opening.media import (
    form_of_shards,
    look_up_all,
    media_in_shards,
    parts_of_files,
    parts_of_folder,
    parts_to_convert,
)
from datapipe.opening.samples import open_index
from datapipe.opening.videos.indexing import look_at, open_videos
from datapipe.opening.videos.lerobot import is_lerobot
from datapipe.sources.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.named_files import list_and_root
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts, read_parts, what_it_lists
from datapipe.sources.lists.parts_source import PartsSource
from datapipe.stores.location import Location, Place, is_url
from datapipe.stores.places import parse_location, parse_place
from datapipe.stores.random_access import pinned_object

FIELD = FieldSpec("mp4", FieldKind.BYTES)
KIND = FileKind(FIELD, is_video_name, "videos", ", ".join(VIDEO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # tracks of videos, whose parts often follow each other

ClipSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is videos, in files or in a list; None if it is none. Those in tars are WebDataset's."""
    if look.nature is Nature.NOTHING:
        return None
    if what_it_lists(look) == VIDEOS:
        return Evidence("it lists videos")
    if look.nature is Nature.FILE:
        is_one = is_video_name(look.name) and (look.is_stored or _is_video(str(look.place)))
        return Evidence(f"its name ends with {look.suffix}") if is_one else None
    if look.nature is Nature.PATTERN:
        return Evidence("by the names that it matches") if all(map(is_video_name, look.files)) else None
    found = next((path for path in look.paths(is_video_name) if look.is_stored or _is_video(path)), None)
    return None if found is None else Evidence("videos in it, or in folders in it", Strength.LIKELY)


def _is_video(path: str) -> bool:
    """Return True if a file whose name says that it is a video is no TypeScript, which shares the ending `.ts`."""
    if not path.lower().endswith(".ts"):
        return True
    if not os.path.isfile(path):  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return Framing.of(file.read(BEGINNING_NBYTES)) is not None
    except OSError:
        return False


@remembered()
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
    if media_in_shards(name) == VIDEOS or container_of(os.path.basename(name)) == "tar":
        return _open_shards(name), name
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


def _open_shards(name: str) -> VideoParts:
    """Return the videos of shards, in order, a part each, with their labels.

    Raises what `open_index` raises, and OptionError for samples of several videos, or ones that do not lie there as they are.
    """
    form = form_of_shards(name, FORMS[VIDEOS].kind)
    index = open_index(name, None if form is None else Form(form))
    fields = [one.name for one in index.manifest.fields if is_video(one)]
    if len(fields) != 1:
        raise OptionError(f"{name}: each sample must have one video, and they have {listed(fields, most=5) or 'none in common'}")
    sources: list[MediaSource] = []
    labels = []
    for entries in look_up_all(index, fields[0]):
        extents = entries.extents
        if extents.codecs is not None and any(extents.codecs):
            raise OptionError(f"{name}: its videos do not lie there as they are; convert it with --to webdataset")
        places = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
        sources += [MediaSource(*place) for place in places]
        labels.append(entries.labels)
    videos = open_videos(sources, where=name)
    if not any(one.kind is FieldKind.LABEL for one in index.manifest.fields):
        return VideoParts.whole(videos)
    numbers = np.concatenate(labels)
    lacking = np.flatnonzero(numbers == NO_LABEL)
    if len(lacking):  # of clips no label is bad alone
        key = index.describe(int(index.ids(lacking[:1])[0])).key
        others = f"{len(lacking)} of {len(numbers)} videos; convert --on-error skip leaves them out"
        raise FormatError(f"{name}: sample {os.fsdecode(key)!r} has no label, which others have: {others}")
    return VideoParts.whole(videos, numbers, index.manifest.classes)


def open_source(place: Place, form: Form) -> Source:
    """Open a folder of videos, a prefix of them in a store, a video, a pattern, or a list of parts, CSV or JSON lines.

    Raises OptionError for choices that have no effect on these, DependencyError without PyAV, and what reading the list raises.
    """
    import_av()  # now, rather than for each video
    refuse_field_choices(form)
    is_one = is_video_name(os.fsencode(place.name))
    if place.is_dir() if isinstance(place, Path) else not (is_one or place.name.lower().endswith(LIST_SUFFIXES)):
        if is_lerobot(str(place)):
            raise OptionError(f"{place}: a LeRobot dataset, which datapipe.Clips reads where it lies; pass {place / 'videos'}")
        return classes_if_all(place, form, KIND)
    refuse_class_from(form)
    if not place.name.lower().endswith(LIST_SUFFIXES):
        refuse_root(form)
    if isinstance(place, Location) and is_one:
        pinned_object(str(place))  # raises if it is not there
        return PartsSource(place.parent, str(place), ListedParts.whole((str(place),)), form, KIND, locate=_located)
    path = on_disk(place, form)
    if path.name.lower().endswith(LIST_SUFFIXES):
        listed_in, root = list_and_root(path, form, what="a list of videos")
        parts = read_parts(listed_in, root=root)
        top = _common_prefix(parts.paths, listed_in, form) or root
        return PartsSource(top, listed_in, parts, form, KIND, locate=_located)
    root, parts = parts_to_convert(path)
    return PartsSource(root, path, parts, form, KIND, locate=_located)


def _common_prefix(names: Sequence[str], listed_in: Path, form: Form) -> Location | None:
    """Return the prefix of a store in which all of these objects lie; None for files. Raises OptionError for several stores."""
    urls = [parse_location(name) for name in names if is_url(name)]
    if not urls:
        return None
    if len(urls) < len(names) or len({(one.scheme, one.root) for one in urls}) > 1:
        raise OptionError(f"{listed_in}: names files of several stores, or of a disk too; convert those of each by themselves")
    if form.root is not None:
        raise OptionError(f"--root {form.root}: {listed_in} names URLs, which start from no folder; leave it out")
    top = os.path.commonpath([f"/{one.parent.key}" for one in urls])
    return Location(urls[0].scheme, urls[0].root, top.strip("/"))


def _located(path: str, origin: Origin, start: float, end: float) -> tuple[int, int] | str:
    """Return the range of the packets that a part of a video needs, or why it has none."""
    track, problem = _looked_at(path, origin.etag or origin.mtime_ns)
    if track is None:
        return problem
    first, after = frames_between(track.times, start, end)
    if first >= after:
        return f"no frame begins then, and its last one begins at {track.times[-1]:.3f} s"
    begin, stop = track.packets_around(first, after)
    offset = track.packets.offset[begin:stop]
    return int(offset.min()), int((offset + track.packets.size[begin:stop]).max())


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, version: str | int) -> tuple[VideoTrack | None, str]:
    """Return the track of a video, or why it has none."""
    entry = look_at(MediaSource(path))
    return entry.track, entry.problem.removeprefix(f"{path}: ")
