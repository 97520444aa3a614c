"""`from_torch` over Hugging Face datasets of lists of numbers, such as token ids: torch's batches, gathered whole."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import datapipe as dp
from datapipe.adapt.array_rows import is_same
from datapipe.adapt.number_rows import NumberRows, rows_of

datasets = pytest.importorskip("datasets")
NUM, L = 120, 12
IDS = np.random.default_rng(0).integers(0, 50_000, (NUM, L))


def tokens(path: Path | None = None, **changes: Any) -> Any:
    """A dataset of token ids; with a path, mapped in pieces of 30 rows."""
    columns: dict[str, Any] = {"input_ids": IDS.tolist(), "attention_mask": (IDS % 2).astype(np.int8).tolist()}
    columns |= {"weights": (IDS / 3).tolist(), "labels": IDS.tolist(), "row": list(range(NUM)), **changes}
    features = datasets.Dataset.from_dict(columns).features
    features["attention_mask"] = datasets.Sequence(datasets.Value("int8"))
    features["labels"] = datasets.Sequence(datasets.Value("int32"), length=L)
    made = datasets.Dataset.from_dict(columns, features=features)
    if path is None:
        return made
    made.save_to_disk(str(path), num_shards=4)
    return datasets.load_from_disk(str(path))


FORMS: dict[str, Any] = {
    "as it is": lambda data: data,
    "torch": lambda data: data.with_format("torch"),
    "some columns": lambda data: data.with_format("torch", columns=["labels", "input_ids"]),
    "selected": lambda data: data.select(list(range(100, 20, -3))).with_format("torch"),
    "a range": lambda data: data.select(range(40, 100)).with_format("torch"),
    "a subset": lambda data: Subset(data.select(range(20, 80)).with_format("torch"), [5, 1, 7, 59, 5] * 3),
}


@pytest.mark.daily(13)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("collator", ["default", "function", "object"])
def test_batches_are_torchs(tmp_path: Path, form: str, mapped: bool, collator: str) -> None:
    transformers = None if collator == "default" else pytest.importorskip("transformers")
    options: dict[str, Any] = {} if transformers is None else {"collate_fn": transformers.default_data_collator}
    if transformers is not None and collator == "object":
        options = {"collate_fn": transformers.DefaultDataCollator()}
    data = FORMS[form](tokens(tmp_path / "data" if mapped else None))
    ours = dp.from_torch(DataLoader(data, batch_size=7, num_workers=2, **options), device="cpu")
    assert isinstance(ours.read_dataset, NumberRows)
    for one, other in zip(ours, DataLoader(data, batch_size=7, **options), strict=True):
        assert list(one) == list(other)
        assert is_same(one, other)


@pytest.mark.parametrize("values", [list(range(NUM)), [row / 3 for row in range(NUM)], [row % 2 == 0 for row in range(NUM)]])
@pytest.mark.parametrize("form", [None, "torch"])
def test_a_label_becomes_the_labels_of_transformers(values: list[Any], form: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    data = datasets.Dataset.from_dict({"input_ids": IDS.tolist(), "label": values}).with_format(form)
    loader = DataLoader(data, batch_size=7, collate_fn=transformers.default_data_collator)
    ours = dp.from_torch(loader, device="cpu")
    assert isinstance(ours.read_dataset, NumberRows)
    for one, other in zip(ours, loader, strict=True):
        assert list(one) == list(other) == ["labels", "input_ids"]
        assert is_same(one, other)


def test_what_transformers_treats_apart_is_left() -> None:
    pytest.importorskip("transformers")
    for columns in ({"label_ids": IDS.tolist()}, {"label": IDS.tolist()}, {"label": [1] * NUM, "labels": IDS.tolist()}):
        assert rows_of(datasets.Dataset.from_dict(columns), "transformers") is None


@pytest.mark.parametrize("form", [None, "torch"])
def test_lists_that_differ_in_length_are_collated_by_torch(form: str | None) -> None:
    lists = [[1, 2]] * 8 + [[1, 2, 3]] * 8 + [[1], [1, 2]] * 4
    data = datasets.Dataset.from_dict({"input_ids": lists}).with_format(form)
    loader = DataLoader(data, batch_size=8)
    ours, theirs = iter(dp.from_torch(loader, device="cpu")), iter(loader)
    assert [is_same(next(ours), next(theirs)) for _ in range(2)] == [True, True]
    with pytest.raises(RuntimeError, match="equal size"):
        next(theirs)
    with pytest.raises(RuntimeError, match="equal size"):
        next(ours)


def test_empty_lists_are_collated_by_torch() -> None:
    data = datasets.Dataset.from_dict({"input_ids": [[1]] * 4 + [[]] * 4}).with_format("torch")
    loader = DataLoader(data, batch_size=4)
    assert all(map(is_same, dp.from_torch(loader, device="cpu"), loader))


def test_a_format_that_is_set_later_is_followed() -> None:
    data = tokens().with_format("torch")
    loader = DataLoader(data, batch_size=8)
    ours = pickle.loads(pickle.dumps(dp.from_torch(loader, device="cpu")))
    assert all(map(is_same, ours, loader))
    ours = dp.from_torch(loader, device="cpu")
    data.set_format("torch", columns=["input_ids"])
    for one, other in zip(ours, loader, strict=True):
        assert list(one) == list(other) == ["input_ids"]
        assert is_same(one, other)


def test_explain_names_lists(capsys: pytest.CaptureFixture[str]) -> None:
    print(dp.explain(dp.from_torch(DataLoader(tokens().with_format("torch"), batch_size=8), device="cpu")))
    assert "120 rows of columns: input_ids lists of int64" in capsys.readouterr().out


def test_another_default_dtype_is_left_to_transformers() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert rows_of(tokens(), "transformers") is None
    finally:
        torch.set_default_dtype(torch.float32)
