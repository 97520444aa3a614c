"""Videos as samples of a conversion: those of a folder, files, or the parts that a list names."""

from __future__ import annotations

import functools
import glob
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from datapipe.codecs.field_values import LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import VideoTrack
from datapipe.containers.file_tree import FileKind, FolderSource, open_tree, refuse_field_choices
from datapipe.containers.form import ClassFrom, Form, on_disk
from datapipe.containers.listing import VIDEO_SUFFIXES, is_video_name
from datapipe.containers.lists import refuse_class_from
from datapipe.containers.lists.named_files import FileLookup, NamedFiles, list_and_root
from datapipe.containers.lists.parts import LIST_SUFFIXES, read_parts
from datapipe.containers.source_fields import in_order, place_labels
from datapipe.containers.videos.indexing import look_at
from datapipe.containers.videos.lerobot import is_lerobot
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.clips import VideoPart, frames_between
from datapipe.index.listed import ListedSample, Origin, ScanNotes, Source, SourceFacts, Workspace, divide
from datapipe.index.videos import VideoSource
from datapipe.stores.location import Location, Place, is_url, parse_location
from datapipe.stores.objects import list_names
from datapipe.stores.random_access import pin_each, pinned_object

FIELD = FieldSpec("mp4", FieldKind.BYTES)
PART = "video part"  # of a sample's values, as no field is called: JSON [start, end] in seconds; null: up to the end
KIND = FileKind(FIELD, is_video_name, "videos", ", ".join(VIDEO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # tracks of videos, whose parts often follow each other
_MAX_NAMES = 10_000  # that are looked at for loose videos


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
        return video_folder(place, form)
    refuse_class_from(form)
    if isinstance(place, Location) and is_video:
        pinned_object(str(place))  # raises if it is not there
        return _Parts(place.parent, str(place), [str(place)], [VideoPart(0)], None, form)
    path = on_disk(place, form)
    if path.name.lower().endswith(LIST_SUFFIXES):
        listed_in, root = list_and_root(path, form, what="a list of videos")
        names, parts, classes = parts_in(listed_in, root)
        return _Parts(_common_prefix(names, listed_in, form) or root, listed_in, names, parts, classes, form)
    found = sorted(glob.glob(str(path))) if not path.exists() else [str(path)]
    if not found:
        raise MissingDataError(f"{path}: no such file, or none that matches")
    root = Path(os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in found]))
    return _Parts(root, path, [os.path.abspath(name) for name in found], [*map(VideoPart, range(len(found)))], None, form)


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


def parts_in(path: Path, root: Path | None = None) -> tuple[tuple[str, ...], list[VideoPart], tuple[str, ...] | None]:
    """Return the videos that a list names, each once, the parts in its order, and the names of classes by label.

    Raises what reading the list raises.
    """
    listed = read_parts(path, root=root)
    labels = [NO_LABEL] * len(listed.file) if listed.labels is None else listed.labels.tolist()
    columns = listed.file.tolist(), listed.start.tolist(), listed.end.tolist(), labels
    return listed.paths, [VideoPart(*row) for row in zip(*columns, strict=True)], listed.classes


def video_folder(root: Place, form: Form) -> FolderSource:
    """Return the videos below a folder, or a prefix in a store.

    Where `form` does not say what names their classes, it is the top folders if all of them lie in such, or else nothing.
    """
    if form.class_from is None:
        folders = open_tree(root).folders(otherwise="pass a video, or a folder of videos")
        has_classes = bool(folders) and not _has_loose_videos(root)
        form = replace(form, class_from=ClassFrom.FOLDER if has_classes else ClassFrom.NONE)
    return FolderSource(root, form, KIND)


def _has_loose_videos(root: Place) -> bool:
    """Return True if videos lie in the folder itself."""
    if isinstance(root, Location):
        return any(is_video_name(name.encode()) for name in list_names(root, at_most=_MAX_NAMES))
    return any(is_video_name(os.fsencode(name)) for name in os.listdir(root))


class _Parts:
    """Videos, or parts of them, in the order of a list."""

    def __init__(
        self,
        root: Place,
        listed_in: str | Path,
        names: Sequence[str],
        parts: Sequence[VideoPart],
        classes: tuple[str, ...] | None,
        form: Form,
    ) -> None:
        """`names`: of the videos, absolute, or URLs below `root`."""
        self.root = root
        self._listed_in, self._names, self._parts = listed_in, names, parts
        self._has_labels = any(part.label != NO_LABEL for part in parts)
        self._labels: dict[int, int] = {}
        self._classes = classes
        if classes is not None:
            labels, self._classes = place_labels(classes, form.class_map, "classes")
            self._labels = {number: labels[name] for number, name in enumerate(classes)}
        elif form.class_map is not None:
            raise OptionError(f"--class-map {form.class_map}: {listed_in} names no classes; leave it out")

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        files = self._files(notes)
        for number, part in enumerate(self._parts):
            text = self._names[part.video]
            name, origin, problem = files.find(text)
            directory, name = divide(name or os.fsencode(text))
            label = self._labels.get(part.label, part.label)
            if origin is None or part.is_whole:
                origins = {} if origin is None else {FIELD.name: origin}
                yield ListedSample(directory, name, number, label, origins, problem=problem)
            else:
                yield self._part(ListedSample(directory, name, number, label), origin, part)
        files.refuse_wrong_root()

    def facts(self) -> SourceFacts:
        fields = in_order([FIELD, LABEL_FIELD] if self._has_labels else [FIELD])
        return SourceFacts(fields, self._classes, nothing="no videos")

    def _files(self, notes: ScanNotes) -> FileLookup:
        if isinstance(self.root, Location):
            pin_each(self._names)
            return _StoredFiles(self.root)
        return NamedFiles(self.root, Path(self._listed_in), notes)

    def _part(self, sample: ListedSample, origin: Origin, part: VideoPart) -> ListedSample:
        """Return a sample that is a part of a video: the range of the packets that it needs."""
        is_open = part.end == float("inf")
        shown = f"{part.start:g} s to the end" if is_open else f"{part.start:g} to {part.end:g} s"
        sample = sample._replace(name=sample.name + f", {shown}".encode())
        track, problem = _looked_at(str(self.root / os.fsdecode(origin.path)), origin.etag or origin.mtime_ns)
        if track is None:
            return sample._replace(problem=problem)
        first, after = frames_between(track.times, part.start, part.end)
        if first >= after:
            return sample._replace(problem=f"it shows no frame then: it ends at {track.times[-1]:.3f} s")
        begin, end = track.packets_around(first, after)
        offset = track.packets.offset[begin:end]
        start, stop = int(offset.min()), int((offset + track.packets.size[begin:end]).max())
        origins = {FIELD.name: origin._replace(offset=start, nbytes=stop - start)}
        return sample._replace(origins=origins, values={PART: json.dumps([part.start, None if is_open else part.end])})


@dataclass(frozen=True, slots=True)
class _StoredFiles:
    """Looks up objects below a prefix by their URLs; see `FileLookup`."""

    root: Location

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        location = parse_location(text)
        name = location.key[len(self.root.key) :].strip("/").encode()
        try:
            found = pinned_object(str(location))
        except MissingDataError:
            return name, None, "no such object"
        return name, Origin.whole(name, found.nbytes, 0, found.etag or ""), None

    def refuse_wrong_root(self) -> None:
        return


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, version: str | int) -> tuple[VideoTrack | None, str]:
    """Return the track of a video, or why it has none."""
    entry = look_at(VideoSource(path))
    return entry.track, entry.problem.removeprefix(f"{path}: ")
