"""Arrow's values as matrices: against pandas, with nulls over rubbish, slices and all types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns.layout import Matrix, MatrixColumn, MatrixLayout
from datapipe.columns.values import values_of
from datapipe.containers.tables.types import column_of
from datapipe.errors import DecodeError, OptionError
from datapipe.index.tables import TableFile, TableGroup
from datapipe.kinds.tables.arrow import BLOCK, pack

GROUP = TableGroup(TableFile("t.parquet", "parquet", 1, 1, 1), 3, 100)


def layout_for(kinds: dict[str, pa.DataType], dtype: str) -> MatrixLayout:
    features = tuple(MatrixColumn(column_of(name, kind), column_of(name, kind).dtype) for name, kind in kinds.items())
    return MatrixLayout((Matrix("x", features, dtype),), None)


def packed(arrays: dict[str, pa.Array], dtype: str, start: int = 0, stop: int | None = None) -> np.ndarray:
    length = len(next(iter(arrays.values())))
    stop = length if stop is None else stop
    out = np.full((stop - start + 5, len(arrays)), 123, dtype)
    layout = layout_for({name: array.type for name, array in arrays.items()}, dtype)
    pack(arrays, layout, rows=range(start, stop), out=[out], place=2, group=GROUP)
    assert (out[:2] == np.array(123, dtype)).all()
    assert (out[stop - start + 2 :] == np.array(123, dtype)).all()
    return out[2 : stop - start + 2]


def poisoned(values: np.ndarray, valid: np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array with rubbish beneath its nulls."""
    raw = values.copy()
    raw[~valid] = 99
    bits = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(kind, len(raw), [pa.py_buffer(bits.tobytes()), pa.py_buffer(raw.tobytes())])


@settings(max_examples=50)
@given(num=st.integers(1, 300), offset=st.integers(0, 20), data=st.data())
def test_nulls_are_nan_whatever_lies_beneath(num: int, offset: int, data: st.DataObject) -> None:
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=num + offset, max_size=num + offset)))
    for kind, dtype in ((pa.float32(), np.float32), (pa.int16(), np.int16), (pa.float64(), np.float64)):
        values = np.arange(num + offset).astype(dtype)
        array = poisoned(values, valid, kind).slice(offset)
        expected = np.where(valid, values.astype(np.float32), np.nan)[offset:]
        np.testing.assert_array_equal(packed({"a": array}, "float32")[:, 0], expected)


@settings(max_examples=30)
@given(start=st.integers(0, 3 * BLOCK), length=st.integers(0, 2 * BLOCK))
def test_any_rows_of_a_group(start: int, length: int) -> None:
    num = 4 * BLOCK
    stop = min(num, start + length)
    arrays = {"a": pa.array(np.arange(num)), "b": pa.array(np.arange(num, dtype=np.int32) * 2)}
    out = packed(arrays, "int64", min(start, stop), stop)
    np.testing.assert_array_equal(out, np.stack([np.arange(num), np.arange(num) * 2], 1)[min(start, stop) : stop])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([True, False, True, True]).slice(1), [0, 1, 1]),
        (pa.array([1, 2, 3], pa.uint8()), [1, 2, 3]),
        (pa.array([1, 65535], pa.uint16()), [1, 65535]),
        (pa.array([1, 2**32 - 1], pa.uint32()), [1, 2**32 - 1]),
        (pa.array([1, 2**63 - 1], pa.uint64()), [1, 2**63 - 1]),
        (pa.array([1, 2], pa.date32()), [1, 2]),
        (pa.array([86_400_000], pa.date64()), [86_400_000]),
        (pa.array([5], pa.timestamp("us", "UTC")), [5]),
        (pa.array([5], pa.time32("ms")), [5]),
        (pa.array([7, 8, 7]).dictionary_encode(), [7, 8, 7]),
        (pa.array([], pa.int8()), []),
    ],
)
def test_types_keep_their_values(array: pa.Array, expected: list[int]) -> None:
    assert packed({"a": array}, "int64")[:, 0].tolist() == expected


def test_nulls_among_integers_name_column_file_and_count() -> None:
    with pytest.raises(OptionError, match=r"t\.parquet: column 'a' has 2 nulls in row group 3, and int32 has no value"):
        packed({"a": pa.array([1, None, None], pa.int32())}, "int32")
    with pytest.raises(OptionError, match=r"t\.parquet: column 'b' has 1 null in row group 3, and bool"):
        packed({"b": pa.array([True, None])}, "bool")


def test_values_beyond_a_dtype_are_refused() -> None:
    with pytest.raises(DecodeError, match="beyond int64"):
        packed({"a": pa.array([1, 2**63], pa.uint64())}, "int64")
    with pytest.raises(OptionError, match="holds -1 to 300, which uint8 does not"):
        packed({"a": pa.array([-1, 300])}, "uint8")
    assert packed({"a": pa.array([0, 255])}, "uint8")[:, 0].tolist() == [0, 255]


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 10**3), ("us", 1)])
def test_times_come_in_the_unit_of_the_schema(unit: str, factor: int) -> None:
    column = column_of("t", pa.timestamp("us"))
    values = values_of(pa.array([3, None, -2], pa.timestamp(unit)), column)
    assert values.data[[0, 2]].tolist() == [3 * factor, -2 * factor]
    if unit == "s":
        with pytest.raises(DecodeError, match="beyond int64 in us"):
            values_of(pa.array([2**60], pa.timestamp("s")), column)


def test_against_pandas(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"f{j}": rng.random(20_000).astype(np.float32) for j in range(5)}
    columns |= {f"n{j}": pa.array(rng.random(20_000).astype(np.float32), mask=rng.random(20_000) < 0.3) for j in range(5)}
    table = pa.table(columns)
    arrays = {name: table.column(name).chunk(0) for name in table.column_names}
    np.testing.assert_array_equal(packed(arrays, "float32"), table.to_pandas().to_numpy(np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "shown"),
    [
        (
            pa.array([1.0, None, 1e300]),
            "float32",
            r"'a' has 1e\+300 in row 2 of it, which becomes infinite in float32; ask for a wider",
        ),
        (
            pa.array([1.0, -70000.0], pa.float32()),
            "float16",
            "'a' has -70000.0 in row 1 of it, which becomes infinite in float16",
        ),
        (pa.array([70000, 1]), "float16", "'a' has 70000 in row 0 of it, which becomes infinite in float16"),
    ],
)
def test_numbers_that_become_infinite_are_refused(values: pa.Array, dtype: str, shown: str) -> None:
    with pytest.raises(OptionError, match=r"t\.parquet.*row group 3.*" + shown):
        packed({"a": values}, dtype)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_infinite_values_and_rubbish_beneath_nulls_are_no_overflow() -> None:
    array = poisoned(np.array([1e300, np.inf, 1.5]), np.array([False, True, True]), pa.float64())
    raw = pa.Array.from_buffers(array.type, 3, [array.buffers()[0], pa.py_buffer(np.array([1e300, np.inf, 1.5]).tobytes())])
    np.testing.assert_array_equal(packed({"a": raw}, "float32")[:, 0], np.array([np.nan, np.inf, 1.5], np.float32))
