"""Columns that folders name: `label=0/x.parquet`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import datapipe as dp
from datapipe.columns.layout import layout_of
from datapipe.containers.tables.files import null_counts, open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.errors import FormatError, OptionError
from datapipe.kinds.tables.choice import problem_for_cudf


def write(root: Path, folder: str, values: list[float], suffix: str = ".parquet") -> Path:
    path = root / folder / f"x{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": pa.array(values, pa.float32())})
    if suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def read(source: object, names: list[str]) -> dict[str, list[object]]:
    index = open_table(source)  # type: ignore[arg-type]
    reader = GroupReader(names)
    found = [reader.read(index.group(number)) for number in range(index.num_groups)]
    return {name: [value for one in found for value in one[name].to_pylist()] for name in names}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_folders_are_columns(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, "label=0/day=2024-01-01", [1, 2, 3], suffix)
    write(tmp_path, "label=300/day=a%2Fb", [4], suffix)
    write(tmp_path, "label=__HIVE_DEFAULT_PARTITION__/day=x", [5], suffix)
    index = open_table(tmp_path)
    assert [(column.name, column.type) for column in index.columns] == [("x", "float"), ("label", "int16"), ("day", "string")]
    assert read(tmp_path, ["label", "x", "day"]) == {
        "label": [0, 0, 0, 300, None],
        "x": [1, 2, 3, 4, 5],
        "day": [*["2024-01-01"] * 3, "a/b", "x"],
    }
    assert read(tmp_path, ["label"]) == {"label": [0, 0, 0, 300, None]}
    assert [null_counts(file)["label"] for file in index.files] == [0, 0, 1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["-128", "127"], "int8"), (["01", "2"], "string"), (["9" * 18, "0"], "int64"), (["9" * 30, "1"], "string")],
)
def test_whole_numbers_are_of_the_smallest_type(tmp_path: Path, values: list[str], kind: str) -> None:
    for value in values:
        write(tmp_path, f"k={value}", [1])
    assert open_table(tmp_path).column("k").type == kind
    assert sorted(map(str, read(tmp_path, ["k"])["k"])) == sorted(values)


def test_only_folders_below_the_source_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "run=3"
    paths = [write(root, "h/label=0", [1]), write(root, "h/label=1", [2])]
    sources = [root / "h", f"{root}/h/*/x.parquet", f"{root}/h/label=*/x.parquet", paths, [path.parent for path in paths]]
    for source in sources:
        assert [column.name for column in open_table(source).columns] == ["x", "label"]
    monkeypatch.chdir(root / "h")
    for source in [".", "*/x.parquet", "./label=*/x.parquet", [os.path.relpath(path) for path in paths]]:
        assert read(source, ["label"]) == {"label": [0, 1]}
    for source in [paths[0], paths[0].parent, f"{paths[0].parent}/*.parquet", paths[:1]]:
        with pytest.raises(OptionError, match=r"no column 'label' .*folders name it: open the one above label="):
            open_table(source).column("label")


def test_a_column_of_the_file_stays(tmp_path: Path) -> None:
    write(tmp_path, "x=7", [1, 2])
    assert read(tmp_path, ["x"]) == {"x": [1, 2]}


def test_a_file_beside_the_folders_lacks_the_column(tmp_path: Path) -> None:
    write(tmp_path, "label=0", [1])
    write(tmp_path, "", [2])
    with pytest.raises(FormatError, match=r"x\.parquet: lacks the column label"):
        dp.Table(tmp_path, label="label")


def test_they_are_labels_and_features(tmp_path: Path) -> None:
    write(tmp_path, "label=0", [1, 2])
    write(tmp_path, "label=1", [3])
    loader = dp.DataLoader(dp.Table(tmp_path, label="label"), 3, device="cpu")
    ((x, y),) = loader
    assert (x.tolist(), y.tolist()) == ([[1], [2], [3]], [0, 0, 1])
    ((x,),) = [[batch] for batch in dp.DataLoader(dp.Table(tmp_path), 3, device="cpu")]
    assert x.dtype == torch.float32
    assert np.array_equal(x, [[1, 0], [2, 0], [3, 1]])


def test_moving_a_file_makes_another_table(tmp_path: Path) -> None:
    path = write(tmp_path, "label=0", [1])
    before = open_table(tmp_path).fingerprint
    path.parent.rename(tmp_path / "label=1")
    assert open_table(tmp_path).fingerprint != before


def test_cudf_does_not_read_them(tmp_path: Path) -> None:
    write(tmp_path, "label=0", [1])
    index = open_table(tmp_path)
    layout = layout_of(index, columns=None, label="label", dtypes=None, chains_of=lambda column: (), lists=None)
    assert "'label' is in the names of folders" in str(problem_for_cudf(index, layout))
