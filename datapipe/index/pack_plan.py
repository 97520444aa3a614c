"""Packs of several documents: the plan of all windows, made once, kept in a file and mapped.

Documents are packed in windows, of documents that lie next to each other in a shard. The plan says which documents are in which
pack, how many labels of it carry loss, and what its attention costs. Nothing in it depends on seeds, ranks or batch sizes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.core import arrow_maps, atomic
from datapipe.core.user_cache import one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, StorageError
from datapipe.index.packs import WINDOW, Ints, PackSettings, Segments, by_number, kept_documents, loss_of, refuse_long
from datapipe.index.tokens import TokenIndex
from datapipe.order.draws import key64
from datapipe.order.packing import best_fit, like_lengths
from datapipe.order.sample_order import Permutation

Field = tuple[TokenIndex, PackSettings]  # one of those whose documents are packed together

_REPACK = 0x7265706163  # purpose of a key
_PLAN_COLUMNS = {
    "shard_of_window": np.int64, "first_document": np.int64, "first_pack": np.int64, "num_fitted": np.int64,
    "first_part": np.int64, "ends": np.int64, "items": np.uint16, "parts": np.uint32, "losses": np.uint32, "costs": np.float32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The packs of all windows, mapped from a file; see `Packs`."""

    index: TokenIndex
    settings: PackSettings
    repack: bool  # put other documents of the same lengths together in each epoch
    shard_of_window: Ints  # (w,)
    first_document: Ints  # (w,) in its shard
    first_pack: Ints  # (w + 1,)
    num_fitted: Ints  # (w,) packs that were fitted; after these come those that are full of one part of a long document
    first_part: Ints  # (w,) number of the first such part in `parts`
    ends: Ints  # (p,) items before the end of each pack
    items: NDArray[np.uint16]  # documents, as numbers in their windows
    parts: NDArray[np.uint32]  # which part of its document each full pack is
    losses: NDArray[np.uint32]  # (p,)
    costs: NDArray[np.float32]  # (p,)
    is_of_several: bool  # fields, of which `index` has one

    def of_field(self, index: TokenIndex, settings: PackSettings) -> PackPlan:
        """Return the packs of another field of the same documents."""
        return replace(self, index=index, settings=settings, is_of_several=True)

    @property
    def kind(self) -> str:
        return f"packs {self.settings.name}{' again each epoch' if self.repack else ''}"

    def __len__(self) -> int:
        return len(self.ends)

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        if self.is_of_several or (self.repack and self._has_runs()):
            segments = self.segments(packs, seed=seed, epoch=epoch)
            losses = loss_of(self.index, segments, self.settings.labels)
            return np.bincount(segments.row, weights=losses, minlength=len(packs)).astype(np.int64)
        return self.losses[packs].astype(np.int64)

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        return self.costs[packs].astype(np.float64)

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        ends = self.ends[packs]
        begins = np.where(packs > 0, self.ends[np.maximum(packs - 1, 0)], 0)
        num_items = ends - begins
        if len(packs) and (num_items.min() < 1 or ends.max() > len(self.items)):
            raise self._damaged()
        row = np.repeat(np.arange(len(packs)), num_items)
        places = np.repeat(begins - (np.cumsum(num_items) - num_items), num_items) + np.arange(len(row))
        items = self.items[places].astype(np.int64)
        windows = np.searchsorted(self.first_pack, packs, side="right") - 1
        if self.repack and seed is not None:
            items = self._repacked(items, windows[row], seed, epoch)
        shard, document = self.shard_of_window[windows][row], self.first_document[windows][row] + items
        total = self._totals(shard, document)
        length = self.settings.length
        first = total // length * length if self.settings.long == "split" else np.zeros(len(row), np.int64)
        beyond = packs - self.first_pack[windows] - self.num_fitted[windows]
        full = np.flatnonzero(beyond >= 0)
        if len(full):  # of one item each
            first[np.searchsorted(row, full)] = (
                self.parts[self.first_part[windows[full]] + beyond[full]].astype(np.int64) * length
            )
        num = np.minimum(total - first, length)
        if len(num) and (num.min() < 1 or np.bincount(row, num).max() > (self.settings.max_tokens or length)):
            raise self._damaged()
        return Segments(row, shard, document, first, num, total)

    def _totals(self, shard: Ints, document: Ints) -> Ints:
        """Return (s,) the tokens of each of these documents."""
        total = np.empty(len(shard), np.int64)
        for number, here in by_number(shard):
            lengths = self.index.shard(number).num_tokens
            if document[here].max() >= len(lengths):
                raise self._damaged()
            total[here] = lengths[document[here]]
        return total

    def _damaged(self) -> FormatError:
        return FormatError(f"{self.index.where}: its plan of packs is damaged; delete it, and it is made again")

    def _has_runs(self) -> bool:
        return any(self.index.shard(number).loss is not None for number in range(self.index.num_shards))

    def _repacked(self, items: Ints, windows: Ints, seed: int, epoch: int) -> Ints:
        """Return, in place of these documents, others of their lengths: each document again once, by (seed, epoch)."""
        found = items.copy()
        for window in np.unique(windows).tolist():
            here = windows == window
            shard, first = self.index.shard(int(self.shard_of_window[window])), int(self.first_document[window])
            lengths = np.asarray(shard.num_tokens[first : first + WINDOW])
            mixed = Permutation(len(lengths), int(key64(seed, epoch, window, _REPACK)))(np.arange(len(lengths)))
            plain = np.argsort(lengths, kind="stable")
            shuffled = mixed[np.argsort(lengths[mixed], kind="stable")]
            rank = np.empty(len(lengths), np.int64)
            rank[plain] = np.arange(len(lengths))
            found[here] = shuffled[rank[items[here]]]
        return found


