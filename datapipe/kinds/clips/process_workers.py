"""Decode threads that have a worker process each: the same work as `ClipDecoder`'s, done there.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from datapipe.codecs.video.conversion import Resize
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.clips import Camera, ClipFrames
from datapipe.index.videos import VideoIndex
from datapipe.kernel.own_process import OwnProcess, taken_tensor, tensor_over
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kernel.processes import Launcher
from datapipe.kinds.clips.decoding import ClipDecoder, Ints, Reason
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

IMPORTS = (__name__, "av")  # by workers: see `launcher`


@dataclass(frozen=True, slots=True)
class _Request:
    """Clips to be decoded, as `ClipDecoder.decode` takes them, and the memory that they are to fill."""

    camera: int
    clips: Sequence[ClipFrames]
    draws: Draws
    rows: Ints | None
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class ClipWork:
    """Makes the handler of a worker that decodes. The worker maps the index of the videos, as this process does."""

    cameras: tuple[Camera, ...]
    videos: VideoIndex
    recipe: Recipe
    resize: Resize

    def decoder(self) -> ClipDecoder:
        """Return a decoder of these videos, whose files it opens."""
        return ClipDecoder(self.cameras, self.videos, self.recipe, LocalFiles(), self.resize)

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        decoder = self.decoder()

        def handle(asked: _Request, scratch: Scratch) -> dict[int, Reason]:
            out = taken_tensor(scratch, asked.shape, asked.dtype)
            return decoder.decode(asked.camera, asked.clips, asked.draws, out, asked.rows)

        return handle


class ProcessClipDecoder(ClipDecoder):
    """A `ClipDecoder` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, work: ClipWork, files: Files, begun: Launcher) -> None:
        super().__init__(work.cameras, work.videos, work.recipe, files, work.resize)
        self._process = OwnProcess(begun, work)

    def decode(
        self, camera: int, clips: Sequence[ClipFrames], draws: Draws, out: torch.Tensor, rows: Ints | None = None
    ) -> dict[int, Reason]:
        shape = tuple(out.shape)
        answer = self._process.ask(_Request(camera, clips, draws, rows, shape, out.dtype))
        if answer is None:
            return super().decode(camera, clips, draws, out, rows)
        bad, memory = answer
        out.copy_(tensor_over(memory, shape, out.dtype))
        return cast("dict[int, Reason]", bad)
