"""Finish the columns of row groups on a device, and pack them into row-major matrices there.

What `columns.chains` does on blocks of rows by numpy is done here on whole columns by torch. Nothing asks the device for a value:
what depends on values, such as whether integers fit a dtype, is refused beforehand (`choice`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.columns import operations as ops
from datapipe.columns.chains import Chain, Vocabulary
from datapipe.columns.hashing import SEED
from datapipe.columns.layout import MatrixColumn, MatrixLayout
from datapipe.columns.operations import FIRST, MAKES_IDS, NULL, UNSEEN
from datapipe.columns.values import nulls_error
from datapipe.index.tables import ColumnKind, TableGroup
from datapipe.kernel.device_runtime import DeviceRuntime, Event
from datapipe.kernel.pools import SlabPool
from datapipe.kinds.tables.cudf.reader import DeviceValues
from datapipe.order.draws import MIX_1, MIX_2


class DevicePacker:
    """Packs columns for one layout. Thread-safe. Call it under the stream on which the columns were read."""

    def __init__(self, layout: MatrixLayout, *, runtime: DeviceRuntime, uploads: PinnedUploads) -> None:
        self._layout = layout
        self._runtime = runtime
        self._uploads = uploads
        self._vocabularies: dict[str, tuple[SortedIds, Event]] = {}  # by digest
        self._lock = threading.Lock()

    def features(self, columns: Mapping[str, DeviceValues], group: TableGroup, kept: list[object]) -> list[list[torch.Tensor]]:
        """Return the finished features of each matrix, (n,) each, in its dtype.

        `kept` must live until the stream is done. Raises OptionError, naming column, file and count, for nulls where the dtype
        has no value for them.
        """
        return [
            [self._feature(feature, matrix.dtype, columns[feature.column.name], group, kept) for feature in matrix.features]
            for matrix in self._layout.matrices
        ]

    def _feature(
        self, feature: MatrixColumn, dtype: str, values: DeviceValues, group: TableGroup, kept: list[object]
    ) -> torch.Tensor:
        wanted: torch.dtype = getattr(torch, dtype)
        chain = feature.chain
        if chain is not None and chain.indicator:
            return _missing(values).to(wanted)
        operations = () if chain is None else chain.operations
        leads_with_ids = bool(operations) and isinstance(operations[0], (ops.Categorify, ops.HashBucket))
        if values.num_nulls and not leads_with_ids and not (operations and isinstance(operations[0], ops.FillMissing)):
            ids = any(isinstance(operation, MAKES_IDS) for operation in operations)
            if ids or not wanted.is_floating_point:
                raise nulls_error(feature.name, dtype, group, values.num_nulls)
        if chain is None:
            data = values.data.to(wanted)
            return data if values.valid is None else data.masked_fill(~values.valid, float("nan"))
        if feature.column.kind is ColumnKind.TEXT:
            return self._of_texts(feature, chain, values).to(wanted)
        if leads_with_ids:
            return self._ids(chain, values, kept).to(wanted)
        return self._applied(chain, values).to(wanted)

    def _of_texts(self, feature: MatrixColumn, chain: Chain, values: DeviceValues) -> torch.Tensor:
        """Look up the finished value of each distinct text."""
        assert values.texts is not None
        finished = np.ascontiguousarray(chain.bind(values.texts, feature.column)(0, len(values.texts)))
        return self._uploads.to_device(finished).index_select(0, values.data)

    def _ids(self, chain: Chain, values: DeviceValues, kept: list[object]) -> torch.Tensor:
        operation, missing = chain.operations[0], _missing(values)
        keys = keys_of_numbers(values.data)
        if isinstance(operation, ops.HashBucket):
            return (bucket_of(keys, operation.size - 1) + 1).to(torch.int32).masked_fill_(missing, 0)
        assert chain.fitted.vocabulary is not None  # checked when the recipe was opened
        table = self._uploaded(chain.fitted.vocabulary, kept)
        return (table.find(keys, otherwise=UNSEEN - FIRST) + FIRST).masked_fill_(missing, NULL)

    def _uploaded(self, vocabulary: Vocabulary, kept: list[object]) -> SortedIds:
        """Return a vocabulary on the device, where it is copied once."""
        stream = self._runtime.current_stream()
        with self._lock:
            found = self._vocabularies.get(vocabulary.digest)
            if found is None:
                keys, ids = (self._uploads.to_device(array) for array in vocabulary.table.sorted())
                found = (SortedIds(keys, ids), self._runtime.record_event(stream))
                self._vocabularies[vocabulary.digest] = found
        table, event = found
        self._runtime.wait_event(stream, event)
        kept.append(table)
        return table

    def _applied(self, chain: Chain, values: DeviceValues) -> torch.Tensor:
        """Return the values after a chain of elementwise operations; nulls that nothing fills are NaN."""
        data, operations = values.data, chain.operations
        if values.valid is not None and not isinstance(operations[0], ops.FillMissing):
            data = data if data.is_floating_point() else data.to(torch.float64)
            data = data.masked_fill(~values.valid, float("nan"))
        for operation in operations:
            match operation:
                case ops.FillMissing():
                    fill = chain.fitted.fill if isinstance(operation.value, str) else float(operation.value)
                    assert fill is not None  # checked when the recipe was opened
                    if not data.is_floating_point() and not fill.is_integer():
                        data = data.to(torch.float32)
                    data = data.masked_fill(_missing(values), fill if data.is_floating_point() else int(fill))
                case ops.Normalize():
                    data = _floating(data)
                    data = (data - (chain.fitted.mean or 0.0)) / (chain.fitted.std or 1.0)
                case ops.Log1p():
                    data = torch.log1p(_floating(data))
                case ops.Clip():
                    data = _clipped(data, operation)
                case ops.Bucketize():
                    boundaries = self._uploads.to_device(np.array(operation.boundaries))
                    data = torch.bucketize(data.to(torch.float64), boundaries, out_int32=True, right=True)
                case ops.Cast():
                    data = data.to(getattr(torch, operation.dtype))
        return data


def pack(features: Sequence[Sequence[torch.Tensor]], *, rows: range, out: Sequence[torch.Tensor], place: int) -> None:
    """Write `rows` of finished features into rows of the matrices `out`, (n, width) each, from `place` on."""
    for columns, target in zip(features, out, strict=True):
        parts = [column[rows.start : rows.stop] for column in columns]
        torch.stack(parts, dim=1, out=target[place : place + len(rows)])


def _missing(values: DeviceValues) -> torch.Tensor:
    """Return (n,) True where there is no value, or NaN."""
    missing = torch.isnan(values.data)
    return missing if values.valid is None else missing | ~values.valid


def _floating(data: torch.Tensor) -> torch.Tensor:
    if data.dtype in (torch.float32, torch.float64):
        return data
    return data.to(torch.float32 if data.element_size() <= 2 else torch.float64)


def _clipped(data: torch.Tensor, operation: ops.Clip) -> torch.Tensor:
    bounds = [bound for bound in (operation.min, operation.max) if bound is not None]
    if not data.is_floating_point() and not all(float(bound).is_integer() for bound in bounds):
        data = data.to(torch.float64)
    if data.is_floating_point():
        return data.clamp(operation.min, operation.max)
    limits = torch.iinfo(data.dtype)
    low, high = (
        None if bound is None else int(min(max(bound, limits.min), limits.max)) for bound in (operation.min, operation.max)
    )
    return data.clamp(low, high)


class PinnedUploads:
    """Copies arrays by way of page-locked memory. Thread-safe, without a lock: two pools made at once do no harm."""

    def __init__(self, runtime: DeviceRuntime, *, max_free: int) -> None:
        self._runtime = runtime
        self._max_free = max_free
        self._pool: SlabPool | None = None

    def to_device(self, values: NDArray[Any]) -> torch.Tensor:
        """Return the values on the device, which the current stream copies; the page-locked memory is held until then."""
        nbytes = max(values.nbytes, 1)
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:
            pool = self._pool = self._runtime.pinned_slabs(1 << (nbytes - 1).bit_length(), max_free=self._max_free)
        slab = pool.lease()
        host = torch.from_numpy(slab[: values.nbytes].view(values.dtype))
        np.copyto(host.numpy(), values)
        try:
            return self._runtime.copy_in(host)
        finally:  # at once: what the caller does with the values may fail, and the copy still come
            self._runtime.pending.add(self._runtime.record_event(self._runtime.current_stream()), [host])


# -- the keys and ids of `columns.hashing`; words of 64 bits are int64 tensors, whose products wrap alike


def keys_of_numbers(values: torch.Tensor) -> torch.Tensor:
    """Return (n,) keys, the same as `columns.hashing.keys_of_numbers` gives."""
    if values.is_floating_point():
        words = (values.to(torch.float64) + 0.0).view(torch.int64)
    else:
        words = values.to(torch.int64)
    return _mixed(words ^ _signed(int(SEED)))


def bucket_of(keys: torch.Tensor, size: int) -> torch.Tensor:
    """Return (n,) the keys, as unsigned numbers, modulo `size`, which is below 2^31."""
    return ((_shifted(keys, 1) % size) * 2 + (keys & 1)) % size


@dataclass(frozen=True, slots=True)
class SortedIds:
    """A vocabulary in the form that a device searches: (n,) int64 keys in ascending order, and (n,) int32 ids."""

    keys: torch.Tensor
    ids: torch.Tensor

    def find(self, keys: torch.Tensor, *, otherwise: int) -> torch.Tensor:
        """Return (n,) int32 ids; `otherwise` for keys that are not in the table."""
        if not len(self.keys):
            return torch.full(keys.shape, otherwise, dtype=torch.int32, device=keys.device)
        places = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        found = self.ids.index_select(0, places)
        return found.masked_fill_(self.keys.index_select(0, places) != keys, otherwise)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """`order.draws.mix64`."""
    words = (words ^ _shifted(words, 30)) * _signed(int(MIX_1))
    words = (words ^ _shifted(words, 27)) * _signed(int(MIX_2))
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right, filling with zeros."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
