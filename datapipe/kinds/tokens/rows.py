"""One field's rows of a batch of tokens: look up their parts, and read their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.index.entries import Extents
from datapipe.index.tokens import TokenIndex, TokenShard
from datapipe.kernel.kind import Reason
from datapipe.order.draws import Ints
from datapipe.packing.packs import Packs, Segments
from datapipe.packing.settings import PackSettings

_READ_WHOLE = 1 << 18  # bytes; of a longer document, only the part that is needed is read, without its checksum


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
class Rows:
    """The rows of one field in the making. Several threads may fill them at once: each writes rows of its own."""

    parts: Parts
    ids: NDArray[np.int64]  # (b, width) filled up with padding
    replaced: dict[int, Parts] = field(default_factory=dict)  # by row

    def good(self, good: slice | NDArray[np.bool_]) -> tuple[NDArray[np.int64], Parts]:
        """Return the ids of these rows, and their parts: those that replace others in their place."""
        parts = self.parts
        if self.replaced:
            kept = parts.taken(~np.isin(parts.segments.row, list(self.replaced)))
            all_parts = [kept, *self.replaced.values()]
            columns = zip(*(one.segments for one in all_parts), strict=True)
            joined = Segments(*(np.concatenate(column) for column in columns))
            parts = Parts(joined, *(np.concatenate([getattr(one, name) for one in all_parts]) for name in ("begin", "following")))
            parts = parts.taken(np.argsort(joined.row, kind="stable"))
        if isinstance(good, slice):
            return self.ids, parts
        parts = parts.taken(good[parts.segments.row])
        new_row = (np.cumsum(good) - 1)[parts.segments.row]
        begin = parts.begin - (parts.segments.row - new_row) * self.ids.shape[1]
        return self.ids[good], Parts(parts.segments._replace(row=new_row), begin, parts.following)


@dataclass(frozen=True, slots=True, eq=False)
class FieldReader:
    """Reads the rows of one field of a corpus. Thread-safe."""

    index: TokenIndex
    packs: Packs
    settings: PackSettings
    pad: int
    files: Files
    maps: bool  # whether shards are mapped; those in a store are not

    def begin(self, packs: Ints, *, seed: int | None, epoch: int) -> tuple[Rows, Ints | None]:
        """Return the rows of these packs, and of rows that are single documents of packs, which pack each is of."""
        segments = self.packs.segments(packs, seed=seed, epoch=epoch)
        pack_of_row = None if self.settings.max_tokens is None else segments.row
        num_rows = len(packs)
        if pack_of_row is not None:
            num_rows = len(pack_of_row)
            segments = segments._replace(row=np.arange(num_rows))
        width = int(segments.num.max(initial=1)) if self.settings.packing == "pad" else self.settings.length
        for number, mine in () if self.maps else segments.by_shard():
            of_shard = (column[mine] for column in (segments.document, segments.first, segments.num, segments.total))
            self.files.will_need(_extents(self.index.shard(number), *of_shard)[0])
        return Rows(Parts.of(segments, width), _padded(segments, (num_rows, width), self.pad)), pack_of_row

    def replace(self, rows: Rows, row: int, pack: int, attempt: int, *, seed: int | None, epoch: int) -> bool:
        """Fill a row with another pack, or with one of its documents. Return False if that is bad."""
        width = rows.ids.shape[1]
        segments = self.packs.segments(np.array([pack], np.int64), seed=seed, epoch=epoch)
        if self.settings.max_tokens is not None:
            one = (row + attempt) % len(segments.row)
            segments = Segments(*(column[one : one + 1] for column in segments))
        segments = segments._replace(row=np.full(len(segments.row), row))
        if self.settings.packing == "pad":  # rows are as long as the longest that was picked
            segments = segments._replace(num=np.minimum(segments.num, width))
        parts = Parts.of(segments, width)
        rows.ids[row] = self.pad  # also where a bad sample left nothing
        bad, _ = self.read(rows.ids, parts, range(row, row + 1))
        rows.replaced[row] = parts
        return not bad

    def read(self, ids: NDArray[np.int64], part: Parts, rows: range) -> tuple[dict[int, Reason], int]:
        """Read the ids of these rows; return the bad ones, each with its first error, and the bytes read."""
        low, high = np.searchsorted(part.segments.row, [rows.start, rows.stop]).tolist()
        segments = Segments(*(column[low:high] for column in part.segments))
        wanted = segments.num
        if self.settings.labels == "shifted":
            wanted = np.minimum(wanted + 1, segments.total - segments.first)
        bad: dict[int, Reason] = {}
        flat = ids.reshape(-1)
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
        if bad or self._are_beyond(ids[rows.start : rows.stop]) or self._are_beyond(following, least=-1):
            for row in rows:
                found_ids = np.concatenate([ids[row], following[(segments.row == row) & (following != -1)]])
                if row not in bad and self._are_beyond(found_ids):
                    bad[row] = self._beyond(found_ids)
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


def filled(segments: Segments, num_rows: int) -> Ints:
    """Return (b,) the tokens of each row."""
    return np.bincount(segments.row, segments.num, num_rows).astype(np.int64)


def _padded(segments: Segments, shape: tuple[int, int], pad: int) -> NDArray[np.int64]:
    """Return memory for rows, filled only where no part will be."""
    ids = np.empty(shape, np.int64)
    num_filled = filled(segments, shape[0])
    for row in np.flatnonzero(num_filled < shape[1]).tolist():
        ids[row, num_filled[row] :] = pad
    return ids
