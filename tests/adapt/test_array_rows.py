"""`from_torch` over Datasets whose `__getitem__` only takes parts of arrays: torch's batches, gathered whole."""

from __future__ import annotations

import json
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import datapipe as dp
from datapipe.adapt.array_rows import ArrayRows, array_rows_of, is_same
from datapipe.formulas.evaluation import formula_of

L = 32
TOKENS = np.random.default_rng(0).integers(0, 50_000, 6_400, dtype=np.uint16)
MATRIX = np.random.default_rng(1).normal(size=(200, 6, 4))
LABELS = np.arange(200) % 7


class Arrays(Dataset[Any]):
    """What the Datasets of these tests hold."""

    transform: Any = None

    def __init__(self, data: Any = TOKENS, length: int = L) -> None:
        self.data = data
        self.length = length
        self.tokens = torch.from_numpy(TOKENS.astype(np.int64))
        self.matrix, self.labels = MATRIX, LABELS
        self.rows = torch.from_numpy(MATRIX)
        self.config = types.SimpleNamespace(length=length, sizes={"target": 4})
        self.parts = (torch.from_numpy(MATRIX.astype(np.float32)), torch.from_numpy(LABELS))

    def __len__(self) -> int:
        return 199


class Windows(Arrays):
    def __getitem__(self, i: int) -> Any:
        x = torch.from_numpy(self.data[i * self.length : (i + 1) * self.length].astype(np.int64))
        y = torch.from_numpy(self.data[i * self.length + 1 : (i + 1) * self.length + 1].astype(np.int64))
        return x, y


class OneByOne(Arrays):
    def __getitem__(self, idx: int) -> Any:
        """A window of which inputs and targets are slices."""
        if torch.is_tensor(idx):
            idx = idx.tolist()  # type: ignore[unreachable]
        chunk = self.data[idx : idx + self.config.length + 1].astype(dtype=np.int64)
        x, y = torch.tensor(chunk[:-1], dtype=torch.long), torch.as_tensor(chunk[1:])
        return dict(input_ids=x, labels=y.clone(), first=int(chunk[0]), index=idx)  # noqa: C408


class OfTensor(Arrays):
    def __getitem__(self, idx: int) -> Any:
        start = idx * L
        end = start + L
        buffer = self.tokens[start:end].int()
        return [buffer[: self.config.sizes["target"]], buffer[-1].float(), buffer[::2].to(torch.float64)]


class Rows(Arrays):
    def __getitem__(self, index: int) -> Any:
        row: Any = self.matrix[index]
        label = self.labels[index]
        if self.transform is not None:
            row = self.transform(row)
        return torch.from_numpy(row.astype(np.float32)).half() if self.length == 0 else row, label


class Parts(Arrays):
    def __getitem__(self, index: int) -> Any:
        return self.parts[0][index], self.parts[1][index].item(), float(self.labels[index]), self.matrix[index, 1:3, 0]


class Alone(Arrays):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index][0] if self.transform is None else self.transform(self.rows[index])


TAKEN = [Windows, OneByOne, OfTensor, Rows, Parts, Alone]


def take(data: Any, **options: Any) -> tuple[DataLoader[Any], Any]:
    loader = DataLoader(data, **{"batch_size": 16, **options})
    return loader, dp.from_torch(loader, device="cpu")


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert is_same(one, other)


