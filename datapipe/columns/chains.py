"""Bind chains of operations to columns: from Arrow's array of a row group to blocks of finished values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datapipe.columns import operations as ops
from datapipe.columns.hashing import IdTable, keys_of_numbers, keys_of_texts
from datapipe.columns.operations import FIRST, NULL, UNSEEN, Operation
from datapipe.columns.values import ColumnValues, padded, values_of
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableColumn

Block = Callable[[int, int], NDArray[Any]]  # rows from start to stop -> their values
_FAR = 2.0**30  # standard deviations of values from their mean, in tables of many rows
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The values of a `Categorify`, in the order of their ids from FIRST on. `digest`: a function of these and their order."""

    values: pa.Array
    digest: str
    table: IdTable

    @classmethod
    def of(cls, values: pa.Array) -> Vocabulary:
        """Return the vocabulary of these numbers or texts."""
        keys = keys_of_numbers(values.to_numpy(zero_copy_only=False)) if values.type not in _TEXTS else keys_of_texts(values)
        digest = hashlib.sha256(f"{values.type} {len(values)}\n".encode())
        digest.update(keys.astype("<u8").tobytes())
        return cls(values, digest.hexdigest(), IdTable.of(keys))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The statistics that fitting found for one column."""

    fill: float | None = None
    mean: float | None = None
    std: float | None = None
    vocabulary: Vocabulary | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """The operations of one column, with the results of fitting.

    `indicator`: the chain gives whether a value was missing, instead of the value.
    """

    operations: tuple[Operation, ...]
    fitted: Fitted = field(default_factory=Fitted)
    indicator: bool = False
    element: int | None = None  # place in a list, where the chain begins with PadList

    @property
    def fingerprint(self) -> str:
        """A hash that differs for chains that give other values."""
        found = self.fitted
        parts = [[type(one).__name__, asdict(one)] for one in self.operations]
        digest = None if found.vocabulary is None else found.vocabulary.digest
        words = [parts, found.fill, found.mean, found.std, digest, self.indicator]
        words += [] if self.element is None else [self.element]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def dtype_of(self, column: TableColumn) -> str:
        """Return the dtype of the chain's results for a column. Raises OptionError, with the remedy, for an unsuitable column."""
        if self.indicator:
            return "uint8"
        dtype = _stored_dtype(column, self.operations)
        for operation in self.operations:
            match operation:
                case ops.Categorify() | ops.HashBucket() | ops.Bucketize():
                    dtype = "int32"
                case ops.Normalize() | ops.Log1p():
                    dtype = dtype if dtype == "float64" else "float32"
                case ops.Cast():
                    dtype = operation.dtype
                case ops.PadList():
                    dtype = _with_number(dtype, operation.value)
                case ops.Clip():
                    for bound in (operation.min, operation.max):
                        dtype = dtype if bound is None else _with_number(dtype, bound)
                case ops.FillMissing():
                    dtype = _with_number(dtype, self.fitted.fill if isinstance(operation.value, str) else operation.value)
        return dtype

    def bind(self, array: pa.Array, column: TableColumn) -> Block:
        """Return a function that gives blocks of finished values of a row group. Raises OptionError for invalid values."""
        if self.indicator:
            mask = values_of(array, column).missing
            return lambda start, stop: mask[start:stop]
        first, rest = (self.operations[0], self.operations[1:]) if self.operations else (None, ())
        if isinstance(first, ops.PadList):
            values = padded(array, column, place=self.element or 0, value=first.value)
        elif isinstance(first, (ops.Categorify, ops.HashBucket)):
            values = ColumnValues(_ids(array, column, first, self.fitted), None)
        else:
            values, rest = values_of(array, column), self.operations
        return lambda start, stop: _applied(values[start:stop], rest, self.fitted, column)

    def apply(self, values: ColumnValues, column: TableColumn) -> NDArray[Any]:
        """Return some values of the column after the operations, of which none makes ids or takes lists."""
        return _applied(values, self.operations, self.fitted, column)


