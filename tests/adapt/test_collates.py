"""A collate_fn that draws random numbers: same seed, same batches, and the training's own draws are left alone."""

from __future__ import annotations

import importlib
import multiprocessing
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import make_folder, mostly_nightly, write_webdataset
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe.testing.loaders.kind import copies, same

v2 = torchvision_v2()
v1: Any = importlib.import_module("torchvision.transforms")
folders: Any = importlib.import_module("torchvision.datasets")
NUM_CLASSES = 3
NUMBERS_OF_WORKERS = (0, 1, 2, 3, 5)


class Mixing:
    """The collate_fn that torchvision's documentation shows: it draws from torch's default generator."""

    def __init__(self, mix: Any) -> None:
        self.mix = mix

    def __call__(self, samples: list[Any]) -> Any:
        return self.mix(*default_collate(samples))


class Masking:
    """Masks drawn from `random`, numpy and torch, and a count of its own, as mask collators have."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.num_calls += 1
        corner = torch.tensor([random.randrange(100), int(np.random.randint(100)), int(torch.randint(100, ()))])
        return (*default_collate(samples), corner)


def draws_of_pillow(samples: list[Any]) -> Any:
    """A collate_fn for PIL images."""
    images = torch.stack([torch.tensor(np.asarray(image)) for image, _ in samples])
    return images, torch.tensor([label for _, label in samples]), torch.rand(2), torch.tensor(random.random())


def noisy(image: torch.Tensor) -> torch.Tensor:
    """A transform of the user's that draws."""
    return image + torch.rand(()) + float(np.random.rand())


class Own(Dataset[Any]):
    """Code of the user's that draws too."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 8, 8), float(number)) + torch.rand(()), number % NUM_CLASSES


class Whole(Own):
    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]


class Batches:
    """A batch sampler of the user's."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[3, 1, 2], [4], [0, 5, 6, 7], [9, 8], [11, 10]])

    def __len__(self) -> int:
        return 5


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("collates") / "set", num=23, size=(24, 32))


COLLATES: dict[str, Callable[[], Any]] = {
    "MixUp": lambda: Mixing(v2.MixUp(num_classes=NUM_CLASSES)),
    "CutMix": lambda: Mixing(v2.CutMix(num_classes=NUM_CLASSES)),
    "masks": Masking,
}
CROP = [v1.RandomCrop(16), v1.ToTensor()]
ROUTES: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "files seen": lambda root: (folders.ImageFolder(root, v1.Compose(CROP)), {"shuffle": True}),
    "transforms of its own": lambda root: (folders.ImageFolder(root, v1.Compose([*CROP, noisy])), {"shuffle": True}),
    "PIL images": lambda root: (folders.ImageFolder(root, v1.RandomCrop(16)), {"collate_fn": draws_of_pillow}),
    "a Dataset of the user's": lambda root: (Own(), {"shuffle": True}),
    "a Dataset of whole batches": lambda root: (Whole(), {}),
    "a batch sampler": lambda root: (Own(), {"batch_size": 1, "batch_sampler": Batches()}),
    "a batch sampler, files seen": lambda root: (
        folders.ImageFolder(root, v1.Compose(CROP)), {"batch_size": 1, "batch_sampler": Batches()},
    ),
    "tensors": lambda root: (TensorDataset(torch.arange(276.0).reshape(23, 3, 2, 2), torch.arange(23) % 3), {"shuffle": True}),
}  # fmt: skip


def taken(root: Path, route: str, collate_fn: Any, *, num_workers: int, **arguments: Any) -> Any:
    dataset, others = ROUTES[route](root)
    if isinstance(dataset, Own | TensorDataset) or route != "PIL images":
        others = {"collate_fn": collate_fn} | others
    return dp.from_torch(
        DataLoader(dataset, **({"batch_size": 4, "num_workers": num_workers} | others)), **({"seed": 7} | arguments), device="cpu"
    )


def resumed(make: Callable[[], Any], after: int) -> list[Any]:
    """The rest of the second epoch, by a loader that resumes."""
    first = make()
    copies(first)
    walking = iter(first)
    for _ in range(after):
        next(walking)
    state = first.state_dict()
    walking.close()
    second = make()
    second.load_state_dict(state)
    return copies(second)


