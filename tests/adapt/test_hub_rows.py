"""`from_torch` over Hugging Face datasets of numbers: torch's batches, gathered whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import datapipe as dp
from datapipe.adapt.number_rows import rows_of

datasets = pytest.importorskip("datasets")
NUM = 260


def numbers(path: Path | None = None) -> Any:
    """A dataset of numbers of several types; with a path, mapped in pieces of 50 rows."""
    rows = np.arange(NUM)
    columns = {"a": rows, "half": rows / 2, "small": (rows % 100).astype(np.int8), "f": (rows * 1.5).astype(np.float32)}
    columns |= {"even": rows % 2 == 0, "u": (rows * 200).astype(np.uint16)}
    made = datasets.Dataset.from_dict(columns)
    made = made.cast_column("label", datasets.ClassLabel(3)) if "label" in columns else made
    if path is None:
        return made
    made.save_to_disk(str(path), max_shard_size="2KB")
    return datasets.load_from_disk(str(path))


def assert_same(ours: Any, theirs: Any) -> None:
    count = 0
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for name in other:
            assert one[name].dtype == other[name].dtype, name
            assert torch.equal(one[name], other[name])
        count += 1
    assert count > 1


FORMS: dict[str, Any] = {
    "as it is": lambda data: data,
    "torch": lambda data: data.with_format("torch"),
    "some columns": lambda data: data.with_format("torch", columns=["half", "a"]),
    "selected": lambda data: data.select(list(range(200, 40, -3))).with_format("torch"),
    "shuffled": lambda data: data.shuffle(seed=3).with_format("torch"),
    "a split": lambda data: data.train_test_split(0.3, seed=1)["train"],
    "a subset": lambda data: Subset(data.select(range(100, 200)), [5, -1, 7, 99, 5] * 3),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mapped", [False, True])
def test_batches_are_torchs(tmp_path: Path, form: str, mapped: bool) -> None:
    data = FORMS[form](numbers(tmp_path / "data" if mapped else None))
    loader = DataLoader(data, batch_size=7)
    ours = dp.from_torch(loader, device="cpu")
    assert "gathers whole batches" in ours.origin
    assert_same(ours, loader)


def test_a_shuffled_loader_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(numbers().with_format("torch"), batch_size=16, shuffle=True, num_workers=2)
    ours = dp.from_torch(loader, device="cpu", seed=4)
    whole = [batch["a"].tolist() for batch in ours]
    assert sorted(row for rows in whole for row in rows) == list(range(NUM))
    ours.set_epoch(0)
    iterator = iter(ours)
    assert [next(iterator)["a"].tolist() for _ in range(5)] == whole[:5]
    state = json.loads(json.dumps(ours.state_dict()))
    again = dp.from_torch(loader, device="cpu", seed=4)
    again.load_state_dict(state)
    assert [batch["a"].tolist() for batch in again] == whole[5:]
    print(dp.explain(again))
    assert "260 rows of columns: a int64, half float32" in capsys.readouterr().out


LEFT: dict[str, Any] = {
    "strings": lambda data: data.add_column("s", ["x"] * NUM),
    "nulls": lambda data: data.add_column("n", [None, *range(1, NUM)]),
    "lists of lists": lambda data: data.add_column("l", [[[1, 2]]] * NUM),
    "lists of bools": lambda data: data.add_column("l", [[True, False]] * NUM),
    "lists with nulls": lambda data: data.add_column("l", [[1, None]] * NUM),
    "numpy's format": lambda data: data.with_format("numpy"),
    "a transform": lambda data: data.with_transform(lambda batch: batch),
    "a dtype of one's own": lambda data: data.with_format("torch", dtype=torch.float16),
    "a stream": lambda data: data.to_iterable_dataset(),
}


@pytest.mark.parametrize("case", LEFT)
def test_the_rest_is_left_to_torch(case: str) -> None:
    assert rows_of(LEFT[case](numbers())) is None


def test_a_row_that_does_not_exist() -> None:
    rows = rows_of(numbers())
    assert rows is not None
    with pytest.raises(IndexError, match="of a dataset of 260"):
        rows.__getitems__([NUM])
    assert rows[3]["a"] == 3
