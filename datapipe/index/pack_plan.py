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
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.core import arrow_maps, atomic
from datapipe.core.user_cache import one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, StorageError
from datapipe.index.arrow_buffers import array_of, lists_of, values_of
from datapipe.index.entries import by_number
from datapipe.index.pack_windows import Field, fitted, grouped, windows_of
from datapipe.index.packs import WINDOW, Ints, PackSettings, Segments, losses_of
from datapipe.index.tokens import TokenIndex
from datapipe.order.draws import key64
from datapipe.order.sample_order import Permutation

_REPACK = 0x7265706163  # purpose of a key
_IDENTITY = b"datapipe.packs"  # key of the schema's metadata
_PLAN_COLUMNS = {
    "shard_of_window": np.int64, "first_document": np.int64, "first_pack": np.int64, "num_fitted": np.int64,
    "first_part": np.int64, "ends": np.int64, "items": np.uint16, "parts": np.uint32, "losses": np.uint32, "costs": np.float32,
    "checksums": np.uint32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The packs of all windows, mapped from a file; see `Packs`. A window is checked when a pack of it is first asked for."""

    path: Path
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
    checksums: NDArray[np.uint32]  # (w,) of what the others have of each window; see `checksum`
    is_checked: NDArray[np.bool_]  # (w,) windows whose checksum was found to be right; threads may write the same value
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
            return losses_of(self.index, segments, self.settings.labels, len(packs))
        self._windows_of(packs)
        return self.losses[packs].astype(np.int64)

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        self._windows_of(packs)
        return self.costs[packs].astype(np.float64)

    def checksum(self, window: int) -> int:
        """Return the crc32c of what is planned for a window."""
        first, end = self.first_pack[window : window + 2].tolist()
        begin = int(self.ends[first - 1]) if first else 0
        part = int(self.first_part[window])
        items = self.items[begin : int(self.ends[end - 1]) if end > first else begin]
        parts = self.parts[part : part + end - first - int(self.num_fitted[window])]
        of_packs = (self.ends[first:end], self.losses[first:end], self.costs[first:end])
        return int(crc32c(b"".join(values.tobytes() for values in (self.num_fitted[window], items, parts, *of_packs))))

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        windows, length = self._windows_of(packs), self.settings.length
        most = self.settings.max_tokens or length  # of a pack
        ends = self.ends[packs]
        begins = np.where(packs > 0, self.ends[np.maximum(packs - 1, 0)], 0)
        num_items = ends - begins
        if len(packs) and (begins.min() < 0 or ends.max() > len(self.items) or num_items.min() < 1 or num_items.max() > most):
            raise self._damaged()
        row = np.repeat(np.arange(len(packs)), num_items)
        places = np.repeat(begins - (np.cumsum(num_items) - num_items), num_items) + np.arange(len(row))
        items = self.items[places].astype(np.int64)
        if self.repack and seed is not None:
            items = self._repacked(items, windows[row], seed, epoch)
        shard, document = self.shard_of_window[windows][row], self.first_document[windows][row] + items
        total = self._totals(shard, document)
        first = total // length * length if self.settings.long == "split" else np.zeros(len(row), np.int64)
        beyond = packs - self.first_pack[windows] - self.num_fitted[windows]
        full = np.flatnonzero(beyond >= 0)
        if len(full):  # of one item each
            first[np.searchsorted(row, full)] = (
                self.parts[self.first_part[windows[full]] + beyond[full]].astype(np.int64) * length
            )
        num = np.minimum(total - first, length)
        if len(num) and (num.min() < 1 or np.bincount(row, num).max() > most):
            raise self._damaged()
        return Segments(row, shard, document, first, num, total)

    def _windows_of(self, packs: Ints) -> Ints:
        """Return (m,) the window of each pack. Raises FormatError for one that is not as it was written."""
        windows = np.searchsorted(self.first_pack, packs, side="right") - 1
        for window in set(windows[~self.is_checked[windows]].tolist()):
            if self.checksum(window) != int(self.checksums[window]):
                raise self._damaged()
            self.is_checked[window] = True
        return windows

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
        return FormatError(f"{self.path}: the plan of packs is damaged; delete it, and it is made again")

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


def open_plan(
    index: TokenIndex, settings: PackSettings, homes: Sequence[Path], *, beside: Sequence[Field] = (), repack: bool = False
) -> PackPlan:
    """Return the plan of packs by these settings: one that is kept in one of `homes`, else one made now and kept in the first.

    `beside`: other fields of the documents, which are packed with them, by `max_tokens`. Raises OptionError for a document that
    is too long, if that is an error, and where no pack is left.
    """
    fields = [(index, settings), *beside]
    digest = hashlib.sha256(_identity(fields)).hexdigest()[:16] if beside else index.fingerprint
    name = f"packs-{settings.name}-{digest}.arrow"
    for home in homes:
        with contextlib.suppress(FileNotFoundError):
            return _mapped(home / name, fields, repack)
    writable = [home for home in homes if _is_writable(home)]
    if not writable:
        places = " and ".join(map(str, homes))
        raise StorageError(errno.EACCES, f"{places}: no plan of packs can be written; make one of them writable")
    home = writable[0]
    with one_at_a_time(home / ".packs.lock"):
        if not (home / name).exists():
            with reported_wait(f"the packs of {index.where}", "they are planned once"):
                _write_plan(home / name, fields)
    return _mapped(home / name, fields, repack)


def _identity(fields: Sequence[Field]) -> bytes:
    """Return what documents a plan is of, and by which settings."""
    return " ".join(f"{index.fingerprint} {settings.name}" for index, settings in fields).encode()


def _write_plan(path: Path, fields: Sequence[Field]) -> None:
    (index, settings), spans = fields[0], windows_of(fields[0][0])
    if settings.max_tokens is None:
        windows = [fitted(index, settings, number, first) for number, first in spans]
    else:
        windows = [grouped(fields, number, first) for number, first in spans]
    num_packs = [len(window.ends) for window in windows]
    num_items = np.cumsum([0, *(len(window.items) for window in windows)])
    columns: dict[str, NDArray[Any]] = {
        "shard_of_window": np.array([number for number, _ in spans], np.int64),
        "first_document": np.array([first for _, first in spans], np.int64),
        "first_pack": np.cumsum([0, *num_packs], dtype=np.int64),
        "num_fitted": np.array([window.num_fitted for window in windows], np.int64),
        "first_part": np.cumsum([0, *(len(window.parts) for window in windows)], dtype=np.int64)[:-1],
        "ends": _joined([before + window.ends for before, window in zip(num_items.tolist(), windows, strict=False)], np.int64),
    }
    for name in ("items", "parts", "losses", "costs"):
        columns[name] = _joined([getattr(window, name) for window in windows], _PLAN_COLUMNS[name])
    unchecked = np.zeros(len(spans), np.bool_)
    columns["checksums"] = np.zeros(len(spans), np.uint32)
    plan = PackPlan(path, index, settings, False, **columns, is_checked=unchecked, is_of_several=False)
    columns["checksums"] = np.array([plan.checksum(number) for number in range(len(spans))], np.uint32)
    table = pa.table({name: lists_of([len(values)], array_of(values)) for name, values in columns.items()})
    table = table.replace_schema_metadata({_IDENTITY: _identity(fields)})
    with atomic.atomic_writer(path) as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Return these arrays one after the other; there may be none."""
    return np.concatenate([np.zeros(0, dtype), *parts])


def _mapped(path: Path, fields: Sequence[Field], repack: bool) -> PackPlan:
    """Map a plan. Raises FileNotFoundError if there is none, FormatError if it is not one of these documents."""
    index, settings = fields[0]
    try:
        (batch,) = pa.ipc.open_stream(arrow_maps.stream_of(arrow_maps.map_file(path)))
        batch.validate(full=True)
        if (batch.schema.metadata or {}).get(_IDENTITY) != _identity(fields):
            raise ValueError("it is of other documents, or by other settings")
        arrays = {name: _values(batch.column(name), np.dtype(dtype)) for name, dtype in _PLAN_COLUMNS.items()}
        sizes = {name: len(values) for name, values in arrays.items()}
        per_window = {sizes[name] for name in ("shard_of_window", "first_document", "num_fitted", "first_part", "checksums")}
        per_pack = {sizes[name] for name in ("ends", "losses", "costs")}
        if per_window != {sizes["first_pack"] - 1} or per_pack != {int(arrays["first_pack"][-1])}:
            raise ValueError("its columns differ in length")
        spans = np.array(windows_of(index), np.int64).reshape(-1, 2)
        if not np.array_equal(np.stack([arrays["shard_of_window"], arrays["first_document"]], axis=1), spans):
            raise ValueError("it is of other documents")
        first_pack, num_fitted = arrays["first_pack"], arrays["num_fitted"]
        if first_pack[0] or (first_pack[1:] < first_pack[:-1]).any() or (num_fitted < 0).any():
            raise ValueError("its packs do not ascend")
        num_full = np.diff(first_pack) - num_fitted
        if (num_full < 0).any() or [*arrays["first_part"], sizes["parts"]] != [0, *np.cumsum(num_full)]:
            raise ValueError("its packs do not have the parts that there are")
    except FileNotFoundError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{path}: no plan of packs ({exc}); delete it, and it is made again") from exc
    return PackPlan(path, index, settings, repack, **arrays, is_checked=np.zeros(len(spans), np.bool_), is_of_several=False)


def _values(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of the only row of a column of lists, where they lie."""
    if column.type != pa.large_list(pa.from_numpy_dtype(dtype)) or len(column) != 1 or column.null_count:
        raise ValueError(f"a column is {column.type}")
    return values_of(column.flatten(), dtype)


def _is_writable(home: Path) -> bool:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(home, os.W_OK | os.X_OK)