class _Window(NamedTuple):
    """The packs of one window."""

    num_fitted: int
    ends: Ints
    items: NDArray[np.uint16]
    parts: NDArray[np.uint32]
    losses: NDArray[np.uint32]
    costs: NDArray[np.float32]


def _grouped(fields: Sequence[Field], number: int, first: int) -> _Window:
    """Group the documents of a shard from `first` on, as many as a window has, by their lengths."""
    settings = fields[0][1]
    assert settings.max_tokens is not None
    totals = [np.asarray(index.shard(number).num_tokens[first : first + WINDOW], np.int64) for index, _ in fields]
    kept = np.ones(len(totals[0]), np.bool_)
    for (index, of_field), total in zip(fields, totals, strict=True):
        refuse_long(index, number, first, total, of_field, can_split=False)
        kept &= kept_documents(total, of_field)
    some = np.flatnonzero(kept)
    lengths = np.stack([np.minimum(total[some], of.length) for (_, of), total in zip(fields, totals, strict=True)])
    order, ends = like_lengths(lengths, settings.max_tokens)
    items, lengths = some[order], lengths[:, order]
    row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    losses = np.zeros(len(items), np.int64)
    for (index, _), total, num in zip(fields, totals, lengths, strict=True):
        whole = Segments(row, np.full(len(items), number), first + items, np.zeros(len(items), np.int64), num, total[items])
        losses += loss_of(index, whole, settings.labels)
    costs = np.bincount(row, weights=(lengths.astype(np.float64) ** 2).sum(0), minlength=len(ends))
    return _Window(
        len(ends),
        ends,
        items.astype(np.uint16),
        np.zeros(0, np.uint32),
        np.bincount(row, weights=losses, minlength=len(ends)).astype(np.uint32),
        costs.astype(np.float32),
    )


