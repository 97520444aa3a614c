"""A stand-in for the parts of pylibcudf and RMM that tables use, over Arrow: it runs without a GPU.

It is as unhelpful as the real one may be. Memory is filled by the stream that a read was given, later if the device runs late.
Beneath nulls lies rubbish. The memory of a column ends with its last user: the device then gives it to somebody else.
Checksums of pages are not looked at.

    with stand_in(device): ...    # `import pylibcudf` finds it
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

POISON = 0xDB


class Memory(Protocol):
    """A device, as far as the stand-in allocates on it."""

    def place(self, values: NDArray[np.uint8], stream: int) -> Any:
        """Return memory of the device that the stream fills with these bytes."""


class TypeId(enum.IntEnum):
    """The types of columns."""

    INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT32, FLOAT64, BOOL8 = range(1, 12)
    TIMESTAMP_DAYS, TIMESTAMP_SECONDS, TIMESTAMP_MILLISECONDS, TIMESTAMP_MICROSECONDS, TIMESTAMP_NANOSECONDS = range(12, 17)
    DURATION_DAYS, DURATION_SECONDS, DURATION_MILLISECONDS, DURATION_MICROSECONDS, DURATION_NANOSECONDS = range(17, 22)
    STRING = 23


class DataType:
    """The type of a column."""

    def __init__(self, kind: TypeId) -> None:
        self._kind = kind

    def id(self) -> TypeId:
        return self._kind


class Buffer:
    """Memory of the device. `placed`: what the device made of it."""

    def __init__(self, placed: Any) -> None:
        self.placed = placed


class Column:
    """A column of a table that was read."""

    def __init__(self, kind: TypeId, values: pa.Array, data: Buffer | None) -> None:
        self._kind, self._values, self._data = kind, values, data

    def type(self) -> DataType:
        return DataType(self._kind)

    def size(self) -> int:
        return len(self._values)

    def offset(self) -> int:
        return 0

    def null_count(self) -> int:
        return int(self._values.null_count)

    def data(self) -> Buffer | None:
        return self._data

    def to_arrow(self, metadata: object = None, stream: object = None) -> pa.Array:
        return self._values


class Table:
    """Columns of one length."""

    def __init__(self, columns: Sequence[Column], num_rows: int | None = None) -> None:
        self._columns, self._num_rows = tuple(columns), num_rows

    def columns(self) -> tuple[Column, ...]:
        return self._columns

    def num_rows(self) -> int:
        return self._columns[0].size() if self._num_rows is None else self._num_rows


class TableWithMetadata:
    """What a read returns."""

    def __init__(self, tbl: Table, column_names: list[str]) -> None:
        self.tbl, self._names = tbl, column_names

    def column_names(self, include_children: bool = False) -> list[str]:
        return self._names


class SourceInfo:
    """The files to read. Raises FileNotFoundError for one that is not there."""

    def __init__(self, sources: Sequence[str]) -> None:
        for path in sources:
            open(path, "rb").close()
        self.paths = list(sources)


class ParquetReaderOptions:
    """What to read of which files."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.columns: list[str] = []
        self.row_groups: list[list[int]] = []

    def set_row_groups(self, row_groups: list[list[int]]) -> None:
        self.row_groups = row_groups

    def set_column_names(self, col_names: list[str]) -> None:
        self.columns = col_names

    @staticmethod
    def builder(source: SourceInfo) -> ParquetReaderOptionsBuilder:
        built = ParquetReaderOptionsBuilder()
        built.options.paths = source.paths
        return built


class ParquetReaderOptionsBuilder:
    """Makes options."""

    def __init__(self) -> None:
        self.options = ParquetReaderOptions()

    def build(self) -> ParquetReaderOptions:
        return self.options


class Stream:
    """A stream of CUDA's, known by its address."""

    def __init__(self, obj: Any = None, flags: object = None) -> None:
        self.address = obj.__cuda_stream__()[1]

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class CudaMemoryResource:
    """Allocates by cudaMalloc. Freeing waits for the device."""


class CudaAsyncMemoryResource:
    """Allocates in the order of a stream."""

    def __init__(
        self,
        initial_pool_size: int | str | None = None,
        release_threshold: int | None = None,
        enable_ipc: bool = False,
        enable_fabric: bool = False,
    ) -> None:
        self.release_threshold = release_threshold


