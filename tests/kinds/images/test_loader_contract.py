"""What torch's DataLoader gives: its batches, and the lengths that samplers decide."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import CROP, SIZE, TRAIN, num_threads

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, own_threads, same

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("arguments", [
    {}, {"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": 100}, {"batch_size": 37},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("num_workers", [0, 2])
def test_gives_what_torch_gives(converted: Path, arguments: dict[str, Any], num_workers: int) -> None:
    """Over the same samples: as many batches, of the same shapes, types and values."""
    loader = dp.DataLoader(converted, num_workers=num_workers, **arguments)
    reference = torch.utils.data.DataLoader(loader.dataset, **arguments)  # type: ignore[arg-type]
    assert len(loader) == len(reference)
    assert same(copies(loader), [tuple(batch) for batch in reference])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_hands_samples_to_collate_fn_as_torch_does(folder: Path, num_workers: int) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append([(type(s), tuple(s[0].shape), type(s[1])) for s in samples])
        return torch.utils.data.default_collate(samples)

    loader = dp.DataLoader(folder, batch_size=5, collate_fn=collate, num_workers=num_workers)
    reference = torch.utils.data.DataLoader(loader.dataset, batch_size=5, collate_fn=collate)  # type: ignore[arg-type]
    assert same(copies(loader), [tuple(batch) for batch in reference])
    assert seen[: len(loader)] == seen[len(loader) :] or sorted(map(str, seen[: len(loader)])) == sorted(
        map(str, seen[len(loader) :])
    )


def test_batches_have_the_promised_form(folder: Path) -> None:
    images, labels = next(iter(dp.DataLoader(folder, batch_size=5, transform=CROP)))
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == (torch.uint8, (5, 3, SIZE, SIZE), torch.int64, (5,))
    assert images.is_contiguous(memory_format=torch.channels_last)
    images, _ = next(iter(dp.DataLoader(folder, batch_size=5, transform=TRAIN)))
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    plain, _ = next(iter(dp.DataLoader(dp.Images(folder, memory_format=torch.contiguous_format), batch_size=5, transform=TRAIN)))
    assert plain.is_contiguous()
    assert torch.equal(plain, images)


@pytest.mark.parametrize(("arguments", "length"), [
    ({"sampler": range(11), "batch_size": 4}, 3), ({"sampler": range(11), "batch_size": 4, "drop_last": True}, 2),
    ({"sampler": range(11), "batch_size": 4, "tail": "drop"}, 2), ({"batch_sampler": [[1], [2, 3], [4]]}, 3),
], ids=str)  # fmt: skip
def test_samplers_decide_the_length(folder: Path, arguments: dict[str, Any], length: int) -> None:
    loader = dp.DataLoader(folder, transform=CROP, num_workers=1, **arguments)
    for _ in range(2):
        assert len(loader) == sum(1 for _ in loader) == length


def test_a_sampler_without_a_length_gives_a_type_error(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=3, sampler=(n for n in range(7)), num_workers=0, transform=CROP)
    with pytest.raises(TypeError, match="no __len__"):
        len(loader)
    assert [len(labels) for _, labels in list(loader)] == [3, 3, 1]


def test_without_shuffle_crops_differ_in_every_epoch(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=10, transform=CROP, num_workers=0)
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(list(loader), list(loader), strict=True))


def test_a_loop_that_a_samplers_error_ends_leaves_nothing(folder: Path) -> None:
    """No collection is needed: the exception leads to the iterator, and nothing leads back."""

    def places() -> Iterator[int]:
        yield from range(7)
        raise KeyError("mine")

    loader = dp.DataLoader(folder, 5, transform=[T.RandomResizedCrop(24)], num_workers=2, sampler=Sampled(places))

    def run() -> None:
        for _ in loader:
            pass

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            run()
        assert own_threads() == []
    finally:
        gc.enable()


class Sampled:
    def __init__(self, places: Callable[[], Iterator[int]]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[int]:
        return self._places()


def test_a_pass_has_as_many_threads_as_it_says(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=5, transform=CROP, num_workers=2)
    for _ in loader:
        assert len(own_threads()) == num_threads(loader)
