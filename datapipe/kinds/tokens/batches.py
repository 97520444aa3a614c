"""Make a batch of packs: look up their parts, read the ids, put rows together with their labels, positions and boundaries."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.errors import DecodeError, IntegrityError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.entries import Description, Extents
from datapipe.index.packs import Packs, Segments
from datapipe.index.tokens import TokenIndex, TokenShard
from datapipe.kernel.bad_samples import replacement
from datapipe.kernel.device import Uploader
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Resources
from datapipe.kernel.options import LoaderOptions
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.order.plan import BatchSpan, Picks, Plan, Tail

Ints = NDArray[np.int64]
Reason = DecodeError | IntegrityError
IGNORED = -100  # the label of a token that carries no loss, by torch's and Hugging Face's convention
_READ_WHOLE = 1 << 18  # bytes; of a longer document, only the part that is needed is read, without its checksum
_MAX_KNOWN = 64  # steps whose loss tokens are kept


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of documents in some rows of a batch."""

    segments: Segments
    begin: Ints  # (s,) where each begins in the batch's rows laid end to end
    following: Ints  # (s,) the token after it, where labels are shifted and the document goes on; else -1

    @classmethod
    def of(cls, segments: Segments, width: int) -> Parts:
        """Return the parts of rows of so many tokens."""
        return cls(segments, segments.row * width + segments.places(), np.full(len(segments.row), -1, np.int64))

    def taken(self, kept: Ints | NDArray[np.bool_]) -> Parts:
        """Return some of them."""
        return Parts(Segments(*(column[kept] for column in self.segments)), self.begin[kept], self.following[kept])


@dataclass(slots=True)
class TokenBatch:
    """One batch in the making. Several threads may fill it at once: each writes rows of its own."""

    picks: Picks
    parts: Parts
    ids: NDArray[np.int64]  # (b, width) filled up with padding
    left_out: set[int] = field(default_factory=set)  # rows
    replaced: dict[int, Parts] = field(default_factory=dict)  # by row

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def good(self) -> slice | NDArray[np.bool_]:
        """The rows that are not left out, as an index."""
        if not self.left_out:
            return slice(None)
        good = np.ones(len(self), np.bool_)
        good[list(self.left_out)] = False
        return good


