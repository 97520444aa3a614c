"""A sample is made once, whatever its transforms are; what fails only because it is recorded is counted, named and given up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import deferral_datasets as data
import pytest
import torch
from deferral_datasets import MEAN, NUM, STD, TRAIN, F, Images, T, loaded, v2

import datapipe as dp

TO_FLOAT = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
V2: dict[str, Any] = {
    "ToImage, RandomResizedCrop": [v2.ToImage(), v2.RandomResizedCrop(32), *TO_FLOAT],
    "ToImage, Resize, CenterCrop": [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), *TO_FLOAT],
    "ToImage, ColorJitter": [v2.ToImage(), v2.RandomResizedCrop(32), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *TO_FLOAT],
    "ToImage, GaussianBlur": [v2.ToImage(), v2.RandomResizedCrop(32), v2.GaussianBlur(5), *TO_FLOAT],
    "ToImage, RandomErasing": [v2.ToImage(), v2.RandomResizedCrop(32), *TO_FLOAT, v2.RandomErasing(1.0)],
    "ToImage, RandAugment": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandAugment(), *TO_FLOAT],
    "ToImage, RandomCrop, flip": [v2.ToImage(), v2.RandomCrop(32), v2.RandomHorizontalFlip(), *TO_FLOAT],
    "ToImage, ToPureTensor": [v2.ToImage(), v2.RandomCrop(32), *TO_FLOAT, v2.ToPureTensor()],
    "PILToTensor, RandomResizedCrop": [v2.PILToTensor(), v2.RandomResizedCrop(32), *TO_FLOAT],
    "RandomResizedCrop, ToImage": [v2.RandomResizedCrop(32), v2.ToImage(), *TO_FLOAT],
    "RandomCrop, ToImage, RandomErasing": [v2.RandomCrop(32), v2.ToImage(), *TO_FLOAT, v2.RandomErasing(1.0)],
    "RandomCrop, ToImage, ToPureTensor": [v2.RandomCrop(32), v2.ToImage(), *TO_FLOAT, v2.ToPureTensor()],
    "RandomCrop, ToImage, flip": [v2.RandomCrop(32), v2.ToImage(), v2.RandomHorizontalFlip(1.0), *TO_FLOAT],
    "RandAugment, ToImage": [v2.RandomCrop(32), v2.RandAugment(), v2.ToImage(), *TO_FLOAT],
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"), num=16)


class Counting(Images):
    """Counts how often each sample is asked for."""

    calls: Counter[int]

    def __getitem__(self, number: int) -> Any:
        self.calls[number] += 1
        return super().__getitem__(number)


def counting(paths: list[str], make: Any) -> Counting:
    dataset = Counting(paths, make)
    dataset.calls = Counter()
    return dataset


@pytest.mark.parametrize("name", V2)
def test_each_sample_of_v2_is_made_once(paths: list[str], name: str) -> None:
    dataset = counting(paths[:NUM], v2.Compose(V2[name]))
    ours = data.samples_of(dataset, list(range(NUM)), defers=True)
    assert dataset.calls == Counter(range(NUM))
    theirs = data.samples_of(dataset, list(range(NUM)), defers=False)
    is_resized_before = name == "RandomResizedCrop, ToImage"
    for (found, _), (expected, _) in zip(ours, theirs, strict=True):
        assert type(found) is type(expected)
        assert float((found - expected).abs().max()) <= (1 / 255 / min(STD) + 1e-5 if is_resized_before else 0)


def in_an_extension(tensor: torch.Tensor) -> torch.Tensor:
    """Read a tensor where no function mode sees it, as code in C++ does."""
    with torch._C.DisableTorchFunction():
        return tensor * 2


def unseen(image: Any) -> Any:
    return in_an_extension(F.to_tensor(F.resize(image, [32, 32])))


def told(loader: Any, capsys: pytest.CaptureFixture[str]) -> str:
    print(dp.explain(loader))
    return capsys.readouterr().out


def test_failures_while_recording_are_given_up_and_named(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dataset = counting(paths, unseen)
    loader = loaded(dataset, batch_size=4)
    list(loader)
    assert sum(dataset.calls.values()) == 16 + 5
    dataset.calls.clear()
    list(loader)
    assert dataset.calls == Counter(range(16))
    line = next(line for line in told(loader, capsys).splitlines() if "recording them failed" in line)
    assert f"RuntimeError at {Path(__file__)}:" in line


def sometimes_unseen(image: Any) -> Any:
    tensor = F.to_tensor(T.RandomResizedCrop(32)(image))
    return in_an_extension(tensor) if torch.rand(()) < 0.6 else tensor * 2


def test_samples_do_not_depend_on_what_failed_before(paths: list[str]) -> None:
    def samples(keys: list[int]) -> dict[int, torch.Tensor]:
        from datapipe.deferral.dataset import DeferringDataset
        from datapipe.deferral.requests import BatchRequest

        dataset = DeferringDataset(Images(paths, sometimes_unseen), defers=True)
        made = {}
        for first in range(0, len(keys), 2):
            some = keys[first : first + 2]
            made |= {
                number: image for image, number in dataset.__getitems__(BatchRequest(some, [number + 50 for number in some]))
            }
        return made

    forwards, backwards = samples(list(range(16))), samples(list(range(15, -1, -1)))
    assert all(torch.equal(forwards[number], backwards[number]) for number in range(16))


def test_an_error_of_the_users_is_no_failure_of_recording(paths: list[str]) -> None:
    calls: list[int] = []

    class Broken(Images):
        def __getitem__(self, number: int) -> Any:
            calls.append(number)
            return self.make(self.open(self.paths[number])) + "text"

    loader = loaded(Broken(paths, TRAIN), batch_size=1)
    for _ in range(2):
        iterator = iter(loader)
        for _ in range(8):
            with pytest.raises(TypeError, match="unsupported operand"):
                next(iterator)
    assert len(calls) == 2 * 2 * 8
