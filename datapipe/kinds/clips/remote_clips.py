"""Decode threads whose clips are decoded by workers on other machines: the same work as `ClipDecoder`'s, done there.

Clips of a run of which a worker calls one bad are decoded here too: what is a bad sample must not depend on a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from datapipe.codecs.video.conversion import Resize
from datapipe.core.ranges import spread
from datapipe.errors import OptionError
from datapipe.fetch.files import Files
from datapipe.index.clips import AnyClips, Camera, ClipFrames, track_of
from datapipe.index.videos import VideoIndex
from datapipe.kernel.kind import Reason
from datapipe.kinds.clips.decoding import ClipDecoder
from datapipe.kinds.clips.served import asked, packed_recipe
from datapipe.kinds.clips.table_images import TableImages
from datapipe.order.draws import Draws, Ints
from datapipe.remote_workers.elsewhere import LOOKED_AT
from datapipe.remote_workers.wire import num_bad
from datapipe.transforms import Recipe
from datapipe.transforms.naming import named

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet


def looked_at(index: AnyClips) -> list[str]:
    """Return some of the videos, which are compared when a loader begins."""
    return [index.videos.source(number).path for number in spread(len(index.videos), LOOKED_AT)]


def refuse_unserved(index: AnyClips, recipe: Recipe) -> None:
    """Raise OptionError for clips, or transforms, that workers on other machines do not make."""
    if all(camera.is_of_images for camera in index.cameras):
        raise OptionError("workers: they decode videos, and these frames are images in tables; leave out workers=")
    named(recipe)


class RemoteClipDecoder(ClipDecoder):
    """A `ClipDecoder` that borrows a seat of a worker for each run of clips, and does the work itself where none is there."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        videos: VideoIndex,
        recipe: Recipe,
        files: Files,
        resize: Resize,
        fleet: Fleet,
        *,
        images: TableImages,
    ) -> None:
        super().__init__(cameras, videos, recipe, files, resize, images=images)
        self._fleet, self._sent = fleet, packed_recipe(recipe, resize)

    def decode(
        self, camera: int, clips: Sequence[ClipFrames], draws: Draws, out: torch.Tensor, rows: Ints | None = None
    ) -> dict[int, Reason]:
        facts = self._cameras[camera]
        frames = np.array([one.frames for one in clips], np.int64)
        if not facts.is_of_images and (frames >= 0).any():
            track, source = track_of(self._videos, clips[0].video), self._videos.source(clips[0].video)
            request = asked(self._sent, track, source, facts.depth, frames, draws, out, rows)
            if self._fleet.fill(out, request, num_bad) == 0:
                return {}
        with self._fleet.here():
            return super().decode(camera, clips, draws, out, rows)