@dataclass(slots=True)
class TokenMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    settings: TokenSettings
    index: TokenIndex
    packs: Packs
    files: Files
    run: Pass
    uploader: Uploader | None
    resources: Resources
    _losses: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> LoaderOptions:
        return self.run.options

    @property
    def maps(self) -> bool:
        """Whether shards are mapped; those in a store are not."""
        return self.index.samples is None or not self.index.samples.is_remote

    @property
    def drawn(self) -> int | None:
        """The seed by which packs are drawn; None if they are not shuffled."""
        return self.run.seed if self.options.shuffle else None

    def begin(self, step: BatchSpan) -> TokenBatch:
        start_ns = time.perf_counter_ns()
        assert isinstance(self.run.source, Plan)
        picks = self.run.source.picks_of(step)
        segments = self.packs.segments(picks.positions, seed=self.drawn, epoch=step.after.epoch)
        width = int(segments.num.max(initial=1)) if self.settings.packs.packing == "pad" else self.settings.packs.length
        batch = TokenBatch(picks, Parts.of(segments, width), _padded(segments, (len(picks), width), self.settings.pad))
        for number, mine in () if self.maps else segments.by_shard():
            of_shard = (column[mine] for column in (segments.document, segments.first, segments.num, segments.total))
            self.files.will_need(_extents(self.index.shard(number), *of_shard)[0])
        self._note(Stage.PLAN, step.step, start_ns, len(picks))
        return batch

    def pieces(self, batch: TokenBatch) -> list[Piece]:
        return [Piece(rows) for rows in self.options.blocks(len(batch))]

    def fill(self, batch: TokenBatch, piece: Piece, shared: Sequence[Any], worker: object) -> list[BadRow]:
        start_ns = time.perf_counter_ns()
        bad, nbytes = self._read(batch, batch.parts, piece.rows)
        self._note(Stage.READ, batch.picks.step, start_ns, len(piece.rows), nbytes)
        return list(bad.items())

    def locate(self, batch: TokenBatch, row: int) -> Description:
        segments = batch.parts.segments
        first = int(np.searchsorted(segments.row, row))
        found = self.index.describe(int(self.index.starts[segments.shard[first]]) + int(segments.document[first]))
        return Description(int(batch.picks.positions[row]), found.path, found.key, found.source)

    def leave_out(self, batch: TokenBatch, row: int) -> None:
        batch.left_out.add(row)

    def replace(self, batch: TokenBatch, row: int, attempt: int, worker: object) -> bool:
        epoch, width = batch.picks.after.epoch, batch.ids.shape[1]
        pack = int(batch.picks.positions[row])
        other = replacement(len(self.packs), seed=self.run.seed, epoch=epoch, id=pack, attempt=attempt)
        segments = self.packs.segments(np.array([other], np.int64), seed=self.drawn, epoch=epoch)
        segments = segments._replace(row=np.full(len(segments.row), row))
        if self.settings.packs.packing == "pad":  # rows are as long as the longest that was picked
            segments = segments._replace(num=np.minimum(segments.num, width))
        parts = Parts.of(segments, width)
        batch.ids[row] = self.settings.pad  # also where a bad sample left nothing
        bad, _ = self._read(batch, parts, range(row, row + 1))
        batch.replaced[row] = parts
        return not bad

    def finish(self, batch: TokenBatch) -> Any:
        start_ns = time.perf_counter_ns()
        good = batch.good
        ignored = ~batch.picks.real[good] if self.options.tail is Tail.MASK else None
        made = self._named(assembled(self.settings, self.index, batch, ignored), batch.picks, good)
        self._note(Stage.COLLATE, batch.picks.step, start_ns, len(batch))
        transform = self.options.batch_transform
        if self.uploader is not None:
            return self.uploader.upload(made, then=transform, step=batch.picks.step, num_samples=len(batch))
        return made if transform is None else transform(made)

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, batch: TokenBatch, part: Parts, rows: range) -> tuple[dict[int, Reason], int]:
        """Read the ids of these rows; return the bad ones, each with its first error, and the bytes read."""
        low, high = np.searchsorted(part.segments.row, [rows.start, rows.stop]).tolist()
        segments = Segments(*(column[low:high] for column in part.segments))
        wanted = segments.num
        if self.settings.packs.labels == "shifted":
            wanted = np.minimum(wanted + 1, segments.total - segments.first)
        bad: dict[int, Reason] = {}
        flat = batch.ids.reshape(-1)
        for number, mine in segments.by_shard():
            shard = self.index.shard(number)
            document, first = segments.document[mine], segments.first[mine]
            read = self._mapped if self.maps else self._fetched
            columns = (segments.row[mine], part.begin[low:high][mine], segments.num[mine], mine)
            found = read(shard, document, first, wanted[mine], segments.total[mine])
            for tokens, row, place, num, at in zip(found, *(column.tolist() for column in columns), strict=True):
                if not isinstance(tokens, np.ndarray):
                    bad.setdefault(row, tokens)
                    continue
                if len(tokens) > num:
                    part.following[low + at] = tokens[num]
                    tokens = tokens[:num]
                flat[place : place + num] = tokens
        size = self.index.shard(int(segments.shard[0])).dtype.itemsize if high > low else 0
        following = part.following[low:high]
        if bad or self._are_beyond(batch.ids[rows.start : rows.stop]) or self._are_beyond(following, least=-1):
            for row in rows:
                ids = np.concatenate([batch.ids[row], following[(segments.row == row) & (following != -1)]])
                if row not in bad and self._are_beyond(ids):
                    bad[row] = self._beyond(ids)
        return bad, int(wanted.sum()) * size

    @staticmethod
    def _mapped(shard: TokenShard, document: Ints, first: Ints, num: Ints, total: Ints) -> Iterator[NDArray[Any] | Reason]:
        """Yield the tokens of each part, where they lie, or what is wrong with its document."""
        ids, data = shard.mapped
        size, start = shard.dtype.itemsize, int(shard.offset[0])
        offset = shard.offset[document]
        begin = (offset - start) // size + first
        is_checked = shard.crc32c is not None
        crcs = shard.crc32c[document] if shard.crc32c is not None else document
        nbytes = total * size
        for low, high, place, length, crc in zip(*(x.tolist() for x in (begin, begin + num, offset, nbytes, crcs)), strict=True):
            if is_checked and length <= _READ_WHOLE and (found := crc32c(data[place : place + length])) != crc:
                yield _differs(shard.path, place, place + length, found, crc)
            else:
                yield ids[low:high]

    def _fetched(self, shard: TokenShard, document: Ints, first: Ints, num: Ints, total: Ints) -> Iterator[NDArray[Any] | Reason]:
        """Yield the same of a shard in a store."""
        extents, begin = _extents(shard, document, first, num, total)
        found = self.files.read_each(extents, range(len(document)))
        for data, low, high in zip(found, begin.tolist(), (begin + num).tolist(), strict=True):
            yield data if isinstance(data, (DecodeError, IntegrityError)) else np.frombuffer(data, shard.dtype)[low:high]

    def _are_beyond(self, ids: NDArray[np.int64], *, least: int = 0) -> bool:
        """Return True if there are ids that no vocabulary has."""
        most = self.index.facts.vocab_size
        return bool(ids.size) and ((most is not None and int(ids.max()) >= most) or int(ids.min()) < least)

    def _beyond(self, ids: NDArray[np.int64]) -> DecodeError:
        """Return what is wrong with such ids."""
        least, greatest, most = int(ids.min()), int(ids.max()), self.index.facts.vocab_size
        limit = "is negative" if least < 0 else f"is beyond the vocabulary of {most}"
        return DecodeError(f"token {least if least < 0 else greatest} {limit}: the corpus was made by another tokenizer")

    # -- a batch as the user gets it ------------------------------------------------------------------

    def _named(self, made: dict[str, Any], picks: Picks, good: slice | NDArray[np.bool_]) -> dict[str, Any]:
        fields, options = self.settings.fields, self.options
        if "id" in fields:
            made["id"] = torch.from_numpy(picks.positions[good])
        if "loss_tokens" in fields:
            made["loss_tokens"] = self._loss_tokens(picks)
        named = {options.rename.get(name, name): made[name] for name in fields}
        if options.tail is Tail.MASK:
            named[options.rename.get("real", "real")] = torch.from_numpy(picks.real[good])
        return named

    def _loss_tokens(self, picks: Picks) -> int:
        """Return how many labels carry loss in all batches of an optimizer step, on all ranks, bad samples included."""
        plan = self.run.source
        assert isinstance(plan, Plan)
        epoch, number = picks.after.epoch, picks.step // self.settings.accumulate
        with self._lock:
            if (epoch, number) in self._losses:
                return self._losses[epoch, number]
        first = number * self.settings.accumulate
        positions: list[Ints] = []
        for step in range(first, min(first + self.settings.accumulate, plan.num_steps)):
            span = plan.span(epoch, step)
            begin = span.start - plan.rank.rank * len(span)
            here = np.arange(begin, begin + len(span) * plan.rank.world_size, dtype=np.int64)
            positions.append(here[here < span.num_samples] if plan.tail is Tail.MASK else here % span.num_samples)
        packs = plan.order(epoch, np.concatenate(positions))
        found = int(self.packs.loss(packs, seed=self.drawn, epoch=epoch).sum())
        with self._lock:
            self._losses[epoch, number] = found
            while len(self._losses) > _MAX_KNOWN:
                self._losses.popitem(last=False)
        return found

    def _note(self, stage: Stage, step: int, start_ns: int, num: int, nbytes: int = 0) -> None:
        observer: Observer = self.run.observer
        observer(StageEvent(stage, step, start_ns, time.perf_counter_ns() - start_ns, num, nbytes))


