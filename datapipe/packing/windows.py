"""The packs of one window of documents: fitted into rows, or grouped by lengths into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.order.draws import Ints
from datapipe.packing.documents import Documents, Field, kept_documents, refuse_long
from datapipe.packing.fit import best_fit, even_fit, like_lengths
from datapipe.packing.losses import losses_of
from datapipe.packing.packs import Segments
from datapipe.packing.settings import WINDOW, PackSettings


class PackedWindow(NamedTuple):
    """The packs of one window."""

    num_fitted: int
    ends: Ints
    items: NDArray[np.uint16]
    parts: NDArray[np.uint32]
    losses: NDArray[np.uint32]
    costs: NDArray[np.float32]


def grouped(fields: Sequence[Field], number: int, first: int) -> PackedWindow:
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
    losses = np.zeros(len(ends), np.int64)
    for (index, _), total, num in zip(fields, totals, lengths, strict=True):
        whole = Segments(row, np.full(len(items), number), first + items, np.zeros(len(items), np.int64), num, total[items])
        losses += losses_of(index, whole, settings.labels, len(ends))
    costs = np.bincount(row, weights=(lengths.astype(np.float64) ** 2).sum(0), minlength=len(ends))
    return PackedWindow(
        len(ends),
        ends,
        items.astype(np.uint16),
        np.zeros(0, np.uint32),
        losses.astype(np.uint32),
        costs.astype(np.float32),
    )


def fitted(index: Documents, settings: PackSettings, number: int, first: int) -> PackedWindow:
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
    lengths: NDArray[np.integer] = left[some].astype(np.uint16 if length < WINDOW else np.int64)
    if shard.weights is not None and settings.max_documents is None:
        order, ends = even_fit(lengths, shard.weights[first : first + WINDOW][some], length)
    else:
        order, ends = best_fit(lengths, length, most=settings.max_documents)
    whole = np.repeat(np.arange(len(total)), num_parts)
    parts = ranges(0, num_parts)
    items = np.concatenate([some[order], whole])
    num_fitted = len(ends)
    ends = np.concatenate([ends, (ends[-1] if num_fitted else 0) + 1 + np.arange(len(whole))])
    first_token = np.concatenate([(num_parts * length)[some[order]], parts * length])
    row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    num = np.minimum(total[items] - first_token, length)
    segments = Segments(row, np.full(len(items), number), first + items, first_token, num, total[items])
    losses = losses_of(index, segments, settings.labels, len(ends))
    costs = np.bincount(row, weights=num.astype(np.float64) ** 2, minlength=len(ends))
    return PackedWindow(
        num_fitted, ends, items.astype(np.uint16), parts.astype(np.uint32), losses.astype(np.uint32), costs.astype(np.float32)
    )


def measured_fill(index: Documents, settings: PackSettings, *, most_windows: int) -> float:
    """Return which share of their rows the tokens of a corpus fill when fitted, by some windows spread over it."""
    windows = windows_of(index)
    some = windows[:: max(1, -(-len(windows) // most_windows))]
    packed = [(fitted(index, settings, *window), window) for window in some]
    num_tokens = sum(int(index.shard(number).num_tokens[first : first + WINDOW].sum()) for _, (number, first) in packed)
    return num_tokens / max(1, sum(len(window.ends) for window, _ in packed) * settings.length)


def windows_of(index: Documents) -> list[tuple[int, int]]:
    """Return the shard and the first document of each window."""
    nums = np.diff(index.starts).tolist()
    return [(number, first) for number, num in enumerate(nums) for first in range(0, num, WINDOW)]
