"""Decide whether cuDF can serve a table and a layout with the same results as Arrow on the CPU.

Refused is what cuDF reads differently, and what needs to look at values before anything is known to be right: the host never
waits for the device.
"""

from __future__ import annotations

import numpy as np

from datapipe.columns.chains import Chain
from datapipe.columns.layout import MatrixColumn, MatrixLayout
from datapipe.columns.operations import Bucketize, Cast, Categorify, FillMissing, HashBucket, Log1p, PadList
from datapipe.index.tables import ColumnKind, TableColumn, TableIndex

_TEXTS = ("string", "large_string", "dictionary<values=string")  # how the types of columns begin that cuDF reads as strings
_READ = ("bool", "int", "uint8", "uint16", "uint32", "float", "double", "timestamp", "time", "duration", "date32", "dictionary")


def problem_for_cudf(index: TableIndex, layout: MatrixLayout) -> str | None:
    """Return why cuDF cannot make these matrices of the table; None if it can."""
    for file in index.files:
        if file.container != "parquet":
            return f"{file.path} is no Parquet file"
        if file.etag is not None:
            return f"{file.path} lies in a store"
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