@pytest.fixture
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on how busy the machine is."""
    monkeypatch.setattr("datapipe.adapt.array_rows.Trial.pays", True)


pytestmark = pytest.mark.usefixtures("always_pays")


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"sampler": [5, 3, 5, 198, 0]}, {"batch_sampler": [[7], [1, 7]]}])
def test_batches_are_torchs(kind: type[Arrays], options: dict[str, Any]) -> None:
    if "batch_sampler" in options:
        options = {**options, "batch_size": 1}
    theirs, ours = take(kind(), **options)
    assert isinstance(ours.read_dataset, ArrayRows), kind
    assert f"gathers whole batches from the arrays that {kind.__name__}.__getitem__ slices" in ours.origin
    assert_same(ours, theirs)
    assert ours.read_dataset.num_plain == 0


def test_a_mapped_file_is_gathered_without_workers(tmp_path: Path) -> None:
    TOKENS.tofile(tmp_path / "tokens.bin")
    data = Windows(np.memmap(tmp_path / "tokens.bin", np.uint16, "r"))
    _, ours = take(data, num_workers=2)
    assert_same(ours, DataLoader(data, batch_size=16))
    formula = formula_of(data)
    assert formula is not None
    assert len(formula.apart) == 1  # inputs and targets lie in the same pages
    spans = formula.apart[0].spans(np.array([0, 3]))
    assert [span.nbytes for span in spans] == [2 * L] * 2
    assert spans[1].start - spans[0].start == 3 * 2 * L


def test_a_subset_of_a_subset() -> None:
    inner = Subset(Windows(), [5, 198, 0, 7, 5])
    for data in (inner, Subset(inner, [4, 0, 2])):
        for options in ({}, {"sampler": [2, 0, 1]}):
            theirs, ours = take(data, batch_size=2, **options)
            assert isinstance(ours.read_dataset, ArrayRows)
            assert_same(ours, theirs)
            assert ours.read_dataset.num_plain == 0


def test_a_shuffle_is_that_of_the_datasets_own_code() -> None:
    loader = DataLoader(Windows(), batch_size=16, shuffle=True)
    ours = dp.from_torch(loader, device="cpu", seed=3)
    left = dp.from_torch(DataLoader(Windows(), batch_size=16, shuffle=True), device="cpu", seed=3, on_error="skip")
    assert not isinstance(left.read_dataset, ArrayRows)
    whole = list(left)
    assert_same(ours, whole)
    assert ours.state_dict() == left.state_dict()
    ours.set_epoch(0)
    iterator = iter(ours)
    for _ in range(5):
        next(iterator)
    state = json.loads(json.dumps(ours.state_dict()))
    again = pickle.loads(pickle.dumps(dp.from_torch(loader, device="cpu", seed=3)))
    again.load_state_dict(state)
    assert_same(again, whole[5:])


class Short(Windows):
    def __len__(self) -> int:
        return 201  # the last window has one target too few, and one does not exist at all


def test_what_does_not_lie_in_the_array_is_made_by_the_code() -> None:
    _, ours = take(Short(), sampler=[3, 199], batch_size=1)
    assert_same(ours, DataLoader(Short(), sampler=[3, 199], batch_size=1))
    assert ours.read_dataset.num_plain == 1
    _, ours = take(Short(), sampler=[3, 199], batch_size=2)
    with pytest.raises(RuntimeError, match="equal size"):
        next(iter(ours))
    _, ours = take(Short(), batch_sampler=[[-3, 5]], batch_size=1)
    assert_same(ours, DataLoader(Short(), batch_sampler=[[-3, 5]]))  # type: ignore[arg-type]
    assert ours.read_dataset.num_plain == 1


def test_changes_of_the_dataset_are_followed() -> None:
    data = Windows()
    _, ours = take(data)
    first = next(iter(ours))[0]
    data.data = TOKENS[::-1]
    data.length = 16
    assert_same(ours, DataLoader(data, batch_size=16))
    token = data.data[0]
    assert next(iter(ours))[0][0, 0] == token != first[0, 0]
    data.data = TOKENS.tolist()  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="astype"):
        next(iter(ours))


def test_a_transform_that_is_set_later_is_called() -> None:
    data = Rows()
    _, ours = take(data)
    next(iter(ours))
    data.transform = lambda row: row + 1
    assert_same(ours, DataLoader(data, batch_size=16))
    assert ours.read_dataset.num_plain == 13


def test_values_that_change_in_place_are_seen() -> None:
    data = Windows(TOKENS.copy())
    _, ours = take(data)
    list(ours)
    data.data += 1
    assert_same(ours, DataLoader(data, batch_size=16))


def test_a_sample_that_differs_ends_the_gathering() -> None:
    data = Windows()
    _, ours = take(data)
    rows = ours.read_dataset
    expected = list(DataLoader(data, batch_size=16))
    assert_same(ours, expected)
    wrong = Windows(TOKENS[1:])
    rows._formula = formula_of(wrong)
    rows._inner = wrong
    rows.num_batches = 63
    with pytest.warns(UserWarning, match=r"sample \d+ as gathered differs from what Windows.__getitem__ returns"):
        assert_same(ours, expected)
    assert_same(ours, expected)
    assert "all batches are made by Windows.__getitem__" in str(dp.explain(ours))


def test_explain_says_what_is_taken() -> None:
    _, ours = take(OneByOne(), num_workers=2)
    next(iter(ours))
    said = str(dp.explain(ours))
    assert "199 samples of parts of arrays, as OneByOne.__getitem__ takes them: (32,) int64, (32,) int64, () int64" in said
    assert "1 sample, all equal; 0 of 1 batch made by OneByOne.__getitem__" in said
    assert "us by OneByOne.__getitem__" in said


def test_what_does_not_pay_and_what_is_prepared_in_workers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = take(Windows(), num_workers=2, worker_init_fn=print)
    assert not isinstance(ours.read_dataset, ArrayRows)
    _, ours = take(Windows(), collate_fn=lambda samples: default_collate(samples))
    assert not isinstance(ours.read_dataset, ArrayRows)
    monkeypatch.setattr("datapipe.adapt.array_rows.MOST_NBYTES_WITH_WORKERS", 16 * 2 * 8 * L - 1)
    assert array_rows_of(Windows(), default_collate, batch_size=16, num_workers=2) is None
    monkeypatch.setattr("datapipe.adapt.array_rows.Trial.pays", False)
    assert array_rows_of(Windows(), default_collate, batch_size=16, num_workers=0) is None


class NegativelyChosen(Windows):
    """A window that counts from the end of the array at index -1, where a Subset of a list would give the last sample."""


def test_a_subset_that_counts_from_the_end_is_left() -> None:
    data = Subset(NegativelyChosen(), [5, -1, 7])
    assert array_rows_of(data, default_collate, batch_size=2, num_workers=0) is None


DRAWN = np.random.default_rng(2).permutation(199)


class Augmented(Windows):
    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, y


class RandomStart(Arrays):
    def __getitem__(self, i: int) -> Any:
        start = int(torch.randint(0, 100, ()))
        return torch.from_numpy(self.data[start : start + L].astype(np.int64))


class RarelyMasked(Arrays):
    def __getitem__(self, i: int) -> Any:
        x = torch.from_numpy(self.data[i * L : (i + 1) * L].astype(np.int64))
        if x[0] == 7:
            x[0] = 0
        return x


class RarelyMaskedInPlace(Arrays):
    def __getitem__(self, i: int) -> Any:
        x = torch.from_numpy(self.data[i * L : (i + 1) * L].astype(np.int64))
        x[x == 7] = 0
        return x


class ByTable(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[int(DRAWN[i]) * L : int(DRAWN[i]) * L + L].astype(np.int64))


class Clamped(Arrays):
    def __getitem__(self, i: int) -> Any:
        start = min(i * L, 6_000)
        return torch.from_numpy(self.data[start : start + L].astype(np.int64))


class Wrapped(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[(i * L) % 6_000 : (i * L) % 6_000 + L].astype(np.int64))


class Counting(Arrays):
    count = 0

    def __getitem__(self, i: int) -> Any:
        self.count += 1
        return torch.from_numpy(self.data[i * L : i * L + L].astype(np.int64))


class Computed(Arrays):
    @property
    def window(self) -> int:
        return L if len(self.data) else 2 * L

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[i * self.window : (i + 1) * self.window].astype(np.int64))


class Hooked(Arrays):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[i * L : (i + 1) * L].astype(np.int64))


class Rounded(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.matrix[i].astype(np.int64))  # of NaN it depends on the processor


class Failing(Arrays):
    def __getitem__(self, i: int) -> Any:
        try:
            return torch.from_numpy(self.data[i * L : (i + 1) * L].astype(np.int64))
        except ValueError:
            return torch.zeros(L)


class Looping(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.stack([torch.from_numpy(self.matrix[i, k]) for k in range(6)])


class Squared(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.data[i * i : i * i + L].astype(np.int64))


class Defaulted(Arrays):
    def __getitem__(self, i: int, length: int = L) -> Any:
        return torch.from_numpy(self.data[i : i + length].astype(np.int64))


class Unusual(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(np.array(self.data[i * L : i * L + L], dtype=np.int64, copy=True))


class AtOddKeys(Arrays):
    def __getitem__(self, i: int) -> Any:
        return self.parts["first"][i]  # type: ignore[call-overload]


class WholeReads(Windows):
    def __getitems__(self, keys: list[int]) -> Any:
        return [self[key] for key in keys]


class Ragged(np.ndarray):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) + 1


LEFT = [
    Augmented, RandomStart, RarelyMasked, RarelyMaskedInPlace, ByTable, Clamped, Wrapped, Counting, Computed, Hooked, Rounded,
    Failing, Looping, Squared, Defaulted, Unusual, AtOddKeys, WholeReads,
]  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
def test_code_that_does_anything_else_is_left(kind: type[Arrays]) -> None:
    assert array_rows_of(kind(), default_collate, batch_size=16, num_workers=0) is None


def test_arrays_that_are_more_than_arrays_are_left() -> None:
    for data in (TOKENS.view(Ragged), TOKENS.tolist(), torch.from_numpy(TOKENS), TOKENS.astype(">u2"), TOKENS[:5]):
        assert array_rows_of(Windows(data), default_collate, batch_size=16, num_workers=0) is None


def test_code_that_is_not_what_its_file_says_is_left(tmp_path: Path) -> None:
    source = """
