"""Make batches of clips, of visits that are decoded by then."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.observe import Stage, StageEvent
from datapipe.index.clips import ClipIndex
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import replacement
from datapipe.kernel.device import Uploader
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Resources
from datapipe.kernel.pools import BatchMemory
from datapipe.kinds.clips.decoding import ClipDecoder
from datapipe.kinds.clips.settings import PERMUTATIONS, ClipSettings
from datapipe.kinds.clips.visits import ClipVisits, DecodedVisit, VisitingOrder
from datapipe.order.draws import Draws
from datapipe.order.plan import BatchSpan, Picks, Plan, Tail
from datapipe.order.visits import Visit
from datapipe.transforms import Recipe

Ints = NDArray[np.int64]


@dataclass(slots=True)
class ClipBatch:
    """One batch in the making. Several threads may fill it at once: each writes rows of its own."""

    picks: Picks
    visits: list[Visit]  # of each row
    clips: Ints  # (b,) in their rows, replacements included
    pixels: torch.Tensor  # (b, t, h, w, 3)
    left_out: set[int] = field(default_factory=set)  # rows

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def good(self) -> slice | NDArray[np.bool_]:
        """The rows that are not left out, as an index."""
        if not self.left_out:
            return slice(None)
        good = np.ones(len(self), np.bool_)
        good[list(self.left_out)] = False
        return good


@dataclass(slots=True)
class ClipMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    index: ClipIndex
    settings: ClipSettings
    recipe: Recipe
    run: Pass
    visits: ClipVisits
    memory: BatchMemory
    uploader: Uploader | None
    resources: Resources
    steps_ahead: int  # whose visits are decoded, or kept

    @property
    def order(self) -> VisitingOrder:
        """The order of clips, whose visits are known."""
        assert isinstance(self.run.source, Plan)
        order: Any = self.run.source.order
        return order  # type: ignore[no-any-return]

    @property
    def finishes_pixels(self) -> bool:
        """Whether pixel operations are carried out on the device, on the whole batch."""
        return self.uploader is not None

    def begin(self, step: BatchSpan) -> ClipBatch:
        start_ns = time.perf_counter_ns()
        places = _places(step)
        epoch = step.after.epoch
        real = step.start + np.arange(len(step)) < step.num_samples
        picks = Picks(step.step, step.after, self.order(epoch, places), real)
        dtype = torch.uint8 if self.finishes_pixels else self.recipe.output_dtype
        visits = self.order.visits_at(epoch, places)
        batch = ClipBatch(picks, visits, picks.positions.copy(), self.memory.lease(len(step), dtype))
        self._note(Stage.PLAN, batch, start_ns)
        return batch

    def pieces(self, batch: ClipBatch) -> list[Piece]:
        return [Piece(range(row, row + 1), [visit]) for row, visit in enumerate(batch.visits)]

    def ahead(self, batch: ClipBatch) -> Sequence[Hashable]:
        plan, epoch = self.run.source, batch.picks.after.epoch
        assert isinstance(plan, Plan)
        following = range(batch.picks.step + 1, min(batch.picks.step + 1 + self.steps_ahead, plan.num_steps))
        places = [_places(plan.span(epoch, step)) for step in following]
        return dict.fromkeys(self.order.visits_at(epoch, np.concatenate(places))) if places else ()  # type: ignore[return-value]

    def fill(self, batch: ClipBatch, piece: Piece, shared: Sequence[DecodedVisit], worker: ClipDecoder) -> list[BadRow]:
        start_ns = time.perf_counter_ns()
        (row,), (visit,) = piece.rows, shared
        place = visit.place_of(int(batch.picks.positions[row]))
        if place in visit.bad:
            return [(row, visit.bad[place])]
        self._write(batch, row, visit.pixels[place])
        self._note(Stage.AUGMENT, batch, start_ns, num=1)
        return []

    def locate(self, batch: ClipBatch, row: int) -> Description:
        return self.index.describe(int(batch.picks.positions[row]))

    def leave_out(self, batch: ClipBatch, row: int) -> None:
        batch.left_out.add(row)

    def replace(self, batch: ClipBatch, row: int, attempt: int, worker: ClipDecoder) -> bool:
        epoch, clip = batch.picks.after.epoch, int(batch.picks.positions[row])
        other = replacement(len(self.index), seed=self.run.seed, epoch=epoch, id=clip, attempt=attempt)
        clips = np.array([other], np.int64)
        pixels = torch.empty((1, *batch.pixels.shape[1:]), dtype=torch.uint8)
        if worker.decode(clips, Draws(self.run.seed, epoch, clips), pixels):
            return False
        batch.clips[row] = other
        self._write(batch, row, pixels[0])
        return True

    def finish(self, batch: ClipBatch) -> Any:
        start_ns = time.perf_counter_ns()
        named, good = self._other_columns(batch), batch.good
        pixels = batch.pixels if isinstance(good, slice) else batch.pixels[torch.from_numpy(good)]
        self._note(Stage.COLLATE, batch, start_ns)
        transform = self.run.options.batch_transform or (lambda made: made)
        if self.uploader is None:
            return transform(self._named({**named, "video": pixels}))
        draws = self._draws(batch.clips[good], batch.picks.after.epoch)

        def finish(moved: dict[str, Any]) -> Any:
            block = moved["video"].flatten(0, 1)
            out = torch.empty(block.shape, dtype=self.recipe.output_dtype, device=block.device)
            self.recipe.run_pixels(block, draws, out)
            return transform(self._named({**moved, "video": out.view(moved["video"].shape)}))

        return self.uploader.upload(
            {**named, "video": pixels}, then=finish, keep=batch.pixels, step=batch.picks.step, num_samples=len(batch)
        )

    def _write(self, batch: ClipBatch, row: int, clip: torch.Tensor) -> None:
        """Write a decoded clip into a row, with pixel operations unless they are the device's."""
        target = batch.pixels[row]
        if self.finishes_pixels or not self.recipe.pixels:
            target.copy_(clip)
            return
        draws = self._draws(batch.clips[row : row + 1], batch.picks.after.epoch)
        block = target.copy_(clip) if target.dtype is torch.uint8 else clip.clone()  # a row may come twice in a batch
        self.recipe.run_pixels(block, draws, target)

    def _draws(self, clips: Ints, epoch: int) -> Draws:
        """Return the draws of the frames of clips, which are those of their clips."""
        return Draws(self.run.seed, epoch, np.repeat(clips, self.index.settings.frames))

    def _other_columns(self, batch: ClipBatch) -> dict[str, torch.Tensor]:
        """Return what the good rows have besides pixels, by name."""
        clips, fields = batch.clips[batch.good], self.fields
        columns: dict[str, NDArray[Any]] = {}
        if "label" in fields:
            columns["label"] = self.index.labels(clips)
        if "id" in fields:
            columns["id"] = clips
        if "is_pad" in fields or "times" in fields:
            found = [self.index.frames(clip) for clip in clips.tolist()]
            shape = (len(found), self.index.settings.frames)
            columns["is_pad"] = np.array([one.is_pad for one in found], np.bool_).reshape(shape)
            times = [self.index.track(one.video).times[one.frames] for one in found]
            columns["times"] = np.array(times, np.float64).reshape(shape)
        if self.run.options.tail is Tail.MASK:
            columns["real"] = batch.picks.real[batch.good]
        return {name: torch.from_numpy(column) for name, column in columns.items() if name in (*fields, "real")}

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch has, in this order."""
        return fields_of(self.settings, self.index)

    def _named(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return a batch under the names and in the layout that the user asked for."""
        rename = self.run.options.rename
        made["video"] = made["video"].permute(PERMUTATIONS[self.settings.layout])
        names = [*self.fields, "real"] if "real" in made else self.fields
        return {rename.get(name, name): made[name] for name in names}

    def _note(self, stage: Stage, batch: ClipBatch, start_ns: int, *, num: int | None = None) -> None:
        took_ns = time.perf_counter_ns() - start_ns
        self.run.observer(StageEvent(stage, batch.picks.step, start_ns, took_ns, len(batch) if num is None else num))


def fields_of(settings: ClipSettings, index: ClipIndex) -> tuple[str, ...]:
    """Return what a batch has, in this order."""
    return settings.fields or ("video", *(["label"] if index.parts.has_labels else []))


def _places(span: BatchSpan) -> Ints:
    """Return (b,) the positions of a step in its epoch."""
    return (span.start + np.arange(len(span), dtype=np.int64)) % span.num_samples