def _with_number(dtype: str, number: float | None) -> str:
    """Return the dtype of values of which some may be this number; None: one that is not known yet."""
    is_whole = number is not None and float(number).is_integer()
    return dtype if is_whole or dtype.startswith("float") else "float32"


def _stored_dtype(column: TableColumn, operations: tuple[Operation, ...]) -> str:
    first = operations[0] if operations else None
    if isinstance(first, ops.PadList):
        if column.kind is not ColumnKind.LIST:
            raise OptionError(f"column {column.name!r} is {column.type}, and PadList takes lists of numbers; leave it out")
        return column.dtype
    if column.kind is ColumnKind.NUMBER or isinstance(first, (ops.Categorify, ops.HashBucket)):
        if column.kind in (ColumnKind.LIST, ColumnKind.UNREAD, ColumnKind.DECIMAL):
            raise OptionError(
                f"column {column.name!r} is {column.type}, of which {type(first).__name__} cannot make ids; leave it out"
            )
        return column.dtype or "int32"
    if column.kind is ColumnKind.DECIMAL and isinstance(first, ops.Cast) and first.dtype.startswith("float"):
        return first.dtype
    remedy = "start with Categorify or HashBucket" if column.kind is ColumnKind.TEXT else "start with Cast('float64')"
    if column.kind in (ColumnKind.LIST, ColumnKind.UNREAD):
        remedy = "start with PadList" if column.kind is ColumnKind.LIST else "leave it out"
    what = type(first).__name__ if first is not None else "nothing"
    raise OptionError(f"column {column.name!r} is {column.type}, and {what} does not accept such values; {remedy}")


def _ids(array: pa.Array, column: TableColumn, operation: ops.Categorify | ops.HashBucket, fitted: Fitted) -> NDArray[np.int32]:
    """Return (n,) ids of a row group. Each distinct text is looked up once."""
    if column.kind is not ColumnKind.TEXT:
        values = values_of(array, column)
        return _looked_up(keys_of_numbers(values.data), values.missing, operation, fitted)
    if not pa.types.is_dictionary(array.type):
        array = pc.dictionary_encode(array)
    array.validate(full=True)
    none = np.zeros(len(array.dictionary), np.bool_)
    if array.dictionary.null_count:
        none = array.dictionary.is_null().to_numpy(zero_copy_only=False)
    of_values = _looked_up(keys_of_texts(array.dictionary), none, operation, fitted)
    null = NULL if isinstance(operation, ops.Categorify) else 0
    codes = array.indices
    if not len(of_values):
        return np.full(len(codes), null, np.int32)
    if not codes.null_count:
        found: NDArray[np.int32] = of_values[codes.to_numpy(zero_copy_only=False)]
        return found
    ids: NDArray[np.int32] = of_values[pc.fill_null(codes, 0).to_numpy(zero_copy_only=False)]
    ids[codes.is_null().to_numpy(zero_copy_only=False)] = null
    return ids


def _looked_up(
    keys: NDArray[np.uint64], missing: NDArray[np.bool_], operation: ops.Categorify | ops.HashBucket, fitted: Fitted
) -> NDArray[np.int32]:
    if isinstance(operation, ops.HashBucket):
        ids = (keys % np.uint64(operation.size - 1)).astype(np.int32) + np.int32(1)
        ids[missing] = 0
        return ids
    assert fitted.vocabulary is not None  # checked when the recipe was opened
    ids = fitted.vocabulary.table.find(keys, otherwise=UNSEEN - FIRST) + np.int32(FIRST)
    ids[missing] = NULL
    return ids


