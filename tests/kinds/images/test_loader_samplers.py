"""The user's own samplers, which decide as they do with torch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES
from recipes import CROP, SIZE, TRAIN, ids_of, make

import datapipe as dp
from datapipe.kernel.pools import SlabPool

pytestmark = pytest.mark.usefixtures("backend")


def torch_ids(loader: dp.DataLoader, **arguments: Any) -> list[list[int]]:
    return [batch.tolist() for batch in torch.utils.data.DataLoader(range(len(loader.dataset)), **arguments)]  # type: ignore[arg-type]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS: dict[str, Any] = {
    "random": lambda data: torch.utils.data.RandomSampler(data, generator=seeded()),
    "with replacement": lambda data: torch.utils.data.RandomSampler(data, replacement=True, num_samples=50, generator=seeded()),
    "weighted": lambda data: torch.utils.data.WeightedRandomSampler([1 + t for t in targets(data)], 40, generator=seeded()),
    "distributed": lambda data: torch.utils.data.DistributedSampler(data, num_replicas=3, rank=1),
    "subset": lambda data: torch.utils.data.SubsetRandomSampler(range(3, 20), generator=seeded()),
    "list": lambda data: [5, 3, 3, 36, 0],
    "numpy": lambda data: np.array([5, 3, 3, 36, 0]),
}


def targets(data: Any) -> list[int]:
    return data.targets if hasattr(data, "targets") else [0] * NUM_SAMPLES


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "weighted"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samplers_decide_as_with_torch(folder: Path, name: str, drop_last: bool, num_workers: int) -> None:
    data = dp.DataLoader(folder).dataset
    loader = make(folder, sampler=SAMPLERS[name](data), drop_last=drop_last, output="dict", num_workers=num_workers)
    reference = {"sampler": SAMPLERS[name](range(NUM_SAMPLES)), "batch_size": 5, "drop_last": drop_last}
    expected = torch_ids(loader, **reference)
    assert len(loader) == len(expected)
    assert ids_of(loader) == expected


def test_a_weighted_sampler_over_targets(folder: Path) -> None:
    data = dp.DataLoader(folder).dataset
    weights = [0.0 if target == 0 else 1.0 for target in data.targets]
    loader = make(folder, sampler=torch.utils.data.WeightedRandomSampler(weights, 60), output="dict")
    assert {int(label) for batch in loader for label in batch["label"]} == {1, 2}


def test_a_distributed_samplers_epoch_is_its_owners(folder: Path) -> None:
    """Training scripts call sampler.set_epoch themselves; the loader must not set it back."""
    data = dp.DataLoader(folder).dataset
    ours, theirs = (torch.utils.data.DistributedSampler(d, num_replicas=2, rank=0) for d in (data, range(NUM_SAMPLES)))
    loader = make(folder, sampler=ours, output="dict")
    assert loader.sampler is ours
    for epoch in (10, 11, 3):
        loader.sampler.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert ids_of(loader) == torch_ids(loader, sampler=theirs, batch_size=5)
    loader.set_epoch(7)
    theirs.set_epoch(7)
    assert ids_of(loader) == torch_ids(loader, sampler=theirs, batch_size=5), "loader.set_epoch tells the sampler"


def test_a_distributed_sampler_resumes(folder: Path) -> None:
    def fresh() -> dp.DataLoader:
        sampler = torch.utils.data.DistributedSampler(dp.DataLoader(folder).dataset, num_replicas=2, rank=1)
        sampler.set_epoch(4)
        loader = make(folder, batch_size=4, sampler=sampler, output="dict")
        loader.set_epoch(4)
        return loader

    loader = fresh()
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = fresh()
    resumed.load_state_dict(loader.state_dict())
    assert [batch["id"].tolist() for batch in iterator] == ids_of(resumed)


def test_batch_samplers(folder: Path) -> None:
    lists = [[1], [5, 3, 3], [], list(range(20)), [36]]
    loader = dp.DataLoader(folder, batch_sampler=lists, transform=CROP, output="dict", num_workers=2)
    assert len(loader) == 5
    assert ids_of(loader) == lists
    data = loader.dataset
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data, generator=seeded()), 7, drop_last=True)
    again = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data, generator=seeded()), 7, drop_last=True)
    loader = dp.DataLoader(folder, batch_sampler=sampler, transform=CROP, output="dict")
    assert ids_of(loader) == list(again)


def test_a_samplers_error_comes_after_the_batches_before_it(folder: Path) -> None:
    def positions() -> Any:
        yield from range(7)
        raise RuntimeError("sampler broke")

    iterator = iter(make(folder, sampler=positions(), batch_size=3, output="dict"))
    assert [next(iterator)["id"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(RuntimeError, match="sampler broke"):
        next(iterator)
    assert next(iterator, None) is None


@pytest.mark.parametrize("sampler", [[1.5], ["a"], [[1, 2]], [None]], ids=str)
def test_samplers_of_something_else_are_refused(folder: Path, sampler: list[Any]) -> None:
    with pytest.raises(dp.errors.OptionError, match="must give whole numbers"):
        list(make(folder, sampler=sampler))


@pytest.mark.parametrize("position", [NUM_SAMPLES, -NUM_SAMPLES - 1, 10**9])
def test_positions_out_of_range_are_refused(folder: Path, position: int) -> None:
    with pytest.raises(dp.errors.OptionError, match="beyond the dataset's 37 samples"):
        list(make(folder, sampler=[0, position]))


def test_a_sampler_that_does_not_repeat_itself_is_not_resumed(folder: Path) -> None:
    """Nobody knows what is left of its epoch. The last position, as of a list, is -1."""

    def loader(sampler: Any) -> dp.DataLoader:
        return make(folder, batch_size=4, sampler=sampler, output="dict")

    drawn = torch.utils.data.RandomSampler(range(NUM_SAMPLES), replacement=True, num_samples=12)
    for first, second, is_same in ((range(12), range(12), True), (drawn, drawn, False), (range(12), [-1, *range(1, 12)], False)):
        interrupted = loader(first)
        steps = iter(interrupted)
        next(steps), next(steps)
        state = json.loads(json.dumps(interrupted.state_dict()))
        resumed = loader(second)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        if is_same:
            assert ids_of(resumed) == [[8, 9, 10, 11]]
            assert ids_of(resumed) == ids_of(loader(first))
        else:
            with pytest.raises(dp.errors.StateError, match="does not give the positions that it gave"):
                next(iter(resumed))


def test_batches_of_many_sizes_share_their_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch sampler may give batches of any size: slabs are as large as the largest so far, and few."""
    allocated: list[int] = []
    real = SlabPool._allocate
    monkeypatch.setattr(SlabPool, "_allocate", lambda pool: allocated.append(pool.nbytes) or real(pool))
    sizes = [*range(1, 21), *np.random.default_rng(0).integers(1, 21, 60).tolist()]
    loader = dp.DataLoader(
        folder, batch_sampler=[[n % 37 for n in range(size)] for size in sizes], transform=TRAIN, num_workers=2
    )
    assert [len(labels) for _, labels in loader] == sizes
    before = len(allocated)
    assert [len(labels) for _, labels in loader] == sizes
    assert len(allocated) - before <= 2
    assert max(allocated) == 20 * 3 * SIZE * SIZE * 4


def test_large_batches_of_a_batch_sampler_are_cut_into_blocks_and_few_are_begun(folder: Path) -> None:
    events: list[dp.StageEvent] = []
    loader = dp.DataLoader(folder, batch_sampler=[list(range(32)) * 5] * 12, transform=CROP, num_workers=2)
    loader.observe(events.append)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.3)
    assert max(event.step for event in events) <= loader.options.depth
    iterator.close()
    assert {event.num_samples for event in events if event.stage is dp.Stage.READ} == {40}  # 160 in as many for each thread
