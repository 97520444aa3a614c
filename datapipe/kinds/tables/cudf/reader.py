"""Read row groups of Parquet files on a stream of a device, as tensors over cuDF's memory.

libcudf allocates and frees in the order of the stream that it is given, so memory that is freed on the host while work on that
stream still reads it is not reused before that work. Nothing but that stream may touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from datapipe.errors import BackendError, DecodeError, IntegrityError, MissingDataError, OptionError, StorageError
from datapipe.index.tables import ColumnKind, TableColumn, TableFile, TableGroup
from datapipe.kernel.cuda_runtime import CudaDevice
from datapipe.kernel.device_runtime import Stream
from datapipe.kinds.tables.cudf.library import Library

# pylibcudf's name of a type -> torch's dtype of its memory, and the unit of times.
DTYPES: dict[str, tuple[torch.dtype, str]] = {
    "INT8": (torch.int8, ""), "INT16": (torch.int16, ""), "INT32": (torch.int32, ""), "INT64": (torch.int64, ""),
    "UINT8": (torch.uint8, ""), "UINT16": (torch.uint16, ""), "UINT32": (torch.uint32, ""),
    "FLOAT32": (torch.float32, ""), "FLOAT64": (torch.float64, ""), "BOOL8": (torch.uint8, ""),
    "TIMESTAMP_DAYS": (torch.int32, "d"), "TIMESTAMP_SECONDS": (torch.int64, "s"), "TIMESTAMP_MILLISECONDS": (torch.int64, "ms"),
    "TIMESTAMP_MICROSECONDS": (torch.int64, "us"), "TIMESTAMP_NANOSECONDS": (torch.int64, "ns"),
    "DURATION_SECONDS": (torch.int64, "s"), "DURATION_MILLISECONDS": (torch.int64, "ms"),
    "DURATION_MICROSECONDS": (torch.int64, "us"), "DURATION_NANOSECONDS": (torch.int64, "ns"),
}  # fmt: skip
_SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64}  # torch computes little with these
_DEVICE_FAILURES = ("CUDA error", "cudaError", "RMM failure")  # in the messages of RuntimeErrors
_DAMAGE = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, ArithmeticError, OSError)  # pylibcudf's, of a bad file


@dataclass(frozen=True, slots=True)
class DeviceValues:
    """The values of a column on a device. `data`: (n,), arbitrary where `valid`, (n,) bool, is False; None: all are valid."""

    data: torch.Tensor
    valid: torch.Tensor | None
    num_nulls: int  # known to the host
    texts: pa.Array | None = None  # of strings: their distinct values, to which `data` are indices


class CudaStream:
    """A stream of torch's in the form that other libraries take one: `__cuda_stream__`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


