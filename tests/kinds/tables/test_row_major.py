"""Row-major files: any row is as near as any other, so that they are shuffled in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from table_values import table_of

import datapipe as dp
from converters.tables.conversion import convert_table
from converters.tables.options import TableConversion
from datapipe.errors import FormatError, IntegrityError, OptionError, StateError
from datapipe.order.row_order import ShuffledRows

NUM = 1000
GROUPS = {"dense": ["I*"], "ids": ["row", "C*"]}


def write_rows(tmp_path: Path, num: int = NUM) -> Path:
    pq.write_table(table_of(np.arange(num)), tmp_path / "t.parquet", row_group_size=90)
    convert_table(TableConversion(tmp_path / "t.parquet", tmp_path / "rows", to="hdf5", overwrite=True))
    return tmp_path / "rows" / "rows.h5"


def batches(source: Path, size: int = 64, **options: Any) -> list[Any]:
    arguments = {"columns": GROUPS, "label": "label", "seed": 3, "device": "cpu", "num_workers": 2} | options
    return list(
        dp.TableLoader(source, size, options.pop("shuffle", True), **{k: v for k, v in arguments.items() if k != "shuffle"})
    )


def check_values(x: dict[str, torch.Tensor], y: torch.Tensor) -> np.ndarray:
    """That a batch is what `table_of` says of its rows; those rows."""
    rows = x["ids"][:, 0].numpy()
    table = table_of(rows.astype(np.int64))
    for name, columns in (("dense", ["I0", "I1", "I2"]), ("ids", ["row", "C0", "C1"])):
        expected = np.stack([table[column].to_numpy() for column in columns], 1)
        np.testing.assert_array_equal(x[name].numpy(), expected)
    np.testing.assert_array_equal(y.numpy(), table["label"].to_numpy())
    return rows


@pytest.mark.parametrize("num_workers", [0, 3])
def test_every_row_once_in_an_order_of_its_own(tmp_path: Path, num_workers: int) -> None:
    found = batches(write_rows(tmp_path), num_workers=num_workers)
    rows = np.concatenate([check_values(x, y) for x, y in found])
    expected = ShuffledRows(NUM, 3)(0, np.arange(NUM))
    np.testing.assert_array_equal(rows, expected)
    assert found[0][0]["ids"].dtype == torch.int16  # the smallest that holds them
    assert found[0][0]["dense"].is_contiguous()


def test_in_stored_order(tmp_path: Path) -> None:
    rows = np.concatenate([check_values(x, y) for x, y in batches(write_rows(tmp_path), shuffle=False)])
    np.testing.assert_array_equal(rows, np.arange(NUM))


LAYOUTS: dict[str, dict[str, Any]] = {
    "columns of one dataset in another order": {"columns": ["C1", "row"]},
    "columns of several datasets": {"columns": ["row", "I1"], "dtypes": "float64"},
    "a dtype of one's own": {"columns": ["I*"], "dtypes": torch.float64},
    "operations": {"columns": ["I*", "C0"], "transform": dp.Columns({"I*": dp.Columns.Log1p(), "C*": dp.Columns.HashBucket(7)})},
    "an indicator": {"columns": ["I*"], "transform": dp.Columns({"I*": dp.Columns.FillMissing(0.0, indicator=True)})},
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_values_are_those_of_parquet(tmp_path: Path, case: str) -> None:
    source = write_rows(tmp_path)
    options = {"dtypes": None, **LAYOUTS[case], "shuffle": False}
    if case == "operations":
        options["dtypes"] = "float32"
    for (x, y), (expected, label) in zip(batches(source, **options), batches(tmp_path / "t.parquet", **options), strict=True):
        assert torch.equal(x, expected.to(x.dtype))
        assert torch.equal(y, label)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_the_rows(tmp_path: Path, world_size: int) -> None:
    source = write_rows(tmp_path)
    parts = [batches(source, 48 // world_size, ranks=(rank, world_size)) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    steps = [np.concatenate([check_values(*part[step]) for part in parts]) for step in range(len(parts[0]))]
    one = [check_values(x, y) for x, y in batches(source, 48)]
    for step, expected in zip(steps[:-1], one[:-1], strict=True):
        np.testing.assert_array_equal(step, expected)
    assert set(np.concatenate(steps).tolist()) == set(range(NUM))


def test_a_state_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    source = write_rows(tmp_path)
    options = {"columns": GROUPS, "label": "label", "seed": 3, "device": "cpu"}
    first = dp.TableLoader(source, 64, True, **options)
    iterator = iter(first)
    seen = [next(iterator) for _ in range(4)]
    state = json.loads(json.dumps(first.state_dict()))
    rest = []
    for rank in range(2):
        loader = dp.TableLoader(source, 32, True, **options, ranks=(rank, 2))
        loader.load_state_dict(state)
        rest += list(loader)
    rows = np.concatenate([check_values(x, y) for x, y in [*seen, *rest]])
    assert sorted(rows) == list(range(NUM))
    with pytest.raises(StateError):
        dp.TableLoader(tmp_path / "t.parquet", 64, True, **options).load_state_dict(state)


def test_fit_and_explain_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path)
    recipe = dp.Columns({"I0": dp.Columns.Normalize(), "C*": dp.Columns.Categorify()})
    fitted, expected = recipe.fit(source), recipe.fit(tmp_path / "t.parquet")
    assert fitted.describe() == expected.describe()
    print(dp.explain(dp.TableLoader(source, 64, True, columns=["I*"], device="cpu")))
    text = capsys.readouterr().out
    assert "shuffled in full" in text
    assert "rows mapped" in text


def test_nulls_are_nan_and_integer_nulls_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1.5, None]), "n": pa.array([1, None])}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="column 'n' has nulls, and int8"):
        convert_table(TableConversion(tmp_path / "t.parquet", tmp_path / "rows", to="hdf5"))
    assert not (tmp_path / "rows").exists()
    convert_table(TableConversion(tmp_path / "t.parquet", tmp_path / "rows", to="hdf5", schema={"n": "none"}))
    (x,) = dp.TableLoader(tmp_path / "rows", 2, device="cpu")
    assert x[:, 0].tolist()[0] == 1.5
    assert np.isnan(x[1, 0])


def test_strings_are_refused_with_the_remedy(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "s": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match=r'column \'s\' is string; leave it out with --schema {"s": "none"}'):
        convert_table(TableConversion(tmp_path / "t.parquet", tmp_path / "rows", to="hdf5"))


DAMAGE = {
    "truncated": lambda data: data[:-1000],
    "nothing": lambda data: b"",
    "another file": lambda data: b"PAR1" + data[4:],
    "other attributes": lambda data: data.replace(b"datapipe_table", b"datapipe_other"),
    "other columns": lambda data: data.replace(b'"I2"', b'"I2 '),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    source = write_rows(tmp_path)
    source.write_bytes(DAMAGE[damage](source.read_bytes()))
    with pytest.raises(FormatError, match=r"rows\.h5: (not an HDF5 file|truncated)"):
        dp.TableLoader(source, 64)


def test_a_file_that_was_written_again_is_refused(tmp_path: Path) -> None:
    loader = dp.TableLoader(write_rows(tmp_path), 64, device="cpu")
    write_rows(tmp_path, 500)
    with pytest.raises(IntegrityError, match="was changed since the table was opened"):
        next(iter(loader))


def test_it_is_a_table_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a table of its own"):
        dp.TableLoader([write_rows(tmp_path), tmp_path / "t.parquet"], 64)
