"""Batches whose tensors are made in place: what torch would have stacked, and never the memory of what somebody keeps."""

from __future__ import annotations

from typing import Any

import deferral_datasets as data
import pytest
import torch
from deferral_datasets import F, Images, loaded
from torch.utils.data._utils import collate

from datapipe.deferral import blocks
from datapipe.deferral import engine as engine_module


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"))


def cut(image: Any, left: int = 0) -> Any:
    return F.to_tensor(image.crop((left, 0, left + 32, 32)))


def two(image: Any) -> Any:
    return cut(image), cut(image, 3)


def mapping(image: Any) -> Any:
    return {"a": cut(image), "size": image.size, "more": [cut(image, 5), {"b": cut(image, 7)}]}


def twice(image: Any) -> Any:
    return (cut(image),) * 2


def not_all(image: Any) -> Any:
    return cut(image) if image.size[0] % 16 else torch.zeros(3, 32, 32)


def uint8(image: Any) -> Any:
    return F.pil_to_tensor(image.crop((0, 0, 32, 32)))


# Functions with names: since Python 3.14 workers get the dataset as a pickle.
SHAPES = {"tensor": cut, "two": two, "dict": mapping, "twice": twice, "not all": not_all, "bare": cut, "uint8": uint8}


class Bare(Images):
    """Samples that are tensors."""

    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number)[0]


def flat(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [tensor for value in (batch.values() if isinstance(batch, dict) else batch) for tensor in flat(value)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_batches_are_those_that_torch_stacks(paths: list[str], shape: str, num_workers: int) -> None:
    dataset: Any = Bare(paths, cut) if shape == "bare" else Images(paths, SHAPES[shape])
    ours = [flat(batch) for batch in loaded(dataset, num_workers=num_workers)]
    theirs = [flat(batch) for batch in loaded(dataset, defer=False)]
    for one, other in zip(ours, theirs, strict=True):
        assert len(one) == len(other)
        for found, expected in zip(one, other, strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_nothing_is_stacked_where_rows_lie_in_the_batch(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    real = collate.collate_tensor_fn
    monkeypatch.setattr(blocks, "collate_tensor_fn", lambda batch, **options: stacked.append(1) or real(batch, **options))
    assert [batch[0].shape for batch in loaded(Images(paths, cut))] == [(4, 3, 32, 32)] * 2
    assert [batch.shape for batch in loaded(Bare(paths, cut))] == [(4, 3, 32, 32)] * 2
    assert stacked == []


@pytest.mark.parametrize("kept", ["tensor", "sample", "container", "view of it"])
def test_what_is_kept_has_memory_of_its_own(paths: list[str], kept: str) -> None:
    cache: list[Any] = []

    class Keeping(Images):
        def __getitem__(self, number: int) -> Any:
            tensor = cut(data.by_path(self.paths[number]))
            sample = ({"image": tensor}, number)
            cache.append({"tensor": tensor, "sample": sample, "container": sample[0], "view of it": tensor[:]}[kept])
            return sample

    def get(value: Any) -> torch.Tensor:
        return value if isinstance(value, torch.Tensor) else value["image"] if isinstance(value, dict) else value[0]["image"]

    for batch, _ in loaded(Keeping(paths, cut)):
        batch["image"].zero_()
    assert len(cache) == len(paths)
    assert all(float(get(value).sum()) > 0 for value in cache)


def test_samples_that_are_made_again_take_their_places(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Images(paths, cut)

    def marked(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, 77.0, dtype=dtype)

    monkeypatch.setattr(blocks, "_empty", marked)
    fails = engine_module.Engine._tensor

    def tensor(self: Any, step: Any, made: Any, out: Any) -> torch.Tensor:
        failing.append(1)
        if len(failing) % 4 == 2:
            raise OSError("these bytes do not decode")
        return fails(self, step, made, out)

    failing: list[int] = []
    monkeypatch.setattr(engine_module.Engine, "_tensor", tensor)
    ours, theirs = (torch.cat([batch for batch, _ in loaded(dataset, defer=defer)]) for defer in (True, False))
    assert torch.equal(ours, theirs)