import numpy as np
import torch

class Edited:
    def __init__(self, data):
        self.data = data
    def __len__(self):
        return 100
    def __getitem__(self, i):
        return torch.from_numpy(self.data[i * 8 : i * 8 + 8].astype(np.int64))
"""
    path = tmp_path / "edited_windows.py"
    path.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    data = names["Edited"](TOKENS)
    assert array_rows_of(data, default_collate, batch_size=4, num_workers=0) is not None
    path.write_text(source.replace("i * 8 + 8]", "i * 8 + 9]"))
    assert formula_of(data) is None
    path.write_text(source.replace("* 8", "* 8.0"))
    assert formula_of(data) is None
    path.unlink()
    assert formula_of(data) is None


def test_code_that_is_replaced_later_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = take(Windows())
    next(iter(ours))
    monkeypatch.setattr(Windows, "__getitem__", lambda self, index: torch.tensor(index))
    assert next(iter(ours)).tolist() == list(range(16))


def test_finding_out_leaves_random_states_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    assert array_rows_of(Windows(), default_collate, batch_size=16, num_workers=0) is not None
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_an_error_of_the_sampler_comes_after_the_batches_before_it() -> None:
    def keys() -> Any:
        yield from range(20)
        raise ValueError("no more")

    class Sampler:
        def __iter__(self) -> Any:
            return keys()

        def __len__(self) -> int:
            return 40

    _, ours = take(Windows(), sampler=Sampler(), batch_size=4, num_workers=2)
    iterator = iter(ours)
    assert_same([next(iterator) for _ in range(5)], DataLoader(Windows(), sampler=range(20), batch_size=4))
    with pytest.raises(ValueError, match="no more"):
        next(iterator)


class Bare(Arrays):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.matrix[i])


def test_a_new_array_is_compared_at_once() -> None:
    data = Bare()
    _, ours = take(data)
    next(iter(ours))
    data.matrix = MATRIX[:, ::-1]
    with pytest.raises(ValueError, match="strides"):  # as torch's from_numpy says of it
        next(iter(ours))
