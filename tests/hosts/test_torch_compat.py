"""What frameworks read off a loader that was given no sampler, batch sampler or worker_init_fn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.utils.data

import datapipe as dp
from datapipe import transforms as T

CROP = T.RandomResizedCrop(8)


def test_they_have_a_length_and_no_positions(shards: Path) -> None:
    loader = dp.DataLoader(shards, 7, shuffle=True, transform=CROP)
    assert (len(loader.sampler), len(loader.batch_sampler)) == (50, 8)  # type: ignore[arg-type]
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (7, False)  # type: ignore[attr-defined]
    assert loader.batch_sampler.sampler is loader.sampler  # type: ignore[attr-defined]
    with pytest.raises(dp.errors.OptionError, match=r"positions were requested from the sampler .* docs/hosts\.md"):
        iter(loader.sampler)
    with pytest.raises(dp.errors.OptionError, match="positions were requested from the batch_sampler"):
        iter(loader.batch_sampler)


@pytest.mark.parametrize("taken", ["sampler", "batch_sampler"])
def test_nobody_makes_a_torch_loader_of_them(shards: Path, taken: str) -> None:
    """It would give images without transforms, in an order of its own, without an error."""
    loader = dp.DataLoader(shards, 7, transform=CROP)
    torchs = torch.utils.data.DataLoader(loader.dataset, **{taken: getattr(loader, taken)})  # type: ignore[arg-type]
    with pytest.raises(dp.errors.OptionError, match="something is making a torch DataLoader of it"):
        next(iter(torchs))


def test_a_sampler_tells_whether_it_shuffles(shards: Path) -> None:
    kinds = [
        isinstance(dp.DataLoader(shards, shuffle=shuffle).sampler, torch.utils.data.SequentialSampler)
        for shuffle in (True, False)
    ]
    assert kinds == [False, True]


def test_what_the_user_passed_stays(shards: Path) -> None:
    lists = [[1, 2], [3]]
    loader = dp.DataLoader(shards, batch_sampler=lists, transform=CROP, worker_init_fn=print)
    assert loader.batch_sampler is lists
    assert loader.worker_init_fn is print


def test_nobody_fills_in_a_worker_init_fn(shards: Path) -> None:
    loader = dp.DataLoader(shards, 5, transform=CROP, num_workers=2)
    assert loader.worker_init_fn is not None
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_come_up_after_the_length_was_asked_for(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, given, new = (
        dp.DataLoader(shards, 5, transform=CROP, num_workers=0, **ranks) for ranks in ({}, {"ranks": (0, 1)}, {})
    )
    assert [len(asked), len(given)] == [10, 10]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(dp.errors.LifecycleError, match="10 steps of all samples; now it is rank 1 of 2"):
        iter(asked)
    assert len(list(given)) == 10
    assert len(list(new)) == 5
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert len(list(new)) == 5, "the group may be gone again"
