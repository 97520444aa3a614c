"""Where clips lie: windows of frames in parts of videos, by arithmetic.

A *part* is a video, or a stretch of one. Frames of a part are counted on its own grid: its presented frames, or, at a given rate,
the frames that a player shows at that many moments a second. The clips of a part begin every `step` frames of the grid; a part
that is shorter than a clip has one, whose last frame is repeated, or none.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import NO_LABEL
from datapipe.codecs.video.depth import Depth
from datapipe.codecs.video.track import VideoTrack
from datapipe.core.checks import real_number, whole_number
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.entries import Description, RowGroup, place_in
from datapipe.index.grids import Grid, grid_between, grid_problem
from datapipe.index.media import MediaSource, left_out_line, refuse_bad
from datapipe.index.videos import VideoIndex

Ints = NDArray[np.int64]
Short = Literal["repeat", "drop", "error"]
Which = Literal["all", "random"]

MOST_FRAMES = (1 << 31) - 1  # of a video
_MOST_RATE = 1e6  # frames a second
_RUN_FRAMES = 32  # of the grid: the least in which the clips of a run begin


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Which frames make a clip, and where clips begin."""

    frames: int = 8  # of a clip
    stride: int = 1  # frames from one of a clip to the next
    step: int | None = None  # frames from the beginning of a clip to that of the next one; None: clips do not overlap
    fps: float | None = None  # frames of the grid a second; None: those of the video
    short: Short = "repeat"  # what becomes of parts that are shorter than a clip
    clips: Which = "all"  # of a part in an epoch: each, or one that is drawn

    def __post_init__(self) -> None:
        for name in ("frames", "stride", "step"):
            if name != "step" or self.step is not None:
                plain = whole_number(getattr(self, name), name, least=1, most=MOST_FRAMES)
                object.__setattr__(self, name, plain)
        if self.fps is not None:
            object.__setattr__(self, "fps", real_number(self.fps, "fps", most=_MOST_RATE))
            if not self.fps > 0:
                raise OptionError(f"fps is {self.fps}; it must be more than 0, or left out for the videos' own frames")
        for name, choices in (("short", Short), ("clips", Which)):
            if getattr(self, name) not in get_args(choices):
                raise OptionError(f"{name} is {getattr(self, name)!r:.40}; choose one of {', '.join(get_args(choices))}")

    @property
    def span(self) -> int:
        """Frames of the grid from a clip's first to its last, both included."""
        return (self.frames - 1) * self.stride + 1

    @property
    def distance(self) -> int:
        """Frames of the grid from the beginning of a clip to that of the next one; of those that one is drawn of, 1."""
        if self.step is not None:
            return self.step
        return 1 if self.clips == "random" else self.frames * self.stride

    @property
    def name(self) -> str:
        """How clips are chosen, for saved states."""
        grid = "" if self.fps is None else f" at {self.fps:g} fps"
        drawn = ", one drawn of each part" if self.clips == "random" else ""
        return f"clips of {self.frames} every {self.stride}, beginning every {self.distance}{grid}, {self.short}{drawn}"


@dataclass(frozen=True, slots=True, eq=False)
class VideoParts:
    """The parts of videos that clips are taken from, and their labels."""

    videos: VideoIndex
    video: Ints  # (p,) number of each part's video
    start: NDArray[np.float64]  # (p,) seconds
    end: NDArray[np.float64]  # (p,) seconds
    labels: Ints  # (p,) NO_LABEL where there are none
    classes: tuple[str, ...] | None = None  # by label; None: labels are not of classes

    @classmethod
    def whole(cls, videos: VideoIndex, labels: Ints | None = None, classes: tuple[str, ...] | None = None) -> VideoParts:
        """Return all videos, a part each."""
        num = len(videos)
        labels = np.full(num, NO_LABEL, np.int64) if labels is None else labels
        return cls(videos, np.arange(num, dtype=np.int64), np.zeros(num), np.full(num, np.inf), labels, classes)

    def __len__(self) -> int:
        return len(self.video)

    @property
    def has_labels(self) -> bool:
        return bool((self.labels != NO_LABEL).all()) and len(self) > 0

    @property
    def are_whole(self) -> bool:
        """Whether each part is a whole video."""
        return bool((self.start <= 0).all() and np.isinf(self.end).all())