def _applied(values: ColumnValues, operations: tuple[Operation, ...], fitted: Fitted, column: TableColumn) -> NDArray[Any]:
    """Apply the chain to one block. Nulls that nothing fills become NaN, or a DecodeError if the result is not floating."""
    data, valid = values.data, values.valid
    if valid is not None and not (operations and isinstance(operations[0], ops.FillMissing)):
        if data.dtype.kind != "f":
            data = data.astype(np.float64)
        data = np.where(valid, data, data.dtype.type(np.nan))
    for operation in operations:
        match operation:
            case ops.FillMissing():
                data = _filled(data, valid, fitted.fill if isinstance(operation.value, str) else float(operation.value))
            case ops.Normalize():
                data = _normalised(_floating(data), fitted.mean or 0.0, fitted.std or 1.0)
            case ops.Log1p():
                with np.errstate(invalid="ignore", divide="ignore"):
                    data = np.log1p(_floating(data))
            case ops.Clip():
                data = _clipped(data, operation)
            case ops.Bucketize():
                if data.dtype.kind == "f" and np.isnan(data).any():
                    raise OptionError(f"column {column.name!r} has nulls or NaN, which are in no bucket; put FillMissing first")
                data = np.searchsorted(np.array(operation.boundaries), data, side="right").astype(np.int32)
            case ops.Cast():
                data = _cast(data, operation.dtype, column)
    return data


def _normalised(data: NDArray[Any], mean: float, std: float) -> NDArray[Any]:
    kind = data.dtype.type
    if std > float(np.finfo(data.dtype).max) / _FAR:  # a difference could overflow; halves are exact
        data, mean, std = data * kind(0.5), mean * 0.5, std * 0.5
    normalised: NDArray[Any] = (data - kind(mean)) / kind(std)
    return normalised


def _filled(data: NDArray[Any], valid: NDArray[np.bool_] | None, fill: float | None) -> NDArray[Any]:
    assert fill is not None  # checked when the recipe was opened
    missing = ColumnValues(data, valid).missing
    if not missing.any():
        return data
    if data.dtype.kind != "f" and not float(fill).is_integer():
        data = data.astype(np.float32)
    return np.where(missing, np.array(fill).astype(data.dtype), data)


def _floating(data: NDArray[Any]) -> NDArray[Any]:
    return data if data.dtype in (np.float32, np.float64) else data.astype(np.float32 if data.dtype.itemsize <= 2 else np.float64)


def _clipped(data: NDArray[Any], operation: ops.Clip) -> NDArray[Any]:
    bounds = [bound for bound in (operation.min, operation.max) if bound is not None]
    if data.dtype.kind != "f" and not all(float(bound).is_integer() for bound in bounds):
        data = data.astype(np.float64)
    if data.dtype.kind == "f":
        bounded: NDArray[Any] = np.clip(data, operation.min, operation.max)
        return bounded
    limits = np.iinfo(data.dtype)
    low = limits.min if operation.min is None else int(min(max(operation.min, limits.min), limits.max))
    high = limits.max if operation.max is None else int(min(max(operation.max, limits.min), limits.max))
    clipped: NDArray[Any] = np.clip(data, low, high)
    return clipped


def _cast(data: NDArray[Any], dtype: str, column: TableColumn) -> NDArray[Any]:
    wanted = np.dtype(dtype)
    if wanted.kind in "iu" and len(data) and not np.can_cast(data.dtype, wanted):
        limits = np.iinfo(wanted)
        low, high = data.min(), data.max()
        if not (float(low) >= limits.min and float(high) <= limits.max):  # NaN too
            raise OptionError(
                f"column {column.name!r} holds {low} to {high}, which {dtype} cannot hold; Clip or fill it before Cast"
            )
    with np.errstate(over="ignore"):
        found = data.astype(wanted)
    if wanted.kind == "f" and not np.can_cast(data.dtype, wanted):
        is_beyond = np.isinf(found) & np.isfinite(data)
        if is_beyond.any():
            value = data[np.argmax(is_beyond)]
            raise OptionError(f"column {column.name!r} holds {value}, which becomes infinite in {dtype}; Clip it before Cast")
    return found
