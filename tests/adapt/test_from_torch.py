"""torch's loaders taken over: the same samples in the same order, whether datapipe or torch reads them."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES, convert, hugging_face_dataset, jpeg, listing, make_folder, save_datasets
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)  # fmt: skip
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, same

torchvision_v2()
folders = importlib.import_module("torchvision.datasets")
v1: Any = importlib.import_module("torchvision.transforms")
CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
CENTRE = [T.CenterCrop(24)]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("theirs") / "set")


def theirs(dataset: Any, **arguments: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(dataset, **({"batch_size": 5, "num_workers": 0} | arguments))


class Numbers(torch.utils.data.Dataset[Any]):
    """Code of the user's."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(number)), number


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def positions_of(loader: torch.utils.data.DataLoader[Any]) -> list[list[int]]:
    """What torch's sampler asks for."""
    assert loader.batch_sampler is not None
    return [list(batch) for batch in loader.batch_sampler]


# -- converted data, and a cache -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def converted(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(root, tmp_path_factory.mktemp("converted") / "shards")


def orders(folder: Any) -> dict[str, dict[str, Any]]:
    """Arguments of torch's loader that decide which samples come, and in which batches."""
    weights = torch.tensor([1.0 + number % 3 for number in range(NUM_SAMPLES)], dtype=torch.float64)
    return {
        "in order": {},
        "subset": {},
        "drop_last": {"drop_last": True},
        "sampler": {"sampler": WeightedRandomSampler(weights, 20, generator=torch.Generator().manual_seed(3))},
        "batch sampler": {"batch_size": 1, "batch_sampler": BatchSampler(range(30, 3, -2), 4, drop_last=False)},
    }


def test_faithful_leaves_what_could_be_seen_to_torchs_workers(root: Path) -> None:
    dataset = folders.ImageFolder(root, v1.Compose([v1.CenterCrop(24), v1.ToTensor()]))
    faithful = dp.from_torch(theirs(dataset), faithful=True, device="cpu")
    assert "left to torch's workers: faithful=True leaves" in str(dp.explain(faithful))
    assert same(copies(faithful), copies(theirs(dataset)))


@pytest.mark.parametrize("case", ["in order", "drop_last", "sampler", "batch sampler", "subset"])
@pytest.mark.parametrize("instead", ["data", "cache"])
def test_converted_data_and_a_cache_change_no_sample(case: str, instead: str, root: Path, converted: Path) -> None:
    folder: Any = folders.ImageFolder(root, transform=CENTRE)
    folder = Subset(folder, [*range(20, 3, -3), 36, -1]) if case == "subset" else folder
    options: dict[str, Any] = {"data": converted if instead == "data" else dp.Images(folder, cache="ram")}
    ours = dp.from_torch(theirs(folder, **orders(folder)[case]), device="cpu", **options)
    plain = dp.from_torch(theirs(folder, **orders(folder)[case]), device="cpu")
    pairs = list(zip(ours, plain, strict=True))
    assert pairs
    for (images, labels), (other_images, other_labels) in pairs:
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def test_data_that_is_another_is_refused(root: Path, converted: Path, tmp_path: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    other = convert(make_folder(tmp_path / "set", num=12), tmp_path / "other")
    with pytest.raises(dp.errors.OptionError, match=r"data=.*: has 12 samples, the dataset 37; convert the folder again: "):
        dp.from_torch(theirs(folder), data=other)
    folder.samples[:2] = folder.samples[1::-1]
    with pytest.raises(dp.errors.OptionError, match=r"sample 0 was made of .*, but the dataset has .*; convert"):
        dp.from_torch(theirs(folder), data=converted)
    with pytest.raises(
        dp.errors.OptionError, match=r"one folder that torchvision reads.*, and this is a ConcatDataset; read it in"
    ):
        dp.from_torch(theirs(ConcatDataset([folder, folder])), data=converted)
    with pytest.raises(dp.errors.OptionError, match=r"data=.*: torch's workers make the samples"):
        dp.from_torch(theirs(Numbers()), data=converted)


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data.repeat(2), "is a mixture; the torch loader decides"),
    (lambda data: dp.Images(data, fields=["image"]), r"has fields=\('image',\); the torch loader decides"),
])  # fmt: skip
def test_data_that_says_more_than_the_torch_loader_is_refused(root: Path, change: Any, said: str) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    with pytest.raises(dp.errors.OptionError, match=said):
        dp.from_torch(theirs(folder), data=change(dp.Images(folder)))


