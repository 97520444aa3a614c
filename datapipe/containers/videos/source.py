"""Videos as samples of a conversion: those of a folder, files, or the parts that a list names."""

from __future__ import annotations

import functools
import glob
import os
from pathlib import Path

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import VideoTrack
from datapipe.containers.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.containers.form import Form, on_disk
from datapipe.containers.listing import VIDEO_SUFFIXES, is_video_name
from datapipe.containers.lists import refuse_class_from
from datapipe.containers.lists.named_files import list_and_root
from datapipe.containers.lists.parts import LIST_SUFFIXES, ListedParts, read_parts
from datapipe.containers.lists.parts_source import PartsSource
from datapipe.containers.videos.indexing import look_at
from datapipe.containers.videos.lerobot import is_lerobot
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.clips import VideoPart, frames_between
from datapipe.index.listed import Origin, Source
from datapipe.index.videos import VideoSource
from datapipe.stores.location import Place

FIELD = FieldSpec("mp4", FieldKind.BYTES)
KIND = FileKind(FIELD, is_video_name, "videos", ", ".join(VIDEO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # tracks of videos, whose parts often follow each other


def open_source(place: Place, form: Form) -> Source:
    """Open a folder of videos, a video, a pattern of videos, or a list of parts, CSV or JSON lines.

    Raises OptionError for choices that have no effect on these, DependencyError without PyAV, and what reading the list raises.
    """
    import_av()  # now, rather than for each video
    path = on_disk(place, form)
    refuse_field_choices(form)
    if path.is_dir():
        if is_lerobot(str(path)):
            raise OptionError(f"{path}: a LeRobot dataset, which datapipe.Clips reads where it lies; pass {path / 'videos'}")
        return classes_if_all(path, form, KIND)
    refuse_class_from(form)
    if path.name.lower().endswith(LIST_SUFFIXES):
        listed_in, root = list_and_root(path, form, what="a list of videos")
        return PartsSource(root, listed_in, read_parts(listed_in, root=root), form, KIND, locate=_located)
    names = sorted(glob.glob(str(path))) if not path.exists() else [str(path)]
    if not names:
        raise MissingDataError(f"{path}: no such file, or none that matches")
    root = Path(os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names]))
    parts = ListedParts.whole(tuple(os.path.abspath(name) for name in names))
    return PartsSource(root, path, parts, form, KIND, locate=_located)


def parts_in(path: Path, root: Path | None = None) -> tuple[tuple[str, ...], list[VideoPart], tuple[str, ...] | None]:
    """Return the videos that a list names, each once, the parts in its order, and the names of classes by label.

    Raises what reading the list raises.
    """
    listed = read_parts(path, root=root)
    labels = [NO_LABEL] * len(listed.file) if listed.labels is None else listed.labels.tolist()
    columns = listed.file.tolist(), listed.start.tolist(), listed.end.tolist(), labels
    return listed.paths, [VideoPart(*row) for row in zip(*columns, strict=True)], listed.classes


def _located(path: str, origin: Origin, start: float, end: float) -> tuple[int, int] | str:
    """Return the range of the packets that a part of a video needs, or why it has none."""
    track, problem = _looked_at(path, origin.mtime_ns)
    if track is None:
        return problem
    first, after = frames_between(track.times, start, end)
    if first >= after:
        return f"it shows no frame then: it ends at {track.times[-1]:.3f} s"
    begin, stop = track.packets_around(first, after)
    offset = track.packets.offset[begin:stop]
    return int(offset.min()), int((offset + track.packets.size[begin:stop]).max())


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, mtime_ns: int) -> tuple[VideoTrack | None, str]:
    """Return the track of a video, or why it has none."""
    entry = look_at(VideoSource(path))
    return entry.track, entry.problem.removeprefix(f"{path}: ")
