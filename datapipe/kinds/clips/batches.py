"""Make batches of clips, of visits that are decoded by then."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.observe import Stage
from datapipe.index.clips import AnyClips, Camera
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import good_rows, replacement
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Resources, note_stage
from datapipe.kernel.pools import BatchMemory
from datapipe.kinds.clips.decoding import ClipDecoder, decoded_dtype, frames_of, write_depth
from datapipe.kinds.clips.settings import PERMUTATIONS, ClipSettings
from datapipe.kinds.clips.visits import ClipVisits, DecodedVisit
from datapipe.order.draws import Draws, Ints, apart
from datapipe.order.plan import BatchSpan, Picks, Plan, Tail
from datapipe.order.visits import Visit, VisitOrder
from datapipe.transforms import Recipe


@dataclass(slots=True)
class ClipBatch:
    """One batch in the making. Several threads may fill it at once: each writes rows of its own."""

    picks: Picks
    visits: list[Visit]  # of each row
    clips: Ints  # (b,) in their rows, replacements included
    draw_keys: Ints  # (b,) what they draw by: see `apart`
    pixels: list[torch.Tensor]  # (b, t, h, w, c) of each camera
    left_out: set[int] = field(default_factory=set)  # rows

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def good(self) -> slice | NDArray[np.bool_]:
        """The rows that are not left out, as an index."""
        return good_rows(len(self), self.left_out)


@dataclass(slots=True)
class ClipMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    index: AnyClips
    settings: ClipSettings
    recipe: Recipe
    run: Pass
    plan: Plan
    order: VisitOrder  # of the plan
    visits: ClipVisits
    memory: Sequence[BatchMemory]  # of each camera
    delivery: Delivery
    resources: Resources
    steps_ahead: int  # whose visits are decoded, or kept; besides, as many as there are threads
    located: dict[tuple[int, int], dict[Visit, None]] = field(
        default_factory=dict
    )  # by epoch and step, the visits of those ahead

    @property
    def finishes_pixels(self) -> bool:
        """Whether pixel operations are carried out on the device, on the whole batch."""
        return self.delivery.uploader is not None

    def begin(self, step: BatchSpan) -> ClipBatch:
        start_ns = time.perf_counter_ns()
        places = _places(step)
        epoch = step.after.epoch
        real = step.start + np.arange(len(step)) < step.num_samples
        picks = Picks(step.step, step.after, self.order(epoch, places), real)
        of_rgb = torch.uint8 if self.finishes_pixels else self.recipe.output_dtype
        visits = self.order.visits_at(epoch, places)
        dtypes = [of_rgb if camera.depth is None else torch.float32 for camera in self.index.cameras]
        pixels = [of_camera.lease(len(step), dtype) for of_camera, dtype in zip(self.memory, dtypes, strict=True)]
        occurrences = np.array([self.order.occurrence(visit) for visit in visits], np.int64)
        batch = ClipBatch(picks, visits, picks.positions.copy(), apart(picks.positions, occurrences), pixels)
        note_stage(self.run.observer, Stage.PLAN, step.step, start_ns, len(batch))
        return batch

    def pieces(self, batch: ClipBatch) -> list[Piece]:
        return [Piece(range(row, row + 1), [visit]) for row, visit in enumerate(batch.visits)]

    def ahead(self, batch: ClipBatch) -> Sequence[Hashable]:
        here, epoch = batch.picks.step, batch.picks.after.epoch
        for past in [key for key in list(self.located) if key <= (epoch, here)]:
            self.located.pop(past, None)
        steps = range(here + 1, self.plan.num_steps)
        found = dict[Visit, None]()
        for step in steps[: self.steps_ahead]:
            found |= self._located(epoch, step)
        most = len(found) + self.resources.options.num_threads  # each thread has work then, whatever the size of visits
        for step in steps[self.steps_ahead :]:
            if len(found) >= most:
                break
            found |= self._located(epoch, step)
        return list(found)[:most]

    def _located(self, epoch: int, step: int) -> dict[Visit, None]:
        """Return the visits of a step, each once; they are kept until it begins."""
        found = self.located.get((epoch, step))
        if found is None:
            visits = self.order.visits_at(epoch, _places(self.plan.span(epoch, step)))
            found = self.located[epoch, step] = dict.fromkeys(visits)
        return found

    def fill(self, batch: ClipBatch, piece: Piece, shared: Sequence[DecodedVisit], worker: ClipDecoder) -> list[BadRow]:
        start_ns = time.perf_counter_ns()
        (row,), (visit,) = piece.rows, shared
        place = visit.place_of(int(batch.picks.positions[row]))
        if place in visit.bad:
            return [BadRow(row, visit.bad[place])]
        self._write(batch, row, [visit.frames(camera, place) for camera in range(len(visit.pixels))])
        note_stage(self.run.observer, Stage.AUGMENT, batch.picks.step, start_ns, 1)
        return []

    def locate(self, batch: ClipBatch, row: int) -> Description:
        return self.index.describe(int(batch.picks.positions[row]))

    def leave_out(self, batch: ClipBatch, row: int) -> None:
        batch.left_out.add(row)

    def replace(self, batch: ClipBatch, row: int, attempt: int, worker: ClipDecoder) -> bool:
        epoch, clip = batch.picks.after.epoch, int(batch.picks.positions[row])
        other = replacement(len(self.index), seed=self.run.seed, epoch=epoch, id=clip, attempt=attempt)
        clips = np.array([other], np.int64)
        draws = Draws(self.run.seed, epoch, clips)
        dtypes = map(decoded_dtype, self.index.cameras)
        found = [torch.empty((1, *pixels.shape[1:]), dtype=dtype) for pixels, dtype in zip(batch.pixels, dtypes, strict=True)]
        for camera, pixels in enumerate(found):
            if worker.decode(camera, frames_of(self.index, clips, camera), draws, pixels):
                return False
        batch.clips[row] = batch.draw_keys[row] = other
        self._write(batch, row, [pixels[0] for pixels in found])
        return True

    def finish(self, batch: ClipBatch) -> Any:
        start_ns, step = time.perf_counter_ns(), batch.picks.step
        named, good = self._columns(batch), batch.good
        rows = good if isinstance(good, slice) else torch.from_numpy(good)
        videos = {one.name: pixels[rows] for one, pixels in zip(self.index.cameras, batch.pixels, strict=True)}
        note_stage(self.run.observer, Stage.COLLATE, step, start_ns, len(batch))
        keys, epoch = batch.draw_keys[good], batch.picks.after.epoch

        def finish(moved: dict[str, Any]) -> Any:
            for camera in self.index.cameras if self.finishes_pixels else ():
                if camera.depth is not None:
                    continue
                block = moved[camera.name].flatten(0, 1)
                out = torch.empty(block.shape, dtype=self.recipe.output_dtype, device=block.device)
                self.recipe.run_pixels(block, self._draws(keys, epoch, camera), out)
                moved[camera.name] = out.view(moved[camera.name].shape)
            return self._named(moved)

        return self.delivery.deliver(named | videos, then=finish, keep=batch.pixels, step=step, num_samples=len(batch))

    def _write(self, batch: ClipBatch, row: int, clip: Sequence[torch.Tensor | list[torch.Tensor]]) -> None:
        """Write a decoded clip, of each camera, into a row, with pixel operations unless they are the device's."""
        for camera, pixels, decoded in zip(self.index.cameras, batch.pixels, clip, strict=True):
            target = pixels[row]
            if camera.depth is not None:
                write_depth(decoded, camera.depth, target)
                continue
            if self.finishes_pixels or not self.recipe.pixels:
                _copy_frames(decoded, target)
                continue
            draws = self._draws(batch.draw_keys[row : row + 1], batch.picks.after.epoch, camera)
            block = target if target.dtype is torch.uint8 else torch.empty(target.shape, dtype=torch.uint8)
            _copy_frames(decoded, block)  # as a row may come twice in a batch
            self.recipe.run_pixels(block, draws, target)

    def _draws(self, keys: Ints, epoch: int, camera: Camera) -> Draws:
        """Return the draws of the frames of clips, which are those of their clips."""
        return Draws(self.run.seed, epoch, np.repeat(keys, camera.num_frames))

    def _columns(self, batch: ClipBatch) -> dict[str, Any]:
        """Return what the good rows have besides pixels, by name: tensors, or lists of texts."""
        clips = batch.clips[batch.good]
        columns = {name: self.index.values(name, clips) for name in self.index.columns if name in self.fields}
        if self.run.options.tail is Tail.MASK:
            columns["real"] = batch.picks.real[batch.good]
        return {name: torch.from_numpy(one) if isinstance(one, np.ndarray) else one for name, one in columns.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch has, in this order."""
        return fields_of(self.settings, self.index)

    def _named(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return a batch under the names and in the layout that the user asked for."""
        rename = self.run.options.rename
        for camera in self.index.cameras:
            if camera.name in made:
                video = made[camera.name].permute(PERMUTATIONS[self.settings.layout])
                made[camera.name] = video if camera.has_time else video.squeeze(self.settings.layout.index("T"))
        names = [*self.fields, "real"] if "real" in made else self.fields
        return {rename.get(name, name): made[name] for name in names}


def _copy_frames(frames: torch.Tensor | list[torch.Tensor], out: torch.Tensor) -> None:
    """Copy t frames into (t, h, w, 3)."""
    if isinstance(frames, torch.Tensor):
        out.copy_(frames)
        return
    for target, frame in zip(out, frames, strict=True):
        target.copy_(frame)


def fields_of(settings: ClipSettings, index: AnyClips) -> tuple[str, ...]:
    """Return what a batch has, in this order."""
    return settings.fields or index.usual


def visit_order(plan: Plan) -> VisitOrder:
    """Return the order of a plan of clips."""
    assert isinstance(plan.order, VisitOrder)
    return plan.order


def _places(span: BatchSpan) -> Ints:
    """Return (b,) the positions of a step in its epoch."""
    return (span.start + np.arange(len(span), dtype=np.int64)) % span.num_samples