class Functions:
    """The functions, which allocate on a device."""

    def __init__(self, device: Memory) -> None:
        self._device = device
        self._resources: dict[int, object] = {}

    def get_per_device_resource(self, device: int) -> object:
        return self._resources.setdefault(device, CudaMemoryResource())

    def set_per_device_resource(self, device: int, mr: object) -> None:
        self._resources[device] = mr

    def read_parquet(
        self,
        options: ParquetReaderOptions,
        stream: Stream | None = None,
        mr: object = None,
        parquet_metadatas: object = None,
    ) -> TableWithMetadata:
        assert stream is not None, "a read on the default stream"
        resources = self._resources.values() or [CudaMemoryResource()]
        assert not any(type(one) is CudaMemoryResource for one in resources), "temporary memory by cudaMalloc"
        try:
            parts = [
                pq.ParquetFile(path, pre_buffer=False).read_row_groups(groups, columns=options.columns, use_threads=False)
                for path, groups in zip(options.paths, options.row_groups, strict=True)
            ]
            table = pa.concat_tables(parts)
        except (pa.ArrowException, OSError) as exc:
            raise RuntimeError(f"CUDF failure at: reader_impl.cpp:1: {exc}") from exc
        columns = [self._column(_plain(table.column(name)), stream) for name in options.columns]
        return TableWithMetadata(Table(columns), list(options.columns))

    def is_valid(self, input: Column, stream: Stream | None = None, mr: object = None) -> Column:
        assert stream is not None, "work on the default stream"
        return self._column(input.to_arrow().is_valid(), stream)

    def encode(self, input: Table, stream: Stream | None = None, mr: object = None) -> tuple[Table, Column]:
        assert stream is not None, "work on the default stream"
        (column,) = input.columns()
        found = column.to_arrow().dictionary_encode(null_encoding="encode")
        distinct = Column(TypeId.STRING, found.dictionary, None)
        return Table([distinct]), self._column(found.indices.cast(pa.int32()), stream)

    def _column(self, values: pa.Array, stream: Stream) -> Column:
        kind = _type_of(values.type)
        if kind is TypeId.STRING:
            return Column(kind, values, None)
        return Column(kind, values, Buffer(self._device.place(_bytes_of(values), stream.address)))


@contextmanager
def stand_in(device: Memory) -> Iterator[None]:
    """Let `import pylibcudf` and `import rmm` find the stand-in, which allocates on `device`."""
    before = {name: sys.modules.get(name) for name in CONTENTS}
    sys.modules.update(modules(device))
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


# Module -> what it has. Functions are those of `Functions`.
CONTENTS: dict[str, tuple[Any, ...]] = {
    "pylibcudf": (),
    "pylibcudf.column": (Column,),
    "pylibcudf.io": (),
    "pylibcudf.io.parquet": (ParquetReaderOptions, ParquetReaderOptionsBuilder, Functions.read_parquet),
    "pylibcudf.io.types": (SourceInfo, TableWithMetadata),
    "pylibcudf.table": (Table,),
    "pylibcudf.transform": (Functions.encode,),
    "pylibcudf.types": (DataType, TypeId),
    "pylibcudf.unary": (Functions.is_valid,),
    "rmm": (),
    "rmm.mr": (
        CudaAsyncMemoryResource, CudaMemoryResource, Functions.get_per_device_resource, Functions.set_per_device_resource,
    ),
    "rmm.pylibrmm": (),
    "rmm.pylibrmm.stream": (Stream,),
}  # fmt: skip


def modules(device: Memory) -> dict[str, types.ModuleType]:
    """Return the stand-in's modules by name."""
    functions, found = Functions(device), {}
    for name, members in CONTENTS.items():
        found[name] = types.ModuleType(name)
        for member in members:
            setattr(found[name], member.__name__, member if isinstance(member, type) else getattr(functions, member.__name__))
    return found


def _plain(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


_UNITS = {"s": "SECONDS", "ms": "MILLISECONDS", "us": "MICROSECONDS", "ns": "NANOSECONDS"}


def _type_of(kind: Any) -> TypeId:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TypeId.STRING
    if pa.types.is_boolean(kind):
        return TypeId.BOOL8
    if pa.types.is_date32(kind):
        return TypeId.TIMESTAMP_DAYS
    if pa.types.is_timestamp(kind):
        return TypeId[f"TIMESTAMP_{_UNITS[kind.unit]}"]
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return TypeId[f"DURATION_{_UNITS[kind.unit]}"]
    return TypeId[np.dtype(kind.to_pandas_dtype()).name.upper()]


def _bytes_of(values: pa.Array) -> NDArray[np.uint8]:
    """The memory of a column: rubbish beneath nulls, and some rows of rubbish after the last."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width = values.type.bit_width // 8
    raw = np.full((len(values) + 3, width), POISON, np.uint8)
    if len(values):
        known = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width :][: len(values) * width].reshape(-1, width)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        raw[: len(values)][valid] = known[valid]
    return raw.ravel()