class CudfReader:
    """Reads some columns of row groups on a stream of its own. Do not share it between threads.

    `memory`: the RMM resource that tables are allocated with. `check`: raises if a file is not the one that was indexed.
    """

    def __init__(
        self,
        columns: Sequence[TableColumn],
        *,
        library: Library,
        runtime: CudaDevice,
        memory: Any,
        check: Callable[[TableFile], None],
    ) -> None:
        self.stream = runtime.new_stream()
        self._columns = list(columns)
        self._library = library
        self._runtime = runtime
        self._memory = memory
        self._check = check
        self._checked: set[str] = set()
        self._cudf_stream = library.stream(CudaStream(self.stream))

    def read(self, groups: Sequence[TableGroup]) -> dict[str, DeviceValues]:
        """Return the columns of row groups, one group after the other; the work is queued on `stream`.

        The groups of one file must follow each other. Waits until libcudf knows the sizes of what it decodes. Raises
        IntegrityError if a file has changed since it was indexed, DecodeError if it does not decode, BackendError for errors
        of the device, MissingDataError or StorageError if a file cannot be read.
        """
        options = self._options(groups)
        with self._runtime.under(self.stream):
            return self._read(options, groups)

    def _read(self, options: Any, groups: Sequence[TableGroup]) -> dict[str, DeviceValues]:
        try:
            found = self._library.read_parquet(options, self._cudf_stream, self._memory)
        except MemoryError as exc:
            raise BackendError(
                f"{groups[0]}: cuDF found no memory on {self._runtime.device} ({str(exc).strip():.120}); lower window_nbytes, or "
                "pass backend='tables_arrow'"
            ) from exc
        except _DAMAGE as exc:
            raise _problem(groups, exc) from exc
        table = found.tbl
        num_rows = sum(group.num_rows for group in groups)
        if table.num_rows() != num_rows:
            raise IntegrityError(f"{groups[0]}: {table.num_rows()} rows where {num_rows} were indexed; open the table again")
        by_name = dict(zip(found.column_names(), table.columns(), strict=True))
        return {column.name: self._values(by_name[column.name], column, groups[0]) for column in self._columns}

    def _options(self, groups: Sequence[TableGroup]) -> Any:
        paths: dict[str, list[int]] = {}
        for group in groups:
            self._check_once(group.file)
            paths.setdefault(group.file.path, []).append(group.number)
        try:
            source = self._library.source_info(list(paths))
        except FileNotFoundError as exc:
            raise MissingDataError(f"{groups[0].file.path}: no such file any more") from exc
        options = self._library.reader_options.builder(source).build()
        choose = getattr(options, "set_column_names", None) or options.set_columns  # its name before cuDF 26.10
        choose([column.name for column in self._columns])
        options.set_row_groups(list(paths.values()))
        return options

    def _check_once(self, file: TableFile) -> None:
        if file.path in self._checked:
            return
        try:
            self._check(file)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{file.path}: no such file any more") from exc
        except OSError as exc:
            raise StorageError(exc.errno, exc.strerror, file.path) from exc
        self._checked.add(file.path)

    def _values(self, column: Any, expected: TableColumn, group: TableGroup) -> DeviceValues:
        num_nulls, size, start = column.null_count(), column.size(), column.offset()
        valid = None
        if num_nulls:
            flags = self._library.is_valid(column, self._cudf_stream, self._memory)
            valid = self._adopted(flags, torch.uint8).view(torch.bool)
        if expected.kind is ColumnKind.TEXT:
            return self._encoded(column, valid, num_nulls)
        kind = column.type().id().name
        if kind not in DTYPES:
            raise OptionError(f"{group}: cuDF reads column {expected.name!r} as {kind}; pass backend='tables_arrow'")
        dtype, unit = DTYPES[kind]
        if unit != expected.unit:
            raise OptionError(
                f"{group}: cuDF reads column {expected.name!r} in {unit or 'no unit'}, the table has it in "
                f"{expected.unit or 'none'}; pass backend='tables_arrow'"
            )
        data = self._adopted(column, dtype)[start : start + size]
        return DeviceValues(data.to(_SIGNED.get(dtype, dtype)), valid, num_nulls)

    def _encoded(self, column: Any, valid: torch.Tensor | None, num_nulls: int) -> DeviceValues:
        """Strings as indices to their distinct values, which the host gets."""
        distinct, indices = self._library.encode(self._library.table([column]), self._cudf_stream, self._memory)
        (values,) = distinct.columns()
        texts = pa.array(values.to_arrow(None, self._cudf_stream))
        return DeviceValues(self._adopted(indices, torch.int32), valid, num_nulls, texts)

    def _adopted(self, column: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory of a column as a tensor that keeps it."""
        num = column.offset() + column.size()
        raw = self._runtime.adopt(column.data())
        return raw[: num * dtype.itemsize].view(dtype)


def _problem(groups: Sequence[TableGroup], error: Exception) -> Exception:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if any(sign in text for sign in _DEVICE_FAILURES):
        return BackendError(f"{groups[0]}: the device failed while cuDF read it ({text:.160}); pass backend='tables_arrow'")
    if isinstance(error, FileNotFoundError):
        return MissingDataError(f"{groups[0].file.path}: no such file any more")
    return DecodeError(f"{groups[0]}: does not decode ({text:.160}); get the file again, or pass on_error='skip' or 'replace'")
