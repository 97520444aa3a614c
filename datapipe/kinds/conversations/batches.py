"""Make batches of packed conversations."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.observe import Stage
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.index.entries import Description, Extents
from datapipe.kernel.bad_samples import replacement
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Reason, Resources, note_stage
from datapipe.kernel.pools import BatchMemory
from datapipe.kinds.conversations.assembly import assembled, expanded
from datapipe.kinds.conversations.documents import Conversations, Images
from datapipe.kinds.conversations.placing import Placer
from datapipe.kinds.conversations.settings import PIXELS, ConversationSettings
from datapipe.order.draws import Ints
from datapipe.order.plan import BatchSpan, Picks, Tail
from datapipe.packing.losses import StepLosses
from datapipe.packing.packs import Packs, Segments

_NEIGHBOURS = 64  # among which the conversation that replaces a bad one is chosen, by length
_UNITS_AT_ONCE = 4096  # patches, or as many pixels: of a piece of work


class Replacement(NamedTuple):
    """The conversation that came in the place of a bad one."""

    document: int  # in the same shard
    num: int  # tokens
    pixels: torch.Tensor  # of its images


@dataclass(slots=True)
class ConversationBatch:
    """One batch in the making. Its rows, for the kernel, are conversations. Each thread writes those of its own."""

    picks: Picks
    segments: Segments  # its conversations; `row` is the pick that each is of
    begin: Ints  # (s,) where each begins in the rows laid end to end
    images: Images
    ids: NDArray[np.int64]  # (b, width) filled up with padding
    pixels: torch.Tensor  # (units, ...) of all images: what the model takes, or for a device the levels of 0 to 255
    tokens: Extents  # where the ids of each conversation lie
    pictures: Extents  # and its images
    left_out: set[int] = field(default_factory=set)  # conversations
    replaced: dict[int, Replacement] = field(default_factory=dict)  # by conversation
    on_their_way: object = None  # bytes that were asked for ahead of use

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(slots=True)
class ConversationMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    documents: Conversations
    packs: Packs
    settings: ConversationSettings
    run: Pass
    files: Files
    memory: BatchMemory  # of pixels
    delivery: Delivery
    resources: Resources
    losses: StepLosses
    drawn: int | None  # the seed by which packs are drawn; None if they are not shuffled

    def begin(self, step: BatchSpan) -> ConversationBatch:
        start_ns = time.perf_counter_ns()
        picks = self.run.picks_of(step)
        segments = self.packs.segments(picks.positions, seed=self.drawn, epoch=step.after.epoch)
        width = self.settings.packs.length
        if self.settings.packs.packing == "pad":
            width = int(segments.num.max(initial=1))
        images = self.documents.images_of(segments)
        num_units = int(images.num_units.sum())
        pixels = self.memory.lease(num_units, torch.float32 if self._is_final else torch.uint8, room=num_units * 5 // 4)
        ids = np.full((len(picks), width), self.settings.pad, np.int64)
        tokens, pictures = self._extents(segments)
        batch = ConversationBatch(
            picks, segments, segments.row * width + segments.places(), images, ids, pixels, tokens, pictures
        )
        batch.on_their_way = [self.files.will_need(one) for one in (tokens, pictures)]
        note_stage(self.run.observer, Stage.PLAN, step.step, start_ns, len(batch))
        return batch

    def _extents(self, segments: Segments) -> tuple[Extents, Extents]:
        """Return where the ids of conversations lie, and where their images do."""
        order: list[Ints] = []
        ids: list[Extents] = []
        pictures: list[Extents] = []
        for number, here in segments.by_shard():
            shard, documents = self.documents.shard(number), segments.document[here]
            stored = shard.stored
            order.append(here)
            ids.append(stored.extents(documents, np.zeros(len(here), np.int64), stored.num_tokens[documents]))
            pictures.append(shard.images.extents(stored.path, documents))
        at = np.argsort(np.concatenate(order), kind="stable").tolist()
        return _joined(ids).take(at), _joined(pictures).take(at)

    def pieces(self, batch: ConversationBatch) -> list[Piece]:
        num = max(1, -(-len(batch.pixels) * self._weight // _UNITS_AT_ONCE))
        num = max(num, min(len(batch), max(1, self.resources.options.num_threads)))
        shares = batch.images.units_before(len(batch))[1:] + np.arange(1.0, len(batch) + 1)
        cuts = np.searchsorted(shares, np.arange(1, num) * shares[-1] / num) + 1
        bounds = np.unique(np.concatenate([[0], cuts, [len(batch)]])).tolist()
        return [Piece(range(low, high)) for low, high in itertools.pairwise(bounds)]

    @property
    def _weight(self) -> int:
        """How many patches of 14 x 14 pixels a unit is as large as."""
        return max(1, math.prod(self.documents.processor.unit) // 588)

    def fill(self, batch: ConversationBatch, piece: Piece, shared: Sequence[Any], worker: Placer) -> list[BadRow]:
        start_ns = time.perf_counter_ns()
        self.files.take_network_ns()
        rows = piece.rows
        bad: dict[int, Reason] = {}
        for row, data in zip(rows, self.files.read_each(batch.tokens, rows), strict=True):
            begin, num = int(batch.begin[row]), int(batch.segments.num[row])
            try:
                found = self._ids_of(data, batch.segments, row, batch.images)
                batch.ids.reshape(-1)[begin : begin + num] = found
            except (DecodeError, IntegrityError) as exc:
                bad[row] = exc
        images = batch.images.of(rows.start, rows.stop)
        first, end = batch.images.units_before(len(batch))[[rows.start, rows.stop]].tolist()
        pixels = batch.pixels[first:end]
        found_bad = worker.place(pixels, batch.pictures.take(list(rows)), images)
        bad = {rows.start + number: reason for number, reason in found_bad.items()} | bad
        network_ns, step = self.files.take_network_ns(), batch.picks.step
        nbytes = int(sum(one.nbytes[rows.start : rows.stop].sum() for one in (batch.tokens, batch.pictures)))
        note_stage(self.run.observer, Stage.DECODE, step, start_ns, len(rows), network_ns=network_ns, nbytes=nbytes)
        return [BadRow(row, reason) for row, reason in bad.items()]

    @property
    def _is_final(self) -> bool:
        """Whether batches stay in host memory, so that what places pixels also makes of them what the model takes."""
        return self.delivery.runtime is None

    def _ids_of(self, data: bytes | Reason, segments: Segments, row: int, images: Images) -> Ints:
        """Return the ids of a conversation, with those of its images. Raises DecodeError or IntegrityError."""
        if not isinstance(data, bytes):
            raise data
        facts = self.documents.index.facts
        stored = np.frombuffer(data, self.documents.shard(int(segments.shard[row])).stored.dtype)
        mine = images.of(row, row + 1)
        if not (stored[mine.place] == facts.image).all():
            raise IntegrityError("the index says that an image is where its tokens have none; convert again")
        if facts.vocab_size is not None and int(stored.max(initial=0)) >= facts.vocab_size:
            raise DecodeError(f"token {int(stored.max())} is beyond the vocabulary of {facts.vocab_size}; convert again")
        of_images = [_image_ids(self.documents, *grid) for grid in mine.grid.tolist()]
        return expanded(stored, mine, of_images)

    def locate(self, batch: ConversationBatch, row: int) -> Description:
        segments = batch.segments
        number = int(self.documents.starts[segments.shard[row]]) + int(segments.document[row])
        found = self.documents.index.describe(number)
        return Description(number, found.path, found.key, found.source)

    def leave_out(self, batch: ConversationBatch, row: int) -> None:
        self._clear(batch, row)
        batch.left_out.add(row)

    def _clear(self, batch: ConversationBatch, row: int) -> None:
        begin = int(batch.begin[row])
        batch.ids.reshape(-1)[begin : begin + int(batch.segments.num[row])] = self.settings.pad

    def replace(self, batch: ConversationBatch, row: int, attempt: int, worker: Placer) -> bool:
        segments, epoch = batch.segments, batch.picks.after.epoch
        number, document = int(segments.shard[row]), int(segments.document[row])
        among = _like(self.documents, number, document, int(segments.num[row]))
        if not len(among):  # none fits into its place
            self.leave_out(batch, row)
            return True
        bad = int(self.documents.starts[number]) + document
        other = int(among[replacement(len(among), seed=self.run.seed, epoch=epoch, id=bad, attempt=attempt)])
        num = int(self.documents.shard(number).num_tokens[other])
        found = Segments(*(np.array([one]) for one in (0, number, other, 0, num, num)))
        images = self.documents.images_of(found)
        tokens, pictures = self._extents(found)
        pixels = torch.empty((int(images.num_units.sum()), *batch.pixels.shape[1:]), dtype=batch.pixels.dtype)
        try:
            ids = self._ids_of(self.files.read(tokens, 0), found, 0, images)
        except (DecodeError, IntegrityError):
            return False
        if worker.place(pixels, pictures, images):
            return False
        self._clear(batch, row)
        begin = int(batch.begin[row])
        batch.ids.reshape(-1)[begin : begin + num] = ids
        batch.replaced[row] = Replacement(other, num, pixels)
        return True

    def finish(self, batch: ConversationBatch) -> Any:
        start_ns, step = time.perf_counter_ns(), batch.picks.step
        batch.on_their_way = None
        made = self._made(batch)
        note_stage(self.run.observer, Stage.COLLATE, step, start_ns, len(batch))
        return self.delivery.deliver(made, keep=batch.pixels, step=step, num_samples=len(batch), then=self._with_pixels)

    def _with_pixels(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return a batch whose pixels are the numbers that the model takes, where it is delivered."""
        name = self.run.options.rename.get(PIXELS, PIXELS)
        if made.get(name) is not None:
            processor = self.documents.processor
            made[name] = processor.batched(made[name] if self._is_final else processor.values(made[name]))
        return made

    def _made(self, batch: ConversationBatch) -> dict[str, Any]:
        """Return a batch as the user gets it, on the host, but for its pixels: see `_with_pixels`."""
        picks, settings, rename = batch.picks, self.settings, self.run.options.rename
        segments, begin, images, pixels = batch.segments, batch.begin, batch.images, batch.pixels
        rows: slice | NDArray[np.bool_] = slice(None)  # of the batch, those in which anything is left
        if batch.left_out or batch.replaced:
            good = np.flatnonzero(np.isin(np.arange(len(batch)), list(batch.left_out), invert=True))
            parts = [pixels[low:high] for low, high in itertools.pairwise(images.units_before(len(batch)).tolist())]
            segments = Segments(*(column.copy() for column in segments))
            for row, other in batch.replaced.items():
                segments.document[row], segments.num[row], parts[row] = other
            pixels = torch.cat([pixels[:0], *(parts[row] for row in good.tolist())])
            segments, begin = Segments(*(column[good] for column in segments)), begin[good]
            images = self.documents.images_of(segments)
            rows = np.bincount(segments.row, minlength=len(picks)) > 0
            begin = begin - batch.ids.shape[1] * (segments.row - (np.cumsum(rows) - 1)[segments.row])
        ids, real = batch.ids[rows], picks.real[rows]
        ignored = ~real if self.run.options.tail is Tail.MASK else None
        made = assembled(self.documents, settings, settings.fields, ids, segments, begin, images, ignored)
        if "loss_tokens" in settings.fields:
            (made["loss_tokens"],) = self.losses.of_step(picks.step, epoch=picks.after.epoch)
        has_images = len(images.segment) > 0
        made[PIXELS] = pixels if has_images else None
        of_model = self.documents.processor.inputs(images.grid)
        made |= {name: torch.from_numpy(value) if has_images else None for name, value in of_model.items()}
        made["id"] = torch.from_numpy(picks.positions[rows])
        named = {rename.get(name, name): made[name] for name in settings.fields}
        if self.run.options.tail is Tail.MASK:
            named[rename.get("real", "real")] = torch.from_numpy(real)
        return named


