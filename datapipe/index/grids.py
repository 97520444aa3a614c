"""The frames of a part of a video, as clips count them: those that it presents, or those that a player shows at a rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.core.printable import counted

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_MOST_MOMENTS = 1 << 22  # of a grid at a rate, unless the video has as many frames: 38 hours at 30 a second
_EARLY = 1e-6  # seconds by which a frame may come after its moment, as times are rounded


class Grid(NamedTuple):
    """The frames of a part."""

    first: int = 0  # presented frame of the video
    num: int = 0  # frames of the grid
    changes: NDArray[np.int32] | None = None  # (c,) the places from which another frame is shown; None: at each the next one
    shown: NDArray[np.int32] | None = None  # (c,) the presented frame from each on

    def frames(self, places: Ints) -> Ints:
        """Return the presented frames at places of the grid."""
        if self.changes is None or self.shown is None:
            return self.first + places
        return self.shown[self.changes.searchsorted(places, side="right") - 1].astype(np.int64)


def grid_between(times: Seconds, start: float, end: float, *, fps: float | None) -> Grid:
    """Return the grid of a part from `start` to `end`. `times`: (n,) of all presented frames, ascending; all in seconds.

    `fps`: frames of the grid a second; None: the presented ones. The grid of a part that is bad has none; see `grid_problem`.
    """
    first, after = frames_between(times, start, end)
    if first >= after:
        return Grid()
    if fps is None:
        return Grid(first, after - first)
    begin, num_moments = _moments(times, first, after, start, end, fps)
    if num_moments > max(_MOST_MOMENTS, 2 * len(times)):
        return Grid()
    moments = begin + np.arange(max(1, int(num_moments))) / fps
    shown = np.clip(np.searchsorted(times, moments + _EARLY, side="right") - 1, first, after - 1)
    changes = np.append(0, np.flatnonzero(np.diff(shown)) + 1)
    return Grid(first, len(shown), changes.astype(np.int32), shown[changes].astype(np.int32))


def grid_problem(times: Seconds, start: float, end: float, *, fps: float | None) -> str:
    """Return why the grid of a part has no frames, for people."""
    first, after = frames_between(times, start, end)
    if fps is None or first >= after:
        return f"{no_frame(times, start, end)}; repair the times"
    lasts = _moments(times, first, after, start, end, fps)[1] / fps
    return f"says that its {counted(after - first, 'frame')} last {lasts:,.0f} s; pass less than fps={fps:g}, or repair its times"


def frames_between(times: Seconds, start: float, end: float) -> tuple[int, int]:
    """Return the first frame of those that are shown from `start` on and before `end`, and the one after the last; seconds."""
    first = int(np.searchsorted(times, start - _EARLY))
    return first, int(np.searchsorted(times, end - _EARLY)) if end < float("inf") else len(times)


def no_frame(times: Seconds, start: float, end: float) -> str:
    """Return that no frame is shown between, for people."""
    span = f"from {start:g} s on" if end == float("inf") else f"from {start:g} to {end:g} s"
    return f"no frame begins {span}, and its last one begins at {times[-1]:.3f} s"


def _moments(times: Seconds, first: int, after: int, start: float, end: float, fps: float) -> tuple[float, float]:
    """Return the second at which the grid of a part begins, and how many moments it has. `first`, `after`: its frames."""
    length = float(np.diff(times).mean()) if len(times) > 1 else 1 / fps  # of the last frame, which no other one ends
    begin, stop = max(start, float(times[first])), min(end, float(times[after - 1]) + length)
    return begin, (stop - begin) * fps + _EARLY