def assembled(settings: TokenSettings, index: TokenIndex, batch: TokenBatch, ignored: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return what a batch may have, by name: the good rows, in the layout of the settings. `ignored`: rows without labels."""
    ids, parts = _good_rows(batch)
    segments = parts.segments
    num_rows, width = ids.shape
    shape = (1, num_rows * width) if settings.layout == "flat" else (num_rows, width)
    filled = _filled(segments, num_rows)
    padded = np.flatnonzero(filled < width)
    padding = slice(len(parts.begin), None)
    starts = np.concatenate([parts.begin, padded * width + filled[padded]])
    order = np.argsort(starts, kind="stable")
    ends = np.empty_like(starts)
    ends[order] = np.append(starts[order][1:], num_rows * width)
    made: dict[str, NDArray[Any]] = {"input_ids": ids}
    wanted = frozenset(settings.fields)
    if "labels" in wanted:
        padding_runs = list(zip(starts[padding].tolist(), ends[padding].tolist(), strict=True))
        made["labels"] = _labels(settings, index, ids, parts, padding_runs)
        if ignored is not None:
            made["labels"].reshape(num_rows, width)[ignored] = IGNORED
    lengths = (ends - starts)[order]
    if "position_ids" in wanted:
        made["position_ids"] = _counting(num_rows * width) - np.repeat(starts[order], lengths)
    if "document_ids" in wanted:
        number = np.arange(len(starts)) if settings.layout == "flat" else _number_in_row(starts[order] // width)
        number = number.astype(np.int32)
        if len(padded):
            number[np.argsort(order)[padding]] = -1
        made["document_ids"] = np.repeat(number, lengths)
    if "attention_mask" in wanted:
        is_real = np.ones(len(starts), np.int64)
        is_real[padding] = 0
        made["attention_mask"] = np.repeat(is_real[order], lengths)
    batched: dict[str, Any] = {name: torch.from_numpy(value.reshape(shape)) for name, value in made.items()}
    if "cu_seqlens" in wanted:
        batched["cu_seqlens"] = torch.from_numpy(_boundaries(starts[order], num_rows * width, settings.num_seqlens))
    if "max_seqlen" in wanted:
        batched["max_seqlen"] = int(lengths.max(initial=0))
    return batched


def _good_rows(batch: TokenBatch) -> tuple[NDArray[np.int64], Parts]:
    """Return the ids of the good rows, and their parts: those that replace others in their place."""
    parts = batch.parts
    if batch.replaced:
        kept = parts.taken(~np.isin(parts.segments.row, list(batch.replaced)))
        all_parts = [kept, *batch.replaced.values()]
        columns = zip(*(one.segments for one in all_parts), strict=True)
        joined = Segments(*(np.concatenate(column) for column in columns))
        parts = Parts(joined, *(np.concatenate([getattr(one, name) for one in all_parts]) for name in ("begin", "following")))
        parts = parts.taken(np.argsort(joined.row, kind="stable"))
    good = batch.good
    if isinstance(good, slice):
        return batch.ids, parts
    parts = parts.taken(good[parts.segments.row])
    new_row = (np.cumsum(good) - 1)[parts.segments.row]
    begin = parts.begin - (parts.segments.row - new_row) * batch.ids.shape[1]
    return batch.ids[good], Parts(parts.segments._replace(row=new_row), begin, parts.following)


def _labels(
    settings: TokenSettings, index: TokenIndex, ids: NDArray[np.int64], parts: Parts, padding: list[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return (b * width,) the labels: a token is that of the one before it in its document; the others are `IGNORED`."""
    is_shifted, segments = settings.packs.labels == "shifted", parts.segments
    flat = ids.reshape(-1)
    if is_shifted:
        labels = np.empty_like(flat)
        labels[:-1] = flat[1:]
        labels[parts.begin + segments.num - 1] = np.where(parts.following >= 0, parts.following, IGNORED)
    else:
        labels = flat.copy()
        labels[parts.begin] = IGNORED
    for start, end in padding:
        labels[start:end] = IGNORED
    for number, mine in segments.by_shard():
        loss = index.shard(number).loss
        if loss is None:
            continue
        for part in mine.tolist():
            place, num, first = int(parts.begin[part]), int(segments.num[part]), int(segments.first[part])
            is_ignored = np.ones(num, np.bool_)
            for one, end in (loss.of(int(segments.document[part])) - first - is_shifted).tolist():
                is_ignored[max(0, one) : max(0, end)] = False
            labels[place : place + num][is_ignored] = IGNORED
    return labels


def _extents(shard: TokenShard, document: Ints, first: Ints, num: Ints, total: Ints) -> tuple[Extents, Ints]:
    """Return where to read these parts, and where each begins in that: small documents are read whole, and checked."""
    is_whole = total * shard.dtype.itemsize <= _READ_WHOLE
    begin = np.where(is_whole, 0, first)
    return shard.extents(document, begin, np.where(is_whole, total, num)), first - begin


def _differs(path: str, begin: int, end: int, found: int, written: int) -> IntegrityError:
    return IntegrityError(
        f"{path}: bytes {begin}..{end} have crc32c {found:08x}, written as {written:08x}: damaged; "
        "`datapipe verify` lists all damage"
    )


def _filled(segments: Segments, num_rows: int) -> Ints:
    """Return (b,) the tokens of each row."""
    return np.bincount(segments.row, segments.num, num_rows).astype(np.int64)


def _padded(segments: Segments, shape: tuple[int, int], pad: int) -> NDArray[np.int64]:
    """Return memory for rows, filled only where no part will be."""
    ids = np.empty(shape, np.int64)
    filled = _filled(segments, shape[0])
    for row in np.flatnonzero(filled < shape[1]).tolist():
        ids[row, filled[row] :] = pad
    return ids


@functools.lru_cache(maxsize=4)
def _counting(num: int) -> Ints:
    counting = np.arange(num)
    counting.setflags(write=False)
    return counting


def _number_in_row(rows: Ints) -> Ints:
    """Return the number of each part among those of its row."""
    return _counting(len(rows)) - np.searchsorted(rows, rows)


def _boundaries(starts: Ints, end: int, num: int | None) -> NDArray[np.int32]:
    """Return int32 where runs begin, and the end. `num`: how many to return, the end repeated; None: as many as there are."""
    found = np.empty(len(starts) + 1, np.int32)
    found[:-1] = starts
    found[-1] = end
    if num is None:
        return found
    if len(found) > num:
        raise OptionError(f"num_seqlens is {num}, and a batch has {len(found)} boundaries; pass more, or max_documents")
    return np.append(found, np.full(num - len(found), end, np.int32))