class ClipFrames(NamedTuple):
    """The frames of a clip."""

    video: int  # -1 for a camera of images
    frames: Ints  # (t,) presented frames of the video, in order, repeated where there are no others; -1: the video has none then
    is_pad: NDArray[np.bool_]  # (t,) True for those repetitions
    lacking: str = ""  # why the video has none of the first one that it lacks, for people


class Camera(NamedTuple):
    """Frames of a clip that come from one video, or of images, as a field of batches."""

    name: str
    num_frames: int  # of a clip
    size: tuple[int, int] | None  # (height, width) in pixels of all videos as a player shows them; None if they differ
    has_time: bool = True  # whether frames are a dimension of the field; False: there is one frame
    depth: Depth | None = None  # how it is stored, if it is depth; None: it is RGB
    is_of_images: bool = False  # whether frames are images in rows of tables, rather than of a video

    @property
    def channels(self) -> int:
        return 3 if self.depth is None else 1

    @property
    def pixel_nbytes(self) -> int:
        """The bytes of a pixel, decoded."""
        return 3 if self.depth is None else 2


class AnyClips(Protocol):
    """Clips, and where their frames lie. Thread-safe."""

    where: str  # they lie, for people
    videos: VideoIndex
    cameras: tuple[Camera, ...]
    columns: tuple[str, ...]  # what clips have besides frames
    usual: tuple[str, ...]  # of cameras and columns, what batches have by default

    @property
    def name(self) -> str:
        """How clips are chosen, for saved states."""

    @property
    def fingerprint(self) -> str:
        """A name for the data: a state resumes on the same only."""

    def __len__(self) -> int: ...

    def frames(self, clip: int, camera: int) -> ClipFrames:
        """Return the frames of a clip that a camera shows."""

    @property
    def choices(self) -> list[Ints] | None:
        """Where an epoch has one clip of several, (n + 1,) those at which such begin, and in all, of each dataset that is joined.

        None: an epoch has each clip.
        """
        return None

    @property
    def left_out(self) -> str | None:
        """The videos that cannot be decoded, which no clip is of, and the first problem; None if there are none."""
        return None

    @property
    def num_rows(self) -> int:
        """The rows of tables, which frames of cameras of images are numbers of."""
        return 0

    def image(self, camera: int, row: int) -> tuple[RowGroup, int]:
        """Return where the image of a camera in a row lies: a row group, and the row in its file."""
        raise AssertionError(f"camera {camera} has no images in rows")

    def values(self, column: str, clips: Ints) -> Any:
        """Return an array (m, ...) of a column, or a list of texts."""

    def run_starts(self, num_clips: int) -> list[Ints]:
        """Return (r + 1,) the clips at which runs begin that share their decoding, and in all, of each dataset that is joined.

        `num_clips`: of a visit.
        """

    def describe(self, clip: int) -> Description:
        """Return a description of a clip, for messages."""

    def explain(self) -> list[str]:
        """Return lines about the data and its clips, for `explain`."""


