"""Videos as samples of a conversion: those of a folder, files, or the parts that a list names."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import VideoTrack
from datapipe.containers.form import Form, on_disk, refuse_root
from datapipe.containers.listing import VIDEO_SUFFIXES, is_video_name
from datapipe.errors import OptionError
from datapipe.index.clips import frames_between
from datapipe.index.listed import Origin, Source
from datapipe.index.media import MediaSource
from datapipe.opening.media import parts_to_convert
from datapipe.opening.videos.indexing import look_at
from datapipe.opening.videos.lerobot import is_lerobot
from datapipe.sources.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.named_files import list_and_root
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts, read_parts
from datapipe.sources.lists.parts_source import PartsSource
from datapipe.stores.location import Location, Place, is_url, parse_location
from datapipe.stores.random_access import pinned_object

FIELD = FieldSpec("mp4", FieldKind.BYTES)
KIND = FileKind(FIELD, is_video_name, "videos", ", ".join(VIDEO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # tracks of videos, whose parts often follow each other


def open_source(place: Place, form: Form) -> Source:
    """Open a folder of videos, a prefix of them in a store, a video, a pattern, or a list of parts, CSV or JSON lines.

    Raises OptionError for choices that have no effect on these, DependencyError without PyAV, and what reading the list raises.
    """
    import_av()  # now, rather than for each video
    refuse_field_choices(form)
    is_video = is_video_name(os.fsencode(place.name))
    if place.is_dir() if isinstance(place, Path) else not (is_video or place.name.lower().endswith(LIST_SUFFIXES)):
        if is_lerobot(str(place)):
            raise OptionError(f"{place}: a LeRobot dataset, which datapipe.Clips reads where it lies; pass {place / 'videos'}")
        return classes_if_all(place, form, KIND)
    refuse_class_from(form)
    if not place.name.lower().endswith(LIST_SUFFIXES):
        refuse_root(form)
    if isinstance(place, Location) and is_video:
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
        return f"it shows no frame then: it ends at {track.times[-1]:.3f} s"
    begin, stop = track.packets_around(first, after)
    offset = track.packets.offset[begin:stop]
    return int(offset.min()), int((offset + track.packets.size[begin:stop]).max())


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, version: str | int) -> tuple[VideoTrack | None, str]:
    """Return the track of a video, or why it has none."""
    entry = look_at(MediaSource(path))
    return entry.track, entry.problem.removeprefix(f"{path}: ")