def _joined(parts: Sequence[Extents]) -> Extents:
    """Return extents of several files as one."""
    offset, nbytes, crc32c, has_crc = (
        np.concatenate([getattr(one, name) for one in parts]) for name in ("offset", "nbytes", "crc32c", "has_crc")
    )
    return Extents([path for one in parts for path in one.paths], offset, nbytes, crc32c, has_crc, one_file_each=False)


@functools.lru_cache(maxsize=1024)  # grids recur; a set is its own key, by identity
def _image_ids(documents: Conversations, rows: int, columns: int) -> Ints:
    """Return the ids of an image of this grid, none of one that is refused."""
    return documents.processor.tokens(rows, columns) if rows >= 0 else np.zeros(0, np.int64)


@functools.lru_cache(maxsize=8)
def _by_length(documents: Conversations, number: int) -> Ints:
    return np.argsort(documents.shard(number).num_tokens, kind="stable")


def _like(documents: Conversations, number: int, bad: int, num: int) -> Ints:
    """Return the conversations of a shard of which one replaces a bad one of so many tokens: some as long, or shorter."""
    order, lengths = _by_length(documents, number), documents.shard(number).num_tokens
    end = int(np.searchsorted(lengths, num, side="right", sorter=order))
    found = order[max(0, end - _NEIGHBOURS) : end]
    others: Ints = found[found != bad]
    return others