class ClipIndex(AnyClips):
    """The clips of some parts of videos. See `AnyClips`.

    Raises OptionError for a part that is shorter than a clip, if that is an error, and FormatError for a video that cannot be
    decoded, or a part in which it shows no frame, unless `skips_bad`.
    """

    def __init__(self, parts: VideoParts, settings: WindowSettings, *, where: str, skips_bad: bool = False) -> None:
        self.parts, self.settings, self.where, self.videos = parts, settings, where, parts.videos
        self.num_grid = self._grid_sizes()
        if not skips_bad:
            refuse_bad(self.num_grid == 0, self._problem)
        self.starts: Ints = np.cumsum(np.concatenate([np.zeros(1, np.int64), self._num_clips()]))  # clips before each part
        self.cameras = (Camera("video", settings.frames, self.videos.equal_size(parts.video[self.num_grid > 0])),)
        label = ("label",) if parts.has_labels else ()
        self.columns, self.usual = (*label, "is_pad", "times", "id"), ("video", *label)

    @property
    def name(self) -> str:
        return self.settings.name

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def num_padded(self) -> int:
        """Parts that are shorter than a clip, and have one nevertheless."""
        return int(((self.num_grid > 0) & (self.num_grid < self.settings.span)).sum()) if self.settings.short == "repeat" else 0

    @property
    def fingerprint(self) -> str:
        """A name for the parts of videos: a state resumes on the same ones only."""
        parts = self.parts
        digest = hashlib.sha256(parts.videos.fingerprint.encode())
        for column in (parts.video, parts.start, parts.end):
            digest.update(column.tobytes())
        return digest.hexdigest()[:16]

    @functools.cached_property
    def choices(self) -> list[Ints] | None:
        if self.settings.clips == "all":
            return None
        has_clips = np.diff(self.starts) > 0
        return [np.append(self.starts[:-1][has_clips], self.starts[-1])]

    def part_of(self, clips: Ints) -> Ints:
        """Return (m,) the part of each clip."""
        return np.searchsorted(self.starts, clips, side="right") - 1

    def values(self, column: str, clips: Ints) -> Any:
        if column == "label":
            return self.parts.labels[self.part_of(clips)]
        if column == "id":
            return clips if self.choices is None else np.searchsorted(self.choices[0], clips, side="right") - 1
        found = [self.frames(clip) for clip in clips.tolist()]
        shape = (len(found), self.settings.frames)
        if column == "is_pad":
            return np.array([one.is_pad for one in found], np.bool_).reshape(shape)
        times = [track_of(self.videos, one.video).times[one.frames] for one in found]
        return np.array(times, np.float64).reshape(shape)

    @property
    def left_out(self) -> str | None:
        return left_out_line(self.num_grid == 0, "video" if self.parts.are_whole else "part", self._problem)

    def explain(self) -> list[str]:
        settings = self.settings
        grid = "" if settings.fps is None else f" at {settings.fps:g} a second"
        if self.choices is not None:
            clips, which = f"one drawn of each of {counted(len(self.choices[0]) - 1, 'part')} an epoch,", "of those that begin"
        else:
            clips, which = counted(len(self), "clip"), "clips begin"
        lines = [
            f"data      {counted(len(self.videos), 'video')}, {counted(len(self.parts), 'part')}",
            f"clips     {clips} of {counted(settings.frames, 'frame')}{grid}, every {settings.stride};"
            f" {which} every {settings.distance}",
        ]
        if self.num_padded:
            lines.append(f"short     {counted(self.num_padded, 'part')} shorter than a clip: the last frame is repeated")
        if self.left_out is not None:
            lines.append(f"bad       {self.left_out}")
        return lines

    def frames(self, clip: int, camera: int = 0) -> ClipFrames:
        part, number = place_in(self.starts, clip)
        settings, grid = self.settings, _grid_of(self, part)
        begin = number * settings.distance
        places = begin + settings.stride * np.arange(settings.frames, dtype=np.int64)
        is_pad = places >= grid.num
        return ClipFrames(int(self.parts.video[part]), grid.frames(np.minimum(places, grid.num - 1)), is_pad)

    def run_starts(self, num_clips: int) -> list[Ints]:
        """Return (r + 1,) the clips at which runs begin. See `AnyClips`.

        Runs begin where groups of pictures do; groups that are shorter than `num_clips` clips, or half a second of frames or so,
        are put together, and much longer ones are divided.
        """
        least = max(_RUN_FRAMES, num_clips * self.settings.distance)
        num = np.diff(self.starts)
        part = np.repeat(np.arange(len(num)), num)
        begin = (np.arange(len(part)) - self.starts[part]) * self.settings.distance
        cell = begin // least if self.settings.fps is not None or not self.parts.are_whole else self._cells(part, begin, least)
        is_first = np.ones(len(part), np.bool_)
        is_first[1:] = (part[1:] != part[:-1]) | (cell[1:] != cell[:-1])
        return [np.append(np.flatnonzero(is_first), self.starts[-1])]

    def _cells(self, part: Ints, begin: Ints, least: int) -> Ints:
        """Return (m,) a number for each clip that begins at a frame of a part: that of its run among those of the part."""
        videos = self.parts.videos
        group = videos.groups_at(self.parts.video[part], begin)
        first = videos.group_frames[group].astype(np.int64)  # where the group begins
        return first // least * least + (begin - first) // (2 * least) * least

    def describe(self, clip: int) -> Description:
        """Return a description of a clip, for messages."""
        found = self.frames(clip)
        times = track_of(self.videos, found.video).times[found.frames[[0, -1]]]
        path = self.parts.videos.source(found.video).path
        number = int(self.values("id", np.array([clip], np.int64))[0])
        return Description(number, path, f"{times[0]:.3f} to {times[1]:.3f} s".encode(), "")

    def _problem(self, part: int) -> str:
        """Return why a part has no frames, for people."""
        video = int(self.parts.video[part])
        problem = self.videos.problem(video)
        if problem:
            return problem
        times = track_of(self.videos, video).times
        problem = grid_problem(times, *self._span(part), fps=self.settings.fps)
        return f"{self.videos.source(video).path}: {problem}{'' if self.parts.are_whole else f' in {self.where}'}"

    def _grid_sizes(self) -> Ints:
        """Return (p,) the frames of each part's grid; 0 for videos that cannot be decoded, and parts in which none is shown."""
        parts = self.parts
        if self.settings.fps is None and parts.are_whole:
            return parts.videos.num_frames[parts.video]
        return np.array([_grid_of(self, part).num for part in range(len(parts))], np.int64)

    def _num_clips(self) -> Ints:
        """Return (p,) the clips of each part."""
        settings, num = self.settings, self.num_grid
        is_short = num < settings.span
        if settings.short == "error" and (is_short & (num > 0)).any():
            part = int(np.flatnonzero(is_short & (num > 0))[0])
            path = self.parts.videos.source(int(self.parts.video[part])).path
            raise OptionError(
                f"{path}: has {num[part]} frames, and a clip spans {settings.span}; pass short='repeat' or 'drop', "
                "or fewer frames"
            )
        of_short = ((num > 0) if settings.short == "repeat" else np.zeros(len(num), np.bool_)).astype(np.int64)
        return np.where(is_short, of_short, (num - settings.span) // settings.distance + 1)

    def _made_grid(self, part: int) -> Grid:
        """Return the grid of a part: of no frames for one that is bad; see `_problem`."""
        video, fps = int(self.parts.video[part]), self.settings.fps
        num = int(self.parts.videos.num_frames[video])
        start, end = self._span(part)
        if not num or (fps is None and start <= 0 and end == float("inf")):
            return Grid(0, num)
        return grid_between(track_of(self.videos, video).times, start, end, fps=fps)

    def _span(self, part: int) -> tuple[float, float]:
        """Return the seconds at which a part begins and ends."""
        return float(self.parts.start[part]), float(self.parts.end[part])


class Tracks(Protocol):
    """Videos by their numbers: those of an index, or some that were sent."""

    def __hash__(self) -> int: ...

    def track(self, number: int, /) -> VideoTrack:
        """Return the track of a video. Raises FormatError if it cannot be decoded."""

    def source(self, number: int, /) -> MediaSource:
        """Return where a video lies."""


@functools.lru_cache(maxsize=16)  # long videos have megabytes, and worker processes each have theirs
def track_of(videos: Tracks, video: int) -> VideoTrack:
    """Return the track of a video, which is kept for a while."""
    return videos.track(video)


@functools.lru_cache(maxsize=1 << 12)  # an index is its own key, by identity
def _grid_of(index: ClipIndex, part: int) -> Grid:
    return index._made_grid(part)
