"""The seed of a torch loader that was taken over, whether datapipe or torch makes its batches."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import make_folder
from torch.utils.data import DataLoader, RandomSampler
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe.testing.loaders.kind import copies, same

torchvision_v2()
folders = importlib.import_module("torchvision.datasets")
v1: Any = importlib.import_module("torchvision.transforms")


class Numbers(torch.utils.data.Dataset[Any]):
    """Code of the user's."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(number)), number


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("seeds") / "set")


@pytest.fixture(params=["seen through", "decoded in torch's workers", "left to torch"])
def dataset(request: pytest.FixtureRequest, root: Path) -> Any:
    crop = [v1.RandomResizedCrop(16), v1.ToTensor()]
    if request.param == "left to torch":
        return Numbers()
    return folders.ImageFolder(root, v1.Compose(crop if request.param == "seen through" else [*crop, torch.clone]))


def taken(dataset: Any, **arguments: Any) -> Any:
    seed = arguments.pop("seed", None)
    return dp.from_torch(DataLoader(dataset, **({"batch_size": 5, "num_workers": 0, "shuffle": True} | arguments)), seed=seed)


def test_manual_seed_decides(dataset: Any) -> None:
    expected = {seed: copies(taken(dataset, seed=seed)) for seed in (1, 2)}
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        loader = taken(dataset)
        assert (loader.seed, len(loader)) == (None, -(-len(dataset) // 5))
        assert same(copies(loader), expected[seed])
        assert loader.seed == loader.state_dict()["seed"] == seed
    assert not same(expected[1], expected[2])


@pytest.mark.daily(5)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["here", "workers that persist"])
def test_a_state_brings_its_seed_along(dataset: Any, workers: dict[str, Any]) -> None:
    torch.manual_seed(1)
    walking = taken(dataset, **workers)
    expected = copies(walking)
    walking = taken(dataset, **workers)
    next(iter(walking))
    torch.manual_seed(2)
    resumed = taken(dataset, **workers)
    copies(resumed)
    resumed.load_state_dict(walking.state_dict())
    assert resumed.seed == 1
    assert same(copies(resumed), expected[1:])
    with pytest.raises(dp.errors.StateError, match="saved with seed=1, this loader has 2"):
        taken(dataset, seed=2).load_state_dict(walking.state_dict())


def test_a_generator_is_drawn_from(dataset: Any) -> None:
    """The loader's, or that of a RandomSampler, which we stand in for; where it stands counts."""
    orders = []
    for number in (9, 9, 10):
        generator = torch.Generator().manual_seed(number)
        orders.append(copies(taken(dataset, generator=generator)))
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(number))
        orders.append(copies(taken(dataset, shuffle=None, sampler=sampler)))
    assert same(orders[0], orders[2])
    assert same(orders[1], orders[3])
    assert not same(orders[0], orders[4])
    assert not same(orders[1], orders[5])
    generator = torch.Generator().manual_seed(9)
    torch.rand(3, generator=generator)
    assert not same(copies(taken(dataset, generator=generator)), orders[0])


def test_the_generator_of_a_sampler_that_decides_is_the_samplers(dataset: Any) -> None:
    """It gives what it gives without us."""

    def sampler() -> RandomSampler:
        return RandomSampler(range(20), replacement=True, num_samples=12, generator=torch.Generator().manual_seed(1))

    assert len(copies(taken(dataset, shuffle=None, sampler=sampler()))) == 3
    drawn = sampler()
    copies(taken(dataset, shuffle=None, sampler=drawn))
    expected = sampler()
    list(expected)
    assert torch.equal(drawn.generator.get_state(), expected.generator.get_state())
