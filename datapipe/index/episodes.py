"""Where the frames of robots' episodes lie: a sample is a moment of an episode, and what is shown and measured around it.

Samples are the rows of a table, one for each frame; an episode is a stretch of rows. Each camera has a video for an episode, or a
part of one. What a sample has of moments before or after it is said in frames; where an episode has no such frame, its first or
last one is taken, and a mask says so.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.depth import Depth
from datapipe.core.printable import counted
from datapipe.core.ranges import ranges
from datapipe.index.clips import AnyClips, Camera, ClipFrames, track_of
from datapipe.index.entries import Description, RowGroup, place_in
from datapipe.index.videos import VideoIndex

Ints = NDArray[np.int64]
_RUN_FRAMES = 32  # that visits share the decoding of
NOW: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeVideos:
    """The videos of one camera."""

    name: str
    offsets: tuple[int, ...]  # frames from a sample to those that it shows, ascending
    has_time: bool  # whether these are a dimension of the field
    video: Ints  # (e,) number of each episode's video
    begin: NDArray[np.float64]  # (e,) seconds in it at which the episode begins
    depth: Depth | None = None  # how it is stored, if it is depth


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeImages:
    """The images of one camera, in the rows of tables."""

    name: str
    offsets: tuple[int, ...]  # as of `EpisodeVideos`
    has_time: bool
    size: tuple[int, int]  # (height, width) in pixels
    groups: Sequence[RowGroup]  # in order, of all files
    starts: Ints  # (g + 1,) rows before each group, over all files


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """The rows of all episodes."""

    num_rows: int
    timestamps: NDArray[np.float64]  # (n,) seconds from the beginning of the episode
    columns: Mapping[str, NDArray[Any]]  # (n, ...) each
    tasks: Mapping[int, str] = field(default_factory=dict)  # texts by `task_index`, which is a column then


class EpisodeIndex(AnyClips):
    """The samples of some episodes. See `AnyClips`."""

    def __init__(
        self,
        videos: VideoIndex,
        table: EpisodeTable,
        cameras: tuple[EpisodeVideos | EpisodeImages, ...],
        *,
        where: str,
        first_row: Ints,
        length: Ints,
        offsets: Mapping[str, tuple[int, ...]],
        tolerance_s: float,
    ) -> None:
        """`first_row`, `length`: (e,) of each episode. `offsets`: frames from a sample to those of a column that it has."""
        self.videos, self.where = videos, where
        self._table, self._cameras = table, cameras
        self._first_row, self._offsets, self._tolerance_s = first_row, offsets, tolerance_s
        self.starts: Ints = np.cumsum(np.concatenate([np.zeros(1, np.int64), length]))
        self.cameras = tuple(
            Camera(one.name, len(one.offsets), one.size, one.has_time, is_of_images=True)
            if isinstance(one, EpisodeImages)
            else Camera(one.name, len(one.offsets), videos.equal_size(one.video), one.has_time, one.depth)
            for one in cameras
        )
        names = [*table.columns, *(["task"] if table.tasks else [])]
        padded = [f"{name}_is_pad" for name in (*(one.name for one in cameras if one.has_time), *offsets)]
        self.columns = (*names, *padded)
        self.usual = (*(one.name for one in cameras), *self.columns)

    @property
    def name(self) -> str:
        shown = [(one.name, one.offsets, one.has_time) for one in self._cameras]
        return f"episodes {shown} {sorted(self._offsets.items())}"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.videos.fingerprint} {self._table.num_rows}".encode())
        digest.update(self._first_row.tobytes() + self.starts.tobytes())
        for one in self._cameras:
            if isinstance(one, EpisodeImages):
                names = [os.path.basename(group.path) for group in one.groups]
                digest.update(repr((one.name, one.size, names)).encode(errors="surrogateescape") + one.starts.tobytes())
        return digest.hexdigest()[:16]

    @property
    def num_episodes(self) -> int:
        return len(self.starts) - 1

    def __len__(self) -> int:
        return int(self.starts[-1])

    def frames(self, clip: int, camera: int) -> ClipFrames:
        of_camera = self._cameras[camera]
        rows, is_pad = self._around(np.array([clip], np.int64), of_camera.offsets)
        if isinstance(of_camera, EpisodeImages):
            return ClipFrames(-1, rows[0], is_pad[0])
        episode = self._episodes(np.array([clip], np.int64))[0]
        video = int(of_camera.video[episode])
        times = track_of(self.videos, video).times
        wanted = self._table.timestamps[rows[0]] + of_camera.begin[episode]
        after = np.clip(np.searchsorted(times, wanted), 0, max(0, len(times) - 1))
        before = np.maximum(after - 1, 0)
        nearest = np.where(np.abs(times[before] - wanted) <= np.abs(times[after] - wanted), before, after)
        is_there = np.abs(times[nearest] - wanted) <= self._tolerance_s
        lacking = ""
        if not is_there.all():
            first = int(np.argmin(is_there))
            shown = float(times[nearest[first]])
            lacking = (
                f"the data lists a frame at {wanted[first]:.6f} s of the video, whose nearest one is at {shown:.6f} s, beyond "
                f"tolerance_s={self._tolerance_s:g}; pass a larger tolerance_s if this is the frame, or repair the timestamps"
            )
        return ClipFrames(video, np.where(is_there, nearest, -1), is_pad[0], lacking)

    @property
    def num_rows(self) -> int:
        return self._table.num_rows

    def image(self, camera: int, row: int) -> tuple[RowGroup, int]:
        images = self._cameras[camera]
        assert isinstance(images, EpisodeImages)
        number, there = place_in(images.starts, row)
        group = images.groups[number]
        return group, group.first + there

    def values(self, column: str, clips: Ints) -> Any:
        rows = self._rows(clips)
        if column == "task":
            return [self._table.tasks[number] for number in self._table.columns["task_index"][rows].tolist()]
        of_camera = next((one for one in self._cameras if column == f"{one.name}_is_pad"), None)
        if of_camera is not None:
            return self._around(clips, of_camera.offsets)[1]
        base = column.removesuffix("_is_pad")
        if column not in self._table.columns:
            return self._around(clips, self._offsets[base])[1]
        if column in self._offsets:
            return self._table.columns[column][self._around(clips, self._offsets[column])[0]]
        return self._table.columns[column][rows]

    def run_starts(self, num_clips: int) -> list[Ints]:
        each = max(_RUN_FRAMES, num_clips)
        length = np.diff(self.starts)
        runs = -(-length // each)
        first = np.repeat(self.starts[:-1], runs)
        within = ranges(0, runs)
        return [np.append(first + within * each, self.starts[-1])]

    def describe(self, clip: int) -> Description:
        episode = int(self._episodes(np.array([clip], np.int64))[0])
        first = self._cameras[0]
        if isinstance(first, EpisodeImages):
            path = self.image(0, int(self._rows(np.array([clip], np.int64))[0]))[0].path
        else:
            path = self.videos.source(int(first.video[episode])).path
        return Description(
            clip, path, f"frame {clip - int(self.starts[episode])} of episode {episode}".encode(), "", is_convertible=False
        )

    def explain(self) -> list[str]:
        shown = ", ".join(f"{one.name} at {list(one.offsets)}" for one in self._cameras)
        groups = {group.path for one in self._cameras if isinstance(one, EpisodeImages) for group in one.groups}
        tables = f" and {counted(len(groups), 'table')} of images" if groups else ""
        return [
            f"data      {counted(self.num_episodes, 'episode')} in {counted(len(self.videos), 'video')}{tables}",
            f"samples   {counted(len(self), 'frame')}; frames of cameras: {shown}",
        ]

    def _episodes(self, clips: Ints) -> Ints:
        return np.searchsorted(self.starts, clips, side="right") - 1

    def _rows(self, clips: Ints) -> Ints:
        """Return (m,) the row of each sample."""
        episodes = self._episodes(clips)
        return self._first_row[episodes] + clips - self.starts[episodes]

    def _around(self, clips: Ints, offsets: tuple[int, ...]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return (m, t) the rows at offsets from samples, those within their episodes, and where others were asked for."""
        episodes = self._episodes(clips)
        wanted = clips[:, None] + np.array(offsets, np.int64)
        first, last = self.starts[episodes][:, None], self.starts[episodes + 1][:, None] - 1
        kept = np.clip(wanted, first, last)
        return self._first_row[episodes][:, None] + kept - first, kept != wanted
