"""Samples whose `__getitem__` raises: raised, left out, or replaced, and always named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deferral_datasets as data
import pytest
import torch
from deferral_datasets import F, Images, deferral
from torch.utils.data import DataLoader, IterableDataset

import datapipe as dp
from datapipe.errors import OptionError


def cut(image: Any) -> Any:
    return F.to_tensor(image.crop((0, 0, 32, 32)))


class Fragile(Images):
    """Raises for one number of its own accord."""

    def __getitem__(self, number: int) -> Any:
        if number == 5:
            raise KeyError("no label for 5")
        return super().__getitem__(number)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Eight images, of which the third is cut off."""
    found = data.make_files(tmp_path_factory.mktemp("photos"))
    whole = Path(found[2]).read_bytes()
    Path(found[2]).write_bytes(whole[: len(whole) // 2])
    return found


def loader(paths: list[str], on_error: Any, **options: Any) -> Any:
    torchs = DataLoader(Fragile(paths, cut), **{"batch_size": 4, **options})
    return dp.from_torch(torchs, seed=1, device="cpu", on_error=on_error)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_that_raise_are_left_out(paths: list[str], num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    ours = loader(paths, "skip", num_workers=num_workers)
    batches = list(ours)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 3], [4, 6, 7]]
    assert all(torch.equal(images[-1], cut(data.by_path(paths[int(labels[-1])]))) for images, labels in batches)
    assert [(bad.epoch, bad.step, bad.where) for bad in ours.bad_samples] == [(0, 0, "sample 2"), (0, 1, "sample 5")]
    assert "truncated" in ours.bad_samples[0].reason
    assert ours.bad_samples[1].reason == "KeyError: 'no label for 5'"
    assert "bad sample in epoch 0, step 1: sample 5: KeyError" in caplog.text


@pytest.mark.parametrize("defer", [True, False])
def test_samples_that_raise_are_replaced_alike_by_any_number_of_workers(paths: list[str], defer: bool) -> None:
    def labels(num_workers: int) -> list[list[int]]:
        torchs = DataLoader(Fragile(paths, cut), batch_size=4, num_workers=num_workers)
        with deferral(defer):
            ours = dp.from_torch(torchs, seed=1, device="cpu", on_error="replace")
        return [found.tolist() for _, found in ours]

    here = labels(0)
    assert [len(found) for found in here] == [4, 4]
    assert 2 not in here[0] + here[1]
    assert 5 not in here[0] + here[1]
    assert labels(1) == here


def test_a_batch_of_which_nothing_is_left_raises_what_its_code_raised(paths: list[str]) -> None:
    ours = loader(paths, "skip", batch_size=1)
    iterator = iter(ours)
    assert [next(iterator)[1].tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(OSError, match="truncated"):
        next(iterator)
    assert next(iterator)[1].tolist() == [3]


def enlarged(image: Any) -> Any:
    return F.to_tensor(image.resize((128, 128), 2)), F.to_tensor(image.resize((128, 128), 2).transpose(0))


def test_rows_of_a_batch_whose_last_step_found_a_bad_one(tmp_path: Path) -> None:
    """Bytes on which only decoding fails: the others' rows lie in memory that is lent, and must stay theirs."""
    found = data.make_files(tmp_path)
    broken = bytearray(Path(found[5]).read_bytes())
    broken[broken.index(b"\xff\xc4") + 5] = 255  # codes of one bit in a Huffman table
    Path(found[5]).write_bytes(broken)
    torchs = DataLoader(Images(found, enlarged), 4, num_workers=1)
    ours = list(dp.from_torch(torchs, device="cpu", seed=1, on_error="skip"))
    with deferral(False):
        theirs = list(dp.from_torch(torchs, device="cpu", seed=1, on_error="skip"))
    assert [labels.tolist() for _, labels in ours] == [labels.tolist() for _, labels in theirs] == [[0, 1, 2, 3], [4, 6, 7]]
    for (images, _), (expected, _) in zip(ours, theirs, strict=True):
        assert all(float((one - other).abs().max()) < 0.01 for one, other in zip(images, expected, strict=True))


class Broken(Images):
    def __getitem__(self, number: int) -> Any:
        raise RuntimeError("nothing here")


def test_a_dataset_of_which_nothing_is_good_raises(paths: list[str]) -> None:
    with pytest.raises(RuntimeError, match="nothing here"):
        list(dp.from_torch(DataLoader(Broken(paths, cut), 4), device="cpu", on_error="replace"))


class Whole(Images):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_what_cannot_be_left_out_is_refused(paths: list[str]) -> None:
    for dataset in (Whole(paths, cut), Stream()):
        with pytest.raises(OptionError, match="is not asked for samples one by one"):
            dp.from_torch(DataLoader(dataset, 4), on_error="skip")
    with pytest.raises(OptionError, match="leave faithful=True out"):
        dp.from_torch(DataLoader(Images(paths, cut), 4), on_error="replace", faithful=True)
