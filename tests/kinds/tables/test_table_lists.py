"""Columns of lists: padded to features, or handed out as they are."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import datapipe as dp
from datapipe.errors import OptionError

NUM = 300
PadList = dp.Columns.PadList


def tags_of(row: int) -> list[int] | None:
    return None if row % 11 == 0 else [row * 10 + place for place in range(row % 4)]


def costs_of(row: int) -> list[float | None]:
    return [row / 2] * (row % 3) + ([None] if row % 7 == 0 else [])


@pytest.fixture(params=["list", "large_list", "fixed_size_list"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rows = range(NUM)
    kinds = {"list": pa.list_(pa.int64()), "large_list": pa.large_list(pa.int64()), "fixed_size_list": pa.list_(pa.int64(), 2)}
    tags = [tags_of(row) if request.param != "fixed_size_list" else None if row % 11 == 0 else [row, row] for row in rows]
    table = pa.table({"row": list(rows), "tags": pa.array(tags, kinds[request.param]), "costs": [costs_of(row) for row in rows]})
    try:
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    except pa.ArrowNotImplementedError as exc:  # an older pyarrow
        pytest.skip(f"pyarrow {pa.__version__} does not write this: {exc}")
    return tmp_path / "t.parquet"


def loader_of(source: Path, **options: Any) -> dp.TableLoader:
    arguments: dict[str, Any] = {"seed": 0, "device": "cpu", "num_workers": 2, "window_nbytes": 3000, "batch_size": 32}
    return dp.TableLoader(source, shuffle=True, **(arguments | options))


def expected_tags(source: Path) -> list[list[int]]:
    return [tags or [] for tags in pq.read_table(source)["tags"].to_pylist()]


@pytest.mark.parametrize("num_workers", [0, 3])
def test_jagged_holds_each_rows_lists(source: Path, num_workers: int) -> None:
    tags, seen = expected_tags(source), []
    columns = {"row": ["row"], "lists": ["tags"], "costs": ["costs"]}
    for batch in loader_of(source, columns=columns, lists="jagged", num_workers=num_workers):
        assert list(batch) == ["row", "lists", "costs"]
        rows, jagged = batch["row"][:, 0].tolist(), batch["lists"]
        assert jagged.keys == ("tags",)
        assert (jagged.values.dtype, jagged.lengths.dtype) == (torch.int64, torch.int64)
        ends = jagged.offsets.tolist()
        found = [jagged.values[begin:end].tolist() for begin, end in itertools.pairwise(ends)]
        assert found == [tags[row] for row in rows]
        values, lengths = batch["costs"]["costs"]
        expected = [value for row in rows for value in costs_of(row)]
        np.testing.assert_array_equal(values.numpy(), np.array([np.nan if v is None else v for v in expected], np.float64))
        assert lengths.tolist() == [len(costs_of(row)) for row in rows]
        seen += rows
    assert sorted(seen) == list(range(NUM))


def test_jagged_is_key_major(source: Path) -> None:
    tags = expected_tags(source)
    (batch,) = loader_of(
        source, columns={"row": ["row"], "x": ["costs", "tags"]}, lists="jagged", batch_size=NUM, dtypes={"x": "float64"}
    )
    rows, jagged = batch["row"][:, 0].tolist(), batch["x"]
    assert jagged.keys == ("costs", "tags")
    assert len(jagged) == NUM
    assert jagged.lengths.tolist() == [len(costs_of(row)) for row in rows] + [len(tags[row]) for row in rows]
    assert jagged["tags"][0].tolist() == [value for row in rows for value in tags[row]]
    with pytest.raises(KeyError):
        jagged["other"]


def test_to_kjt_hands_over_what_torchrec_wants(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRec itself needs a GPU build; its constructor's arguments are what counts."""
    module: Any = types.ModuleType("torchrec.sparse.jagged_tensor")
    module.KeyedJaggedTensor = lambda keys, values, *, lengths, offsets: (keys, values, lengths, offsets)
    for name in ("torchrec", "torchrec.sparse"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchrec.sparse.jagged_tensor", module)
    jagged = next(iter(loader_of(source, columns=["tags"], lists="jagged")))
    keys, values, lengths, offsets = jagged.to_kjt()
    assert keys == ["tags"]
    assert torch.equal(torch.cumsum(lengths, 0), offsets[1:])
    assert len(values) == int(offsets[-1])


def test_padded_lists_are_features(source: Path) -> None:
    tags = expected_tags(source)
    transform = dp.Columns({"tags": PadList(3, value=-1)})
    for batch in loader_of(source, columns={"row": ["row"], "x": ["tags"]}, transform=transform):
        rows = batch["row"][:, 0].tolist()
        assert batch["x"].tolist() == [(tags[row] + [-1] * 3)[:3] for row in rows]
        assert batch["x"].dtype == torch.int64


def test_operations_after_padding(source: Path, tmp_path: Path) -> None:
    recipe = dp.Columns({"costs": [PadList(2, value=0.5), dp.Columns.Clip(max=3)]})
    recipe.save(tmp_path / "recipe.json")
    (batch,) = loader_of(
        source, columns={"row": ["row"], "x": ["costs"]}, transform=dp.Columns.load(tmp_path / "recipe.json"), batch_size=NUM
    )
    padded = [(costs_of(int(row)) + [0.5] * 2)[:2] for row in batch["row"]]
    expected = [[np.nan if value is None else min(3, value) for value in row] for row in padded]
    np.testing.assert_array_equal(batch["x"].numpy(), np.array(expected))


def test_a_state_knows_its_lists(source: Path) -> None:
    jagged = loader_of(source, columns=["tags"], lists="jagged")
    padded = loader_of(source, columns=["tags"], transform=dp.Columns({"tags": PadList(2)}))
    with pytest.raises(dp.errors.StateError, match="was saved with"):
        padded.load_state_dict(jagged.state_dict())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lists": ({"columns": ["tags"]}, "lists='jagged', or pad them"),
    "lists beside numbers": ({"columns": ["row", "tags"], "lists": "jagged"}, "give lists a group of their own"),
    "padding of numbers": ({"columns": ["row"], "transform": dp.Columns({"row": PadList(2)})}, "PadList takes lists of numbers"),
    "ids of lists": ({"columns": ["tags"], "transform": dp.Columns({"tags": dp.Columns.HashBucket(9)})}, "cannot make ids"),
    "another form": ({"columns": ["tags"], "lists": "nested"}, "choose 'jagged'"),
    "a cache": ({"columns": ["tags"], "lists": "jagged", "cache": "disk"}, "rows of one size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(source: Path, case: str) -> None:
    options, words = REFUSED[case]
    with pytest.raises(OptionError, match=words):
        loader_of(source, **options)


def test_null_elements_among_integers_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tags": [[1, None], [2]]}), tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="column 'tags' has 1 null in row group 0"):
        next(iter(loader_of(tmp_path / "t.parquet", columns=["tags"], lists="jagged")))


def test_operations_that_need_values_do_not_follow_padding() -> None:
    with pytest.raises(OptionError, match="Normalize after PadList"):
        dp.Columns({"x": [PadList(2), dp.Columns.Normalize()]})