@pytest.mark.nightly
@pytest.mark.parametrize("route", ROUTES)
def test_batches_do_not_depend_on_the_number_of_workers(root: Path, route: str) -> None:
    expected: list[Any] = []
    for num_workers in NUMBERS_OF_WORKERS:
        torch.manual_seed(num_workers)  # what the script draws has no influence
        random.seed(num_workers)
        np.random.seed(num_workers)
        loader = taken(root, route, Masking(), num_workers=num_workers)
        epochs = [copies(loader), copies(loader)]
        expected = expected or epochs
        assert same(epochs[0], expected[0])
        assert same(epochs[1], expected[1])
    assert not same(*expected)
    draws = [tuple(batch[-1].tolist() if batch[-1].dim() else batch[-1:]) for batch in expected[0]]
    assert len(set(draws)) == len(draws), "each step draws other numbers"


@pytest.mark.daily(1)
@pytest.mark.parametrize("route", mostly_nightly(ROUTES, "files seen", "a batch sampler"))
def test_a_place_in_mid_epoch_is_resumed_with_its_draws(root: Path, route: str) -> None:
    def make(num_workers: int) -> Any:
        return taken(root, route, Masking(), num_workers=num_workers)

    whole = make(0)
    copies(whole)
    second = copies(whole)
    assert len(second) > 4
    for num_workers in (0, 3):
        assert same(resumed(lambda: make(num_workers), 2), second[2:])  # noqa: B023


@pytest.mark.nightly
@pytest.mark.parametrize("name", COLLATES)
@pytest.mark.parametrize("route", ["files seen", "a Dataset of the user's"])
def test_each_kind_of_collate(root: Path, route: str, name: str) -> None:
    expected = copies(taken(root, route, COLLATES[name](), num_workers=0))
    for num_workers in NUMBERS_OF_WORKERS[1:]:
        assert same(copies(taken(root, route, COLLATES[name](), num_workers=num_workers)), expected)
    assert not same(copies(taken(root, route, COLLATES[name](), num_workers=1, seed=8)), expected)
    if name != "masks":
        assert all(labels.shape[1:] == (NUM_CLASSES,) for _, labels in expected)


@pytest.mark.daily(8)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("route", ROUTES)
def test_the_trainings_own_draws_are_left_alone(root: Path, route: str, num_workers: int) -> None:
    """Two runs with one seed draw the same numbers, and those of `random` and numpy are as if there were no loader."""

    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    def run(collate_fn: Any) -> list[tuple[float, float, float]]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        return [drawn() for _ in taken(root, route, collate_fn, num_workers=num_workers)]

    first, second = run(Masking()), run(Masking())
    assert first == second
    random.seed(3)
    np.random.seed(3)
    alone = [drawn()[1:] for _ in first]
    assert [own[1:] for own in first] == alone


def test_states_are_exchanged_between_threads_and_workers(root: Path) -> None:
    whole = copies(taken(root, "files seen", Masking(), num_workers=2))
    for before, after in ((0, 2), (2, 0)):
        first = taken(root, "files seen", Masking(), num_workers=before)
        walking = iter(first)
        next(walking)
        second = taken(root, "files seen", Masking(), num_workers=after)
        second.load_state_dict(first.state_dict())
        walking.close()
        assert same(copies(second), whole[1:])


def test_ranks_draw_apart(root: Path) -> None:
    """All ranks know the seed, and their MixUps must not be one."""

    def corners(rank: int, num_workers: int) -> list[Any]:
        dataset = folders.ImageFolder(root, v1.Compose(CROP))
        sampler: Any = torch.utils.data.DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=False)
        theirs = DataLoader(dataset, 4, sampler=sampler, collate_fn=Masking(), num_workers=num_workers)
        return [tuple(corner.tolist()) for *_, corner in dp.from_torch(theirs, seed=7, device="cpu")]

    assert corners(0, 0) == corners(0, 1) != corners(1, 0) == corners(1, 1)


class SharedCount:
    """As I-JEPA's mask collator: its workers share a count. Its generator takes its seed from the random state, not from that."""

    def __init__(self) -> None:
        self.num_calls = multiprocessing.Value("i", 0)

    def __call__(self, samples: list[Any]) -> Any:
        with self.num_calls.get_lock():
            self.num_calls.value += 1
        generator = torch.Generator().manual_seed(torch.initial_seed())
        return (*default_collate(samples), torch.randint(1000, (4,), generator=generator), torch.randint(1000, (4,)))


