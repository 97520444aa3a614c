"""A plan of packs of several documents, for all windows: arrays that are looked up.

Documents are packed in windows, of documents that lie next to each other in a shard. The plan says which documents are in which
pack, how many labels of it carry loss, and what its attention costs. Nothing in it depends on seeds, ranks or batch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.errors import FormatError
from datapipe.index.entries import by_number
from datapipe.order.draws import Ints, key64
from datapipe.order.sample_order import Permutation
from datapipe.packing.documents import Documents
from datapipe.packing.losses import losses_of
from datapipe.packing.packs import Segments
from datapipe.packing.settings import WINDOW, PackSettings

_REPACK = 0x7265706163  # purpose of a key


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The packs of all windows, mapped from a file; see `Packs`. A window is checked when a pack of it is first asked for."""

    path: Path
    index: Documents
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

    def of_field(self, index: Documents, settings: PackSettings) -> PackPlan:
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
        places = ranges(begins, num_items)
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
