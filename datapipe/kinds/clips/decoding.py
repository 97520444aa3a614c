"""Decode clips that lie close together: each frame once, cut for each clip that shows it."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.video.conversion import FrameConverter
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.local import LocalFiles
from datapipe.index.clips import ClipIndex
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, cut_through, row_cuts

Ints = NDArray[np.int64]
Reason = DecodeError | IntegrityError


class ClipDecoder:
    """Decodes clips for one thread. `recipe`: its geometry is carried out on each frame, with one draw for a clip."""

    def __init__(self, index: ClipIndex, recipe: Recipe, files: LocalFiles) -> None:
        self._index, self._recipe, self._files = index, recipe, files
        self._decoder, self._converter = VideoDecoder(), FrameConverter()
        self._whole = np.empty((0, 0, 3), np.uint8)  # a frame before it is cut

    def decode(self, clips: Ints, draws: Draws, out: torch.Tensor) -> dict[int, Reason]:
        """Write clips of one part into `out`, (k, t, h, w, 3) uint8; return what is wrong with the bad ones, by their places.

        `draws`: those of the clips. Raises MissingDataError or StorageError for a file that cannot be read.
        """
        found = [self._index.frames(clip) for clip in clips.tolist()]
        video = found[0].video
        track, source = self._index.track(video), self._index.parts.videos.source(video)
        shows: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by frame: clips, and places in them
        for clip, one in enumerate(found):
            for place, frame in enumerate(one.frames.tolist()):
                shows[frame].append((clip, place))
        size = track.coding.shown_size
        chain = self._recipe.draw_cuts(draws, np.array([size] * len(clips), np.int64))
        steps = list(zip(*map(row_cuts, chain), strict=True))
        alike = _firsts(steps)
        if self._whole.shape[:2] != size:
            self._whole = np.empty((*size, 3), np.uint8)
        pixels = out.numpy()
        bad: dict[int, Reason] = {}
        read = functools.partial(self._read, source.path, source.start)
        for frame, decoded in self._decoder.decode(track, read, np.array(sorted(shows), np.int64)):
            if isinstance(decoded, DecodeError):
                bad = {clip: decoded for clip, _ in shows[frame]} | bad
                continue
            self._converter.convert(decoded, track.coding, self._whole)
            made: dict[int, NDArray[Any]] = {}  # by the first clip that is cut alike
            for clip, place in shows[frame]:
                target = pixels[clip, place]
                if alike[clip] in made:
                    target[:] = made[alike[clip]]
                    continue
                try:
                    cut_through(self._whole[_box(steps[clip])], steps[clip], target)
                except DecodeError as exc:
                    bad.setdefault(clip, exc)
                made[alike[clip]] = target
        return bad

    def _read(self, path: str, start: int, offset: int, nbytes: int) -> bytes:
        return self._files.read_at(path, start + offset, nbytes)


def _box(steps: tuple[RowCut, ...]) -> tuple[slice, slice]:
    """Return the part of a frame from which a chain of cuts begins."""
    top, left, height, width = steps[0].region
    return slice(top, top + height), slice(left, left + width)


def _firsts(steps: list[tuple[RowCut, ...]]) -> list[int]:
    """Return for each clip the first one that is cut alike."""
    firsts: dict[str, int] = {}
    return [firsts.setdefault(repr(one), number) for number, one in enumerate(steps)]
