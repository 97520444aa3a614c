"""Choose which backend reads a table, and say why.

A backend that a user names is used or refused. With "auto" Arrow serves a CPU; for a GPU Arrow and cuDF are measured on the table
at hand, unless cuDF is ruled out: by what it reads differently, and by what needs a look at values before anything is known to be
right, as the host never waits for the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from datapipe.columns.chains import Chain
from datapipe.columns.layout import MatrixColumn, MatrixLayout
from datapipe.columns.operations import Bucketize, Cast, Categorify, FillMissing, HashBucket, Log1p, PadList
from datapipe.errors import DependencyError, OptionError
from datapipe.index.tables import ColumnKind, TableColumn, TableIndex
from datapipe.kernel.calibration import ranked
from datapipe.kinds.tables.cudf.library import VERSIONS, library

TableBackend = Literal["auto", "tables_arrow", "tables_cudf"]
TABLE_BACKENDS: tuple[TableBackend, ...] = ("auto", "tables_arrow", "tables_cudf")
MEASURED: tuple[TableBackend, ...] = ("tables_arrow", "tables_cudf")
_CUDF_LEAD = 1.3  # how much faster cuDF must be: it takes part of the GPU from the network that trains there
PACKAGES = ("gpu-datapipe", "torch", "pyarrow", *VERSIONS)  # whose versions decide the rates
_TEXTS = ("string", "large_string", "dictionary<values=string")  # how the types of columns begin that cuDF reads as strings
_READ = ("bool", "int", "uint8", "uint16", "uint32", "float", "double", "timestamp", "time", "duration", "date32", "dictionary")


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The chosen backend. `uses_cudf`: tables_cudf, else tables_arrow."""

    uses_cudf: bool
    reason: str

    @property
    def backend(self) -> str:
        return "tables_cudf" if self.uses_cudf else "tables_arrow"


def choose_table_backend(
    backend: TableBackend,
    device: torch.device,
    *,
    index: TableIndex,
    layout: MatrixLayout,
    has_cache: bool,
    rates: Callable[[], list[float]],
) -> TableChoice:
    """Decide. `rates`: measures rows/s of each of MEASURED; called only if the choice needs it.

    Warns if a GPU would be served by cuDF and cuDF is not installed. Raises OptionError or DependencyError if cuDF is requested
    and cannot serve the loader.
    """
    if backend == "tables_arrow":
        return TableChoice(False, "asked for")
    problem = "a cache keeps rows in host memory" if has_cache else problem_for_cudf(index, layout)
    if backend == "tables_cudf":
        if device.type != "cuda":
            raise OptionError(
                f"backend='tables_cudf' needs a GPU, and device is {device}; pass device='cuda', or leave out backend"
            )
        if problem is not None:
            raise OptionError(f"backend='tables_cudf': {problem}; pass backend='tables_arrow', which reads it")
        library()
        return TableChoice(True, "asked for")
    if device.type != "cuda":
        return TableChoice(False, "cuDF needs an NVIDIA GPU")
    if problem is not None:
        return TableChoice(False, f"cuDF cannot: {problem}")
    try:
        library()
    except DependencyError as exc:
        warnings.warn(f"tables are read on the CPU: {exc}", RuntimeWarning, stacklevel=5)
        return TableChoice(False, f"the GPU would need cuDF: {exc}")
    found = dict(zip(MEASURED, rates(), strict=True))
    reason = f"measured here, rows/s: {ranked(found)}; cuDF must be {_CUDF_LEAD:g} times as fast, as it takes the network's GPU"
    return TableChoice(found["tables_cudf"] > _CUDF_LEAD * found["tables_arrow"], reason)


def problem_for_cudf(index: TableIndex, layout: MatrixLayout) -> str | None:
    """Return why cuDF cannot make these matrices of the table; None if it can."""
    for file in index.files:
        if file.container != "parquet":
            return f"{file.path} is no Parquet file"
        if file.etag is not None:
            return f"{file.path} lies in a store"
        if file.constants:
            return f"the column {file.constants[0][0]!r} is in the names of folders"
    if layout.lists:
        return f"the group {layout.lists[0].name!r} is of lists"
    for matrix in layout.matrices:
        for feature in matrix.features:
            problem = _column_problem(feature.column) or _feature_problem(feature, matrix.dtype)
            if problem is not None:
                return f"column {feature.column.name!r} {problem}"
    return None


def _column_problem(column: TableColumn) -> str | None:
    if "." in column.name:
        return "may be a field of a struct"
    kind = column.type
    if column.kind is ColumnKind.TEXT:
        return None if kind.startswith(_TEXTS) else f"is {kind}"
    if column.kind is not ColumnKind.NUMBER or kind == "halffloat" or not kind.startswith(_READ):
        return f"is {kind}"
    return None


def _feature_problem(feature: MatrixColumn, dtype: str) -> str | None:
    if feature.chain is None:
        return _narrowing(feature.column.dtype, dtype)
    return None if feature.chain.indicator else _chain_problem(feature.chain, feature.column)


def _chain_problem(chain: Chain, column: TableColumn) -> str | None:
    operations = chain.operations
    if column.kind is ColumnKind.TEXT:  # operations are carried out on the host, once for each distinct text
        return None
    for place, operation in enumerate(operations):
        before = operations[:place]
        if isinstance(operation, PadList):
            return "is padded by PadList"
        if isinstance(operation, Cast) and not (place and isinstance(before[0], (Categorify, HashBucket))):
            problem = _narrowing(Chain(before, chain.fitted).dtype_of(column), operation.dtype)
            if problem is not None:
                return problem
        if isinstance(operation, Bucketize) and column.dtype.startswith("float"):
            filled = before and isinstance(before[0], FillMissing)
            if not filled or any(isinstance(one, Log1p) for one in before):
                return "may hold NaN where Bucketize refuses it; put FillMissing first, and no Log1p between them"
    return None


def _narrowing(stored: str, wanted: str) -> str | None:
    """Return why values of one dtype cannot become another without a look at them."""
    if np.dtype(wanted).kind not in "iu" or np.can_cast(stored, wanted):
        return None
    return f"is {stored}, of which not every value fits {wanted}"