@pytest.mark.daily(1)
@pytest.mark.parametrize("route", ["files seen", "a Dataset of the user's"])
def test_a_mask_collator_whose_workers_share_a_count(root: Path, route: str) -> None:
    expected = copies(taken(root, route, SharedCount(), num_workers=0))
    assert len({tuple(masks.tolist()) for *_, masks, _ in expected}) == len(expected)
    for num_workers in NUMBERS_OF_WORKERS[1:]:
        collate = SharedCount()
        assert same(copies(taken(root, route, collate, num_workers=num_workers)), expected)
        assert collate.num_calls.value == len(expected)


def test_a_counter_goes_on_in_the_order_of_batches_where_there_are_no_workers(root: Path) -> None:
    for route in ("files seen", "a Dataset of the user's"):
        masking = Masking()
        counts = [masking.num_calls for _ in taken(root, route, masking, num_workers=0)]
        assert counts == list(range(1, len(counts) + 1)), "each batch is collated when it is asked for"


def seed_by_number(worker: int) -> None:
    np.random.seed(worker)
    random.seed(worker)


def test_a_seed_of_worker_init_fn_gives_way(root: Path) -> None:
    dataset = folders.ImageFolder(root, v1.Compose(CROP))
    theirs = DataLoader(dataset, 4, collate_fn=Masking(), num_workers=2, worker_init_fn=seed_by_number)
    expected = copies(taken(root, "files seen", Masking(), num_workers=0))
    in_order = dp.from_torch(DataLoader(dataset, 4, collate_fn=Masking()), seed=7, device="cpu")
    assert same(copies(dp.from_torch(theirs, seed=7, device="cpu")), copies(in_order))
    assert len(expected) == len(in_order)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_reseeding_draws_are_torchs(root: Path, num_workers: int) -> None:
    def batches(loader: Any) -> list[list[int]]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        return [corner.tolist() for *_, corner in loader]

    dataset = folders.ImageFolder(root, v1.Compose([v1.CenterCrop(16), v1.ToTensor()]))
    for data in (dataset, TensorDataset(torch.zeros(23, 2))):
        theirs = DataLoader(data, 4, collate_fn=Masking(), num_workers=num_workers)
        ours = dp.from_torch(DataLoader(data, 4, collate_fn=Masking(), num_workers=num_workers), faithful=True, device="cpu")
        assert batches(ours) == batches(theirs)


def test_what_only_a_datapipe_loader_can_do_is_done_where_the_collate_draws(root: Path, tmp_path: Path) -> None:
    """It is called in the thread that iterates then, whatever num_workers is."""
    expected = copies(taken(root, "files seen", Masking(), num_workers=2))
    kept = dp.Images(folders.ImageFolder(root, v1.Compose(CROP)), cache=tmp_path / "cache")
    for arguments in ({"data": kept}, {"on_error": "skip"}, {"backend": "images_cpu"}):
        loader = taken(root, "files seen", Masking(), num_workers=2, **arguments)
        assert isinstance(loader, dp.DataLoader)
        assert same(copies(loader), expected)


def test_explain_says_where_it_is_called_and_why(root: Path) -> None:
    in_workers, in_next = (str(dp.explain(taken(root, "files seen", Masking(), num_workers=number))) for number in (2, 0))
    assert "in torch's workers, since its collate_fn may draw random numbers (it uses num_calls)" in in_workers
    assert "use a collate_fn that takes plain tensors, certainly draws no random numbers" in in_workers
    assert "collate   by your collate_fn, one batch at a time, in the thread that iterates, seeded for each step" in in_next
    assert isinstance(taken(root, "files seen", lambda samples: len(samples), num_workers=2), dp.DataLoader)


def test_a_collate_fn_over_a_webdataset_pipeline(root: Path, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    write_webdataset(root, tmp_path / "set")

    def loader(num_workers: int) -> Any:
        stream = wds.WebDataset(str(tmp_path / "set" / "set-{000..002}.tar"), shardshuffle=False).decode("pil")
        stream = stream.to_tuple("jpg;png", "cls").map_tuple(v1.Compose(CROP), int)
        theirs = DataLoader(stream, 4, collate_fn=Masking(), num_workers=num_workers)
        return dp.from_torch(theirs, seed=7, device="cpu")

    assert isinstance(loader(0), dp.DataLoader)
    expected = copies(loader(0))
    for num_workers in (1, 3):
        assert same(copies(loader(num_workers)), expected)
