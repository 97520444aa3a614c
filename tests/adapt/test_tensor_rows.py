"""`from_torch` over `TensorDataset`: torch's batches, gathered whole."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset, random_split

import datapipe as dp
from datapipe.adapt.number_rows import NumberRows, rows_of

NUM = 103
X = torch.arange(NUM * 6, dtype=torch.float32).view(NUM, 3, 2)
Y = torch.arange(NUM)
DATA = TensorDataset(X, Y)


def take(data: Any = DATA, **options: Any) -> tuple[DataLoader[Any], Any]:
    loader = DataLoader(data, **{"batch_size": 10, **options})
    return loader, dp.from_torch(loader, device="cpu")


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other) is list
        for mine, yours in zip(one, other, strict=True):
            assert torch.equal(mine, yours)
            assert (mine.dtype, mine.stride()) == (yours.dtype, yours.stride())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"num_workers": 2, "persistent_workers": True, "timeout": 5},
        {"sampler": SequentialSampler(DATA)},
        {"sampler": [5, 3, 5, 102, 0]},
        {"batch_size": 1, "batch_sampler": [[3, 2], [1], [], [7, 7, 7]]},
        {"batch_size": 1, "batch_sampler": BatchSampler(SequentialSampler(DATA), 7, True)},
    ],
    ids=["plain", "drop_last", "workers", "sampler", "list", "lists", "batch_sampler"],
)
def test_batches_are_torchs(options: dict[str, Any]) -> None:
    theirs, ours = take(**options)
    expected = []
    if options.get("batch_sampler") == [[3, 2], [1], [], [7, 7, 7]]:  # torch collates no empty batch
        options = {**options, "batch_sampler": [[3, 2], [1], [7, 7, 7]]}
        theirs, ours = take(**options)
    expected = list(theirs)
    assert len(ours) == len(expected)
    assert_same(ours, expected)
    assert_same(ours, expected)


@settings(max_examples=30)
@given(st.lists(st.integers(-NUM, NUM - 1), min_size=1, max_size=60), st.data())
def test_subsets_of_subsets(indices: list[int], data: st.DataObject) -> None:
    inner = Subset(DATA, indices)
    outer = Subset(inner, data.draw(st.lists(st.integers(0, len(indices) - 1), min_size=1, max_size=30)))
    for subset in (inner, outer):
        theirs, ours = take(subset, batch_size=7)
        assert_same(ours, list(theirs))


def test_random_split_and_one_tensor() -> None:
    train, held_out = random_split(TensorDataset(X), [0.8, 0.2], generator=torch.Generator().manual_seed(3))
    for part in (train, held_out):
        theirs, ours = take(part)
        assert "gathers whole batches" in ours.origin
        assert_same(ours, list(theirs))


@pytest.mark.parametrize("num", [NUM, 70_000])
def test_a_shuffle_gives_each_row_once_and_resumes(num: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(num)), batch_size=num // 10, shuffle=True)
    ours = dp.from_torch(loader, device="cpu", seed=4)
    iterator, rows = iter(ours), []
    for _ in range(4):
        rows += next(iterator)[0].tolist()
    state = json.loads(json.dumps(ours.state_dict()))
    again = pickle.loads(pickle.dumps(dp.from_torch(loader, device="cpu", seed=4)))
    again.load_state_dict(state)
    for (batch,) in again:
        rows += batch.tolist()
    assert sorted(rows) == list(range(num)) != rows
    second = [row for (batch,) in ours for row in batch.tolist()]
    assert sorted(second) == list(range(num))
    assert second != rows


def test_ranks_share_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataLoader(DATA, batch_size=10, shuffle=True)
        ours = dp.from_torch(loader, device="cpu", seed=1, share_among_ranks=True)
        batches = list(ours)
        assert len(batches) == len(ours) == 6
        rows += [row for _, y in batches for row in y.tolist()]
    assert sorted(set(rows)) == list(range(NUM))
    assert len(rows) == NUM + 1


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + 1, y


@pytest.mark.parametrize(
    "data",
    [Noisy(X, Y), Subset(DATA, [[1], [2]]), Subset(DATA, [500]), TensorDataset(X.to_sparse())],
    ids=["subclass", "lists", "out of range", "sparse"],
)
def test_what_does_more_is_left_to_torch(data: Any) -> None:
    assert rows_of(data) is None


def test_a_subclass_and_a_collate_fn_keep_their_code() -> None:
    for data, options in ((Noisy(X, Y), {}), (DATA, {"collate_fn": lambda rows: len(rows)})):
        theirs, ours = take(data, **options)
        assert "gathered" not in ours.origin
        first = next(iter(ours))
        assert first == 10 if options else torch.equal(first[0], next(iter(theirs))[0])


def test_attributes_and_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    _, ours = take(num_workers=2, shuffle=True)
    assert ours.num_workers == 2
    ours.num_workers = 4
    assert sum(len(y) for _, y in ours) == NUM
    with pytest.raises(dp.errors.OptionError, match="collate_fn cannot be set"):
        ours.collate_fn = len
    print(dp.explain(ours))
    out = capsys.readouterr().out
    assert "RandomSampler, replaced by a shuffle that resumes exactly" in out
    assert "103 rows of tensors in memory: (3, 2) float32, () int64" in out


def test_an_index_out_of_range_is_an_error() -> None:
    _, ours = take(sampler=[5, 500])
    with pytest.raises(IndexError):
        next(iter(ours))


def test_random_samplers_with_replacement_stay() -> None:
    _, ours = take(sampler=RandomSampler(DATA, replacement=True, num_samples=50))
    assert sum(len(y) for _, y in ours) == 50


TENSORS = {
    "contiguous": torch.arange(60.0).reshape(20, 3),
    "columns of a wider tensor": torch.arange(100).reshape(20, 5)[:, 1:4],
    "transposed": torch.arange(60.0).reshape(3, 20).T,
    "bfloat16": torch.arange(60.0).reshape(20, 3).to(torch.bfloat16),
    "complex, conjugated": torch.complex(torch.arange(20.0), torch.ones(20)).conj(),
    "negated": torch.complex(torch.zeros(20), torch.arange(20.0)).conj().imag,
    "bool": torch.arange(20) % 3 == 0,
    "empty rows": torch.empty(20, 0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_gathers_are_those_of_torch(name: str) -> None:
    rows = np.array([7, 0, 19, 7, 3])
    (found,) = NumberRows([TENSORS[name]]).__getitems__(rows)
    expected = TENSORS[name].index_select(0, torch.from_numpy(rows))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    with pytest.raises(IndexError):
        NumberRows([TENSORS[name]]).__getitems__(np.array([20]))
