"""Decode threads that have a worker process each: the same work as `ClipDecoder`'s, done there.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from datapipe.codecs.video.conversion import Resize
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.clips import Camera, ClipFrames
from datapipe.index.videos import VideoIndex
from datapipe.kernel.kind import Reason
from datapipe.kernel.own_process import Fill, OwnProcess
from datapipe.kernel.processes import Launcher
from datapipe.kinds.clips.decoding import ClipDecoder
from datapipe.order.draws import Draws, Ints
from datapipe.transforms import Recipe

IMPORTS = (__name__, "av")  # by workers: see `launcher`


@dataclass(frozen=True, slots=True)
class ClipWork:
    """Opens a decoder in a worker. The worker maps the index of the videos, as this process does."""

    cameras: tuple[Camera, ...]
    videos: VideoIndex
    recipe: Recipe
    resize: Resize

    def __call__(self) -> Fill:
        decoder = ClipDecoder(self.cameras, self.videos, self.recipe, LocalFiles(), self.resize)
        return lambda out, camera, clips, draws, rows: decoder.decode(camera, clips, draws, out, rows)


class ProcessClipDecoder(ClipDecoder):
    """A `ClipDecoder` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, work: ClipWork, files: Files, begun: Launcher) -> None:
        super().__init__(work.cameras, work.videos, work.recipe, files, work.resize)
        self._process = OwnProcess(begun, work)

    def decode(
        self, camera: int, clips: Sequence[ClipFrames], draws: Draws, out: torch.Tensor, rows: Ints | None = None
    ) -> dict[int, Reason]:
        bad: dict[int, Reason] | None = self._process.fill(out, camera, clips, draws, rows)
        return super().decode(camera, clips, draws, out, rows) if bad is None else bad