def _fitted(index: TokenIndex, settings: PackSettings, number: int, first: int) -> _Window:
    """Pack the documents of a shard from `first` on, as many as a window has."""
    length, shard = settings.length, index.shard(number)
    total = np.asarray(shard.num_tokens[first : first + WINDOW], np.int64)
    refuse_long(index, number, first, total, settings, can_split=True)
    if settings.long == "split":
        num_parts = total // length
        left = total - num_parts * length
    else:
        num_parts = np.zeros(len(total), np.int64)
        left = np.where(total > length, 0, total) if settings.long == "drop" else np.minimum(total, length)
    some = np.flatnonzero(left)
    order, ends = best_fit(left[some].astype(np.uint16 if length < WINDOW else np.int64), length, most=settings.max_documents)
    whole = np.repeat(np.arange(len(total)), num_parts)
    parts = np.arange(len(whole)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    items = np.concatenate([some[order], whole])
    num_fitted = len(ends)
    ends = np.concatenate([ends, (ends[-1] if num_fitted else 0) + 1 + np.arange(len(whole))])
    first_token = np.concatenate([(num_parts * length)[some[order]], parts * length])
    row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    num = np.minimum(total[items] - first_token, length)
    segments = Segments(row, np.full(len(items), number), first + items, first_token, num, total[items])
    losses = np.bincount(row, weights=loss_of(index, segments, settings.labels), minlength=len(ends))
    costs = np.bincount(row, weights=num.astype(np.float64) ** 2, minlength=len(ends))
    return _Window(
        num_fitted, ends, items.astype(np.uint16), parts.astype(np.uint32), losses.astype(np.uint32), costs.astype(np.float32)
    )


def open_plan(
    index: TokenIndex, settings: PackSettings, homes: Sequence[Path], *, beside: Sequence[Field] = (), repack: bool = False
) -> PackPlan:
    """Return the plan of packs by these settings: one that is kept in one of `homes`, else one made now and kept in the first.

    `beside`: other fields of the documents, which are packed with them, by `max_tokens`. Raises OptionError for a document that
    is too long, if that is an error, and where no pack is left.
    """
    fields = [(index, settings), *beside]
    name = f"packs-{settings.name}-{index.fingerprint}.arrow"
    if beside:
        words = " ".join(f"{one.fingerprint} {of.name}" for one, of in fields)
        name = f"packs-{settings.name}-{hashlib.sha256(words.encode()).hexdigest()[:16]}.arrow"
    for home in homes:
        with contextlib.suppress(FileNotFoundError):
            return _mapped(home / name, index, settings, repack)
    writable = [home for home in homes if _is_writable(home)]
    if not writable:
        places = " and ".join(map(str, homes))
        raise StorageError(errno.EACCES, f"{places}: no plan of packs can be written; make one of them writable")
    home = writable[0]
    with one_at_a_time(home / ".packs.lock"):
        if not (home / name).exists():
            with reported_wait(f"the packs of {index.where}", "they are planned once"):
                _write_plan(home / name, fields)
    return _mapped(home / name, index, settings, repack)


def measured_fill(index: TokenIndex, settings: PackSettings, *, most_windows: int) -> float:
    """Return which share of their rows the tokens of a corpus fill when fitted, by some windows spread over it."""
    windows = _windows(index)
    some = windows[:: max(1, -(-len(windows) // most_windows))]
    fitted = [(_fitted(index, settings, *window), window) for window in some]
    num_tokens = sum(int(index.shard(number).num_tokens[first : first + WINDOW].sum()) for _, (number, first) in fitted)
    return num_tokens / max(1, sum(len(window.ends) for window, _ in fitted) * settings.length)


def _windows(index: TokenIndex) -> list[tuple[int, int]]:
    """Return the shard and the first document of each window."""
    nums = np.diff(index.starts).tolist()
    return [(number, first) for number, num in enumerate(nums) for first in range(0, num, WINDOW)]


def _write_plan(path: Path, fields: Sequence[Field]) -> None:
    (index, settings), spans = fields[0], _windows(fields[0][0])
    if settings.max_tokens is None:
        windows = [_fitted(index, settings, number, first) for number, first in spans]
    else:
        windows = [_grouped(fields, number, first) for number, first in spans]
    num_packs = [len(window.ends) for window in windows]
    num_items = np.cumsum([0, *(len(window.items) for window in windows)])
    columns = {
        "shard_of_window": np.array([number for number, _ in spans], np.int64),
        "first_document": np.array([first for _, first in spans], np.int64),
        "first_pack": np.cumsum([0, *num_packs], dtype=np.int64),
        "num_fitted": np.array([window.num_fitted for window in windows], np.int64),
        "first_part": np.cumsum([0, *(len(window.parts) for window in windows)], dtype=np.int64)[:-1],
        "ends": np.concatenate([before + window.ends for before, window in zip(num_items.tolist(), windows, strict=False)]),
        "items": np.concatenate([window.items for window in windows]),
        "parts": np.concatenate([window.parts for window in windows]),
        "losses": np.concatenate([window.losses for window in windows]),
        "costs": np.concatenate([window.costs for window in windows]),
    }
    arrays = {name: _as_list(values) for name, values in columns.items()}
    table = pa.table(arrays)
    with atomic.atomic_writer(path) as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _as_list(values: NDArray[Any]) -> pa.Array:
    """Return one row that is a list of the values."""
    flat = pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), flat)


def _mapped(path: Path, index: TokenIndex, settings: PackSettings, repack: bool) -> PackPlan:
    """Map a plan. Raises FileNotFoundError if there is none, FormatError if it is not one."""
    try:
        batch = pa.ipc.open_stream(arrow_maps.stream_of(arrow_maps.map_file(path))).read_next_batch()
        batch.validate(full=True)
        arrays = {name: _values(batch.column(name), np.dtype(dtype)) for name, dtype in _PLAN_COLUMNS.items()}
        sizes = {name: len(values) for name, values in arrays.items()}
        per_window = {sizes[name] for name in ("shard_of_window", "first_document", "num_fitted", "first_part")}
        per_pack = {sizes[name] for name in ("ends", "losses", "costs")}
        if per_window != {sizes["first_pack"] - 1} or per_pack != {int(arrays["first_pack"][-1])}:
            raise ValueError("its columns differ in length")
        if not np.array_equal(np.stack([arrays["shard_of_window"], arrays["first_document"]]), np.transpose(_windows(index))):
            raise ValueError("it is of other documents")
        if arrays["first_pack"][0] or (np.diff(arrays["first_pack"]) < 0).any() or (arrays["num_fitted"] < 0).any():
            raise ValueError("its packs do not ascend")
    except FileNotFoundError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{path}: no plan of packs ({exc}); delete it, and it is made again") from exc
    return PackPlan(index, settings, repack, **arrays, is_of_several=False)


def _values(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of the only row of a column of lists, where they lie."""
    if column.type != pa.large_list(pa.from_numpy_dtype(dtype)) or len(column) != 1 or column.null_count:
        raise ValueError(f"a column is {column.type}")
    flat = column.flatten()
    found: NDArray[Any] = np.frombuffer(flat.buffers()[1], dtype, len(flat), flat.offset * dtype.itemsize)
    return found


def _is_writable(home: Path) -> bool:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(home, os.W_OK | os.X_OK)
