"""The visits of a pass: clips that are decoded together, as a piece that batches share."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from datapipe.core.observe import Stage
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.fetch.remote import RemoteFiles
from datapipe.index.clips import AnyClips
from datapipe.kernel.kind import Pass, Reason, SharedPieces, note_stage
from datapipe.kernel.pools import BatchMemory
from datapipe.kinds.clips.decoding import ClipDecoder, decoded_dtype, extents_of, frames_of
from datapipe.order.draws import Draws, Ints, apart
from datapipe.order.visits import Visit, VisitOrder

_ROUNDED = 16  # frames: memory is used again for visits of other numbers of them


@dataclass(slots=True, eq=False)
class DecodedVisit:
    """The clips of a visit that are being decoded, then complete."""

    clips: Ints  # (k,)
    draws: Draws  # of each
    step: int  # the first that needs one of them
    pixels: list[torch.Tensor]  # of each camera (k, t, h, w, c) of its `decoded_dtype`; or (u, h, w, c), each frame once
    rows: list[Ints | None]  # of each camera (k, t) the rows of frames in the latter; None: the former
    bad: dict[int, Reason] = field(default_factory=dict)  # by place in the visit
    on_their_way: list[object] = field(default_factory=list)  # bytes that were asked for ahead of use

    def place_of(self, clip: int) -> int:
        """Return the place of a clip."""
        return int(np.flatnonzero(self.clips == clip)[0])

    def frames(self, camera: int, place: int) -> torch.Tensor | list[torch.Tensor]:
        """Return what a camera shows of the clip at a place: (t, h, w, 3), or t of (h, w, 3)."""
        pixels, rows = self.pixels[camera], self.rows[camera]
        return pixels[place] if rows is None else [pixels[row] for row in rows[place].tolist()]


class ClipVisits(SharedPieces):
    """The visits of one pass. Thread-safe."""

    parts_at_once = 1

    def __init__(
        self,
        order: VisitOrder,
        run: Pass,
        memory: Sequence[BatchMemory],
        files: Files,
        index: AnyClips,
        *,
        shares_frames: bool = False,
    ) -> None:
        """`memory`: of each camera, of clips; of frames if `shares_frames`: all clips that show one have it alike.

        `files`: read the clips of the index.
        """
        self._order, self._run, self._memory, self._files, self._index = order, run, memory, files, index
        self._shares_frames = shares_frames

    def open(self, key: Hashable, step: int) -> tuple[DecodedVisit, list[int]]:
        assert isinstance(key, Visit)
        clips = self._order.samples(key)
        held = [self._memory_for(clips, camera) for camera in range(len(self._memory))]
        pixels, rows = [one for one, _ in held], [one for _, one in held]
        occurrences = np.full(len(clips), self._order.occurrence(key))
        draws = Draws(self._run.seed, key.epoch, apart(clips, occurrences))
        visit = DecodedVisit(clips, draws, step, pixels, rows)
        if isinstance(self._files, RemoteFiles):  # a disk is read ahead by the kernel
            asked = [self._files.will_need(extents_of(self._index, clips, camera)) for camera in range(len(pixels))]
            visit.on_their_way.extend(asked)
        return visit, list(range(len(pixels)))

    def load(self, piece: DecodedVisit, parts: Sequence[int], worker: ClipDecoder) -> None:
        start_ns = time.perf_counter_ns()
        self._files.take_network_ns()  # what the thread waited for before is no part of this
        for camera in parts:
            clips = frames_of(self._index, piece.clips, camera)
            piece.bad.update(worker.decode(camera, clips, piece.draws, piece.pixels[camera], piece.rows[camera]))
        network_ns = self._files.take_network_ns()
        note_stage(self._run.observer, Stage.DECODE, piece.step, start_ns, len(piece.clips), network_ns=network_ns)

    def _memory_for(self, clips: Ints, camera: int) -> tuple[torch.Tensor, Ints | None]:
        """Return memory for what a camera shows of clips, and the rows of frames in it. See `DecodedVisit`."""
        memory, dtype = self._memory[camera], decoded_dtype(self._index.cameras[camera])
        if not self._shares_frames:
            return memory.lease(len(clips), dtype), None
        if len(clips) == 1:
            return memory.lease(self._index.cameras[camera].num_frames, dtype)[None], None
        shown = np.array([one.frames for one in frames_of(self._index, clips, camera)], np.int64)
        frames, rows = np.unique(shown, return_inverse=True)
        room = min(-(-len(frames) // _ROUNDED) * _ROUNDED, shown.size)
        return memory.lease(len(frames), dtype, room=room), rows.reshape(shown.shape)

    def leave_out(self, piece: DecodedVisit, part: int, reason: DecodeError | IntegrityError) -> None:
        piece.bad = dict.fromkeys(range(len(piece.clips)), reason)

    def complete(self, piece: DecodedVisit) -> None:
        piece.on_their_way.clear()
