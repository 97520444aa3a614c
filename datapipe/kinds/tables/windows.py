"""The windows of a pass: rows that are shuffled with each other, filled by row groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.errors import DecodeError, IntegrityError
from datapipe.kernel.bad_samples import BadSample
from datapipe.kernel.kind import SharedPieces
from datapipe.kinds.tables.parts import Lists, LoadedWindow, TableParts
from datapipe.order.draws import key64, mix64
from datapipe.order.row_order import GroupPart, RunOrder


class ShuffledWindows(SharedPieces):
    """The windows of one pass, as pieces that batches share: each is loaded by row groups. Thread-safe."""

    def __init__(self, parts: TableParts, order: RunOrder, *, seed: int) -> None:
        self.parts_at_once = parts.parts_at_once
        self._parts, self._setup, self._order, self._seed = parts, parts.setup, order, seed
        self._num_lists = sum(len(group.columns) for group in parts.setup.layout.lists)

    def open(self, key: Any, step: int) -> tuple[LoadedWindow, list[GroupPart]]:
        window = LoadedWindow(key, step, self._parts.lease_window(len(key), room=self._order.max_window))
        window.lists = Lists(self._num_lists) if self._num_lists else None
        return window, self._order.parts(key)

    def load(self, window: LoadedWindow, parts: Sequence[GroupPart], worker: Any) -> None:
        self._parts.fill(worker, window, parts)

    def leave_out(self, window: LoadedWindow, part: GroupPart, reason: DecodeError | IntegrityError) -> None:
        window.bad_parts.append(part)
        index = self._setup.index
        first = int(index.starts[part.group]) + part.start
        where = f"{index.group(part.group)} ({part.stop - part.start} rows from row {first} of the table)"
        self._setup.bad_samples.add(BadSample(window.window.epoch, window.step, first, where, str(reason)))

    def complete(self, window: LoadedWindow) -> None:
        window.shuffled = self._order.shuffled(window.window)
        if window.lists is not None:
            window.lists.put_together(len(window))
        if not window.bad_parts:
            return
        bad = np.zeros(len(window), np.bool_)
        for piece in window.bad_parts:
            bad[piece.place : piece.place + piece.stop - piece.start] = True
        if self._setup.options.on_error == "skip":
            window.bad = bad
            return
        good = np.flatnonzero(~bad)
        if not len(good):
            raise DecodeError(
                f"all {len(window.bad_parts)} row groups of a window are bad, so no row of it can replace them; look at the "
                "files that loader.bad_samples names"
            )
        rows, where = np.flatnonzero(bad), window.window
        key = key64(self._seed, where.epoch, where.lane, where.number, 0x7265706C)
        chosen = good[(mix64(rows.astype(np.uint64) ^ key) % np.uint64(len(good))).astype(np.int64)]
        self._parts.replace(window, rows, chosen)
        for array in [] if window.lists is None else [*window.lists.starts, *window.lists.lengths]:
            array[rows] = array[chosen]