def test_a_loader_applies_the_transform_of_a_dataset_unless_it_has_one(root: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    for data in (folder, dp.Images(folder), dp.Images(folder).select(range(8))):
        images, _ = next(iter(dp.DataLoader(data, 4)))
        assert images.shape[2:] == (24, 24)
    resized, _ = next(iter(dp.DataLoader(dp.Images(folder), 4, transform=[T.Resize((9, 8))])))
    assert resized.shape[2:] == (9, 8)
    with pytest.raises(dp.errors.OptionError, match="dataset has a transform of its own"):
        dp.DataLoader(folder, 4, transform=[T.Resize((9, 8))])
    again = dp.DataLoader(dp.DataLoader(folder, 4).dataset, 4, transform=[T.Resize((9, 8))])
    assert next(iter(again))[0].shape[2:] == (9, 8)


# -- seen through -----------------------------------------------------------------------------------


def test_a_folder_is_seen_through(root: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    ours = dp.from_torch(theirs(folder))
    assert isinstance(ours, dp.DataLoader)
    assert len(ours) == len(theirs(folder)) == 8
    images = torch.cat([images for images, _ in ours])
    labels = torch.cat([labels for _, labels in ours])
    assert labels.tolist() == folder.targets
    expected = torch.cat([images for images, _ in dp.DataLoader(root, batch_size=5, transform=CENTRE)])
    assert torch.equal(images, expected)
    assert (ours.dataset.classes, ours.dataset.class_to_idx) == (folder.classes, folder.class_to_idx)
    assert torch.equal(torch.cat([images for images, _ in pickle.loads(pickle.dumps(ours))]), images)


def test_the_order_of_the_dataset_counts_not_that_of_the_folder(root: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    folder.samples = folder.samples[::-3]
    labels = torch.cat([labels for _, labels in dp.from_torch(theirs(folder))])
    assert labels.tolist() == [label for _, label in folder.samples]


@pytest.mark.parametrize("part", ["subset", "concat", "split", "subset of a concat"])
def test_parts_and_sums_are_seen_through(root: Path, part: str) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    made: Any = {
        "subset": lambda: Subset(folder, [3, 36, -1, 0, 3]),
        "concat": lambda: ConcatDataset([folder, Subset(folder, [5, 1])]),
        "split": lambda: torch.utils.data.random_split(folder, [30, 7], torch.Generator().manual_seed(2))[1],
        "subset of a concat": lambda: Subset(ConcatDataset([folder, folder]), [2, 40, 73]),
    }[part]()
    plain = folders.ImageFolder(root)
    ours = dp.from_torch(theirs(made, batch_size=4))
    assert isinstance(ours, dp.DataLoader)
    labels = torch.cat([labels for _, labels in ours])
    folder.transform = None
    assert labels.tolist() == [label for _, label in (made[place] for place in range(len(made)))]
    assert len(plain) == NUM_SAMPLES


def test_target_transforms_relabel(root: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE, target_transform=[10, 9, 8].__getitem__)
    ours = dp.from_torch(theirs(folder))
    assert isinstance(ours, dp.DataLoader)
    assert torch.cat([labels for _, labels in ours]).tolist() == [10 - label for label in folder.targets]


def own_getitem(root: Path) -> Any:
    kind = type("Mine", (folders.ImageFolder,), {"__getitem__": lambda self, place: (torch.zeros(3), place)})
    return kind(root)


def other_loader(root: Path) -> Any:
    return folders.DatasetFolder(root, loader=lambda path: np.zeros(3, np.float32), extensions=(".jpg",))


def odd_targets(root: Path) -> Any:
    to_tensor = importlib.import_module("torchvision.transforms.v2").PILToTensor()
    crop = importlib.import_module("torchvision.transforms.v2").CenterCrop(24)
    return folders.ImageFolder(root, transform=lambda image: to_tensor(crop(image)), target_transform=lambda label: [label, 1])


@pytest.mark.parametrize(
    ("make", "reason"),
    [(own_getitem, "__getitem__"), (other_loader, "not with torchvision's loader"), (odd_targets, "custom Python code")],
)
def test_what_is_not_torchvisions_own_is_left_to_torch(
    root: Path, make: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = make(root)
    ours = dp.from_torch(theirs(dataset))
    assert not isinstance(ours, dp.DataLoader)
    for one, other in zip(ours, theirs(dataset), strict=True):
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one[:1], other[:1], strict=True))
    print(dp.explain(ours))
    assert reason in capsys.readouterr().out


def test_a_dataset_goes_into_our_loader_directly(root: Path) -> None:
    folder = folders.ImageFolder(root, transform=CENTRE)
    images, labels = next(iter(dp.DataLoader(folder, batch_size=7)))
    assert images.shape == (7, 3, 24, 24)
    assert labels.tolist() == folder.targets[:7]
    assert next(iter(dp.DataLoader(folders.ImageFolder(root), batch_size=2, transform=CENTRE)))[0].shape == (2, 3, 24, 24)
    with pytest.raises(dp.errors.OptionError, match=r"dataset has a transform of its own, and transform= is given too"):
        dp.DataLoader(folder, transform=CROP)
    with pytest.raises(dp.errors.OptionError, match=r"Numbers is custom Python code.*from_torch\(torch.utils.data.DataLoader"):
        dp.DataLoader(Numbers())


# -- samplers ---------------------------------------------------------------------------------------

SAMPLINGS: dict[str, Any] = {
    "in order": lambda data: {},
    "drop_last": lambda data: {"drop_last": True},
    "sequential sampler": lambda data: {"sampler": SequentialSampler(data)},
    "a list": lambda data: {"sampler": [5, 3, 3, 22, 0, 1]},
    "weighted": lambda data: {"sampler": WeightedRandomSampler([1.0] * 20, 17, generator=torch.Generator().manual_seed(4))},
    "distributed": lambda data: {"sampler": DistributedSampler(data, num_replicas=3, rank=1, seed=5)},
    "distributed, drop_last": lambda data: {
        "sampler": DistributedSampler(data, num_replicas=2, rank=0, shuffle=False, drop_last=True), "drop_last": True,
    },
    "random with replacement": lambda data: {
        "sampler": RandomSampler(data, replacement=True, num_samples=12, generator=torch.Generator().manual_seed(1)),
    },
    "batch sampler": lambda data: {"batch_sampler": [[1, 2], [3], [4, 5, 6]], "batch_size": 1},
    "their batch sampler": lambda data: {
        "batch_sampler": BatchSampler(SequentialSampler(data), 7, drop_last=False), "batch_size": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("seen", [True, False], ids=["seen through", "left to torch"])
def test_the_sampler_goes_on_deciding(root: Path, name: str, seen: bool) -> None:
    data: Any = folders.ImageFolder(root, transform=CENTRE) if seen else Numbers()
    expected = positions_of(theirs(data, **SAMPLINGS[name](data)))
    loader = theirs(data, **SAMPLINGS[name](data))
    ours = dp.from_torch(loader)
    assert len(ours) == len(loader) == len(expected)
    if seen:
        found = [labels.tolist() for _, labels in ours]
        assert found == [[data.targets[position] for position in batch] for batch in expected]
    else:
        assert [numbers.tolist() for _, numbers in ours] == expected


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffle_is_ours_and_resumes(num_workers: int) -> None:
    ours = dp.from_torch(theirs(Numbers(), shuffle=True, num_workers=num_workers), seed=3)
    epochs = [[numbers.tolist() for _, numbers in ours] for _ in range(2)]
    assert sorted(sum(epochs[0], [])) == list(range(23))  # noqa: RUF017
    assert epochs[0] != epochs[1]
    again = dp.from_torch(theirs(Numbers(), shuffle=True, num_workers=num_workers), seed=3)
    steps = iter(again)
    assert [next(steps)[1].tolist() for _ in range(3)] == epochs[0][:3]
    state = again.state_dict()
    third = dp.from_torch(theirs(Numbers(), shuffle=True, num_workers=num_workers), seed=3)
    third.load_state_dict(state)
    assert [numbers.tolist() for _, numbers in third] == epochs[0][3:]
    assert [numbers.tolist() for _, numbers in third] == epochs[1]
    third.set_epoch(0)
    assert [numbers.tolist() for _, numbers in third] == epochs[0]
    with pytest.raises(dp.errors.StateError, match="seed=3, this loader has 4"):
        dp.from_torch(theirs(Numbers(), shuffle=True), seed=4).load_state_dict(state)


@pytest.mark.parametrize("own_batches", [True, False])
def test_a_sampler_that_does_not_repeat_itself_is_not_resumed(own_batches: bool) -> None:
    drawn = WeightedRandomSampler([1.0] * 23, 17, generator=torch.Generator().manual_seed(4))
    arguments: dict[str, Any] = {"batch_sampler": BatchSampler(drawn, 4, False)} if own_batches else {"sampler": drawn}
    ours = dp.from_torch(torch.utils.data.DataLoader(Numbers(), **arguments))
    steps = iter(ours)
    next(steps), next(steps)
    again = dp.from_torch(torch.utils.data.DataLoader(Numbers(), **arguments))
    again.load_state_dict(ours.state_dict())
    with pytest.raises(dp.errors.StateError, match="does not give the positions that it gave"):
        next(iter(again))


@pytest.mark.parametrize("transform", [[], [torch.nn.Identity()], [torch.clone]], ids=["ours", "nothing", "torch's workers"])
def test_each_place_of_a_repeated_sample_is_cropped_anew(root: Path, transform: list[Any]) -> None:
    chain = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor(), *transform])
    images, _ = next(iter(dp.from_torch(torch.utils.data.DataLoader(Subset(folders.ImageFolder(root, chain), [0] * 6), 6))))
    assert len({image.numpy().tobytes() for image in images}) == 6


@pytest.mark.parametrize("seen", [True, False], ids=["seen through", "left to torch"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_the_samples_where_asked(root: Path, seen: bool, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a DistributedSampler would have it: each sample once, but for those that fill the last step; all of them else."""
    data: Any = folders.ImageFolder(root, transform=CENTRE) if seen else Numbers()
    targets = data.targets if seen else list(range(23))
    taken: dict[bool, list[list[int]]] = {True: [], False: []}
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        for shares in (True, False):
            ours = dp.from_torch(theirs(data, shuffle=shuffle), share_among_ranks=shares, seed=0)
            taken[shares].append([label for _, labels in ours for label in labels.tolist()])
    together = [label for part in taken[True] for label in part]
    assert len(together) == len(targets) + len(targets) % 2
    assert sorted(set(together)) == sorted(set(targets))
    assert [sorted(part) for part in taken[False]] == [sorted(targets)] * 2
    with pytest.raises(dp.errors.OptionError, match="a list decides the order, for its rank alone"):
        dp.from_torch(theirs(data, sampler=[1, 2]), share_among_ranks=True)
    with pytest.raises(dp.errors.OptionError, match="something is making a torch DataLoader of it"):
        list(dp.from_torch(theirs(data)).batch_sampler)


def test_epochs_reach_a_distributed_sampler() -> None:
    def labels(loader: Any) -> list[list[int]]:
        return [numbers.tolist() for _, numbers in loader]

    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=7)
    ours = dp.from_torch(theirs(Numbers(), sampler=sampler))
    ours.set_epoch(4)
    reference = DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=7)
    reference.set_epoch(4)
    assert labels(ours) == positions_of(theirs(Numbers(), sampler=reference))


def test_a_state_of_another_epoch_of_a_distributed_sampler_asks_for_set_epoch() -> None:
    def loader() -> Any:
        return dp.from_torch(theirs(Numbers(), sampler=DistributedSampler(Numbers(), num_replicas=1, rank=0)))

    saved = loader()
    saved.set_epoch(2)
    steps = iter(saved)
    next(steps)
    resumed = loader()
    resumed.load_state_dict(saved.state_dict())
    with pytest.raises(dp.errors.StateError, match=r"as DistributedSampler's, call loader\.set_epoch\(2\) before this pass"):
        list(resumed)
    resumed = loader()
    resumed.load_state_dict(saved.state_dict())
    resumed.set_epoch(2)
    assert [numbers.tolist() for _, numbers in resumed] == [numbers.tolist() for _, numbers in steps]


# -- left to torch ----------------------------------------------------------------------------------


def test_collate_fn_and_worker_init_fn_are_torchs_business() -> None:
    ours = dp.from_torch(theirs(Numbers(), collate_fn=lambda samples: {"n": [number for _, number in samples]}))
    assert next(iter(ours)) == {"n": [0, 1, 2, 3, 4]}
    assert ours.batch_size == 5
    assert isinstance(ours.dataset, Numbers)


def test_streams_pass_through() -> None:
    ours = dp.from_torch(theirs(Stream(), batch_size=4))
    assert [batch.tolist() for batch in ours] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_errors_of_the_dataset_come_through() -> None:
    class Failing(Numbers):
        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            if number == 7:
                raise KeyError("seven")
            return super().__getitem__(number)

    steps = iter(dp.from_torch(theirs(Failing())))
    next(steps)
    with pytest.raises(KeyError, match="seven"):
        next(steps)


def test_what_is_no_loader_is_refused(root: Path) -> None:
    for wrong in (folders.ImageFolder(root), [1, 2], "path"):
        with pytest.raises(dp.errors.OptionError, match=r"takes a torch.utils.data.DataLoader, got a .*prefetch"):
            dp.from_torch(wrong)  # type: ignore[arg-type]
    with pytest.raises(dp.errors.OptionError, match=r"data='x': torch's workers make the samples"):
        dp.from_torch(theirs(Numbers()), data="x")
    ours = dp.from_torch(theirs(Numbers()))
    assert dp.from_torch(ours) is ours  # type: ignore[arg-type]


def test_bad_samples_are_ours_to_name(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / "set" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if number == 4 else jpeg(number))
    folder = folders.ImageFolder(tmp_path / "set", transform=CENTRE)
    with pytest.raises(dp.errors.DecodeError, match=r"4\.jpg: sample 4: not an image"):
        list(dp.from_torch(theirs(folder)))
    assert sum(len(images) for images, _ in dp.from_torch(theirs(folder), on_error="skip")) == 5


# -- Hugging Face -----------------------------------------------------------------------------------


def test_a_table_of_hugging_faces_is_seen_through(root: Path, tmp_path: Path) -> None:
    import datasets

    save_datasets(root, tmp_path / "saved")
    table = datasets.load_from_disk(str(tmp_path / "saved"))
    expected = {
        int(n): image.clone() for n, image in _by_number(dp.DataLoader(root, batch_size=5, transform=CENTRE, output="dict"))
    }
    for positions, chosen in ((list(range(37)), table), ([30, 2, 2, 9], table.select([30, 2, 2, 9]))):
        loader = dp.DataLoader(chosen, batch_size=5, transform=CENTRE)
        assert loader.dataset.classes == ["ant", "bee", "cat"]
        assert torch.cat([labels for _, labels in loader]).tolist() == chosen["label"]
        images = torch.cat([images for images, _ in loader])
        assert all(torch.equal(image, expected[number]) for image, number in zip(images, positions, strict=True))
    shuffled = table.shuffle(seed=3)
    assert (
        torch.cat([labels for _, labels in dp.DataLoader(shuffled, batch_size=5, transform=CENTRE)]).tolist() == shuffled["label"]
    )


def _by_number(loader: dp.DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for batch in loader:
        yield from zip(batch["id"], batch["image"], strict=True)


def test_a_table_of_paths_is_seen_through(root: Path) -> None:
    import datasets

    paths = [str(path) for path in listing(root)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"])})
    names = ("ant", "bee", "cat")
    labels = [names.index(Path(path).parent.name) for path in paths]
    table = datasets.Dataset.from_dict({"image": paths, "label": labels}, features=features)
    loader = dp.DataLoader(table, batch_size=5, transform=CENTRE)
    assert torch.cat([labels for _, labels in loader]).tolist() == labels
    expected = torch.cat([images for images, _ in dp.DataLoader(root, batch_size=5, transform=CENTRE)])
    assert torch.equal(torch.cat([images for images, _ in loader]), expected)


def test_tables_that_make_their_samples_themselves(root: Path) -> None:
    table = hugging_face_dataset(root)
    with pytest.raises(dp.errors.OptionError, match=r"is in memory; save_to_disk\(\) it"):
        dp.DataLoader(table)
    with pytest.raises(dp.errors.OptionError, match=r"has a transform of its own \(set_transform\)"):
        dp.DataLoader(table.with_transform(lambda rows: rows))
    ours = dp.from_torch(theirs(table, collate_fn=lambda rows: [row["label"] for row in rows]))
    assert sum(ours, []) == table["label"]  # noqa: RUF017
