"""Attributes that scripts read and assign: what torch refuses is refused, what torch takes takes effect with the next pass."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import pretend_gpus
from fixtures import make_folder
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T

torchvision_v2()
folders: Any = importlib.import_module("torchvision.datasets")
v1: Any = importlib.import_module("torchvision.transforms")
FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class Numbers(Dataset[int]):
    def __init__(self, num: int = 12) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> int:
        return number


class Stateful(Numbers):
    def state_dict(self) -> dict[str, int]:
        return {"num": self.num}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("attributes") / "set", size=(40, 48))


def folder(root: Path, *further: Any) -> Any:
    return folders.ImageFolder(root, v1.Compose([v1.CenterCrop(24), v1.ToTensor(), *further]))


def told(loader: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


def loaders(root: Path) -> dict[str, Any]:
    return {
        "torch": DataLoader(Numbers(), 4),
        "left to torch": dp.from_torch(DataLoader(Numbers(), 4)),
        "seen through": dp.from_torch(DataLoader(folder(root), 4)),
        "ours": dp.DataLoader(root, 4, transform=[T.CenterCrop(24)]),
        "prefetched": dp.prefetch(dp.from_torch(DataLoader(Numbers(), 4)), "cpu"),
    }


@pytest.mark.parametrize("kind", ["torch", "left to torch", "seen through", "ours", "prefetched"])
@pytest.mark.parametrize("name", FIXED)
def test_what_torch_refuses_is_refused(root: Path, kind: str, name: str) -> None:
    loader = loaders(root)[kind]
    before, length = getattr(loader, name), len(loader)
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, 5)
    assert type(getattr(loader, name)) is type(before)
    assert len(loader) == length


class Batches:
    """A script's own batch sampler, which it sets up through the loader."""

    batch_size = 3

    def __init__(self) -> None:
        self.first = 0
        self.sampler = DistributedSampler(Numbers(), 1, 0)

    def set_epoch(self, epoch: int) -> None:
        self.first = epoch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[list[int]]:
        yield [self.first, self.first + 1]


@pytest.mark.parametrize("make", [lambda one: one, lambda one: dp.prefetch(one, "cpu")], ids=["taken over", "prefetched"])
def test_a_scripts_own_batch_sampler_is_the_loaders(make: Callable[[Any], Any]) -> None:
    own = Batches()
    loader = make(dp.from_torch(DataLoader(Numbers(), batch_sampler=own)))
    assert loader.batch_sampler is own
    loader.batch_sampler.set_epoch(3)
    loader.batch_sampler.sampler.set_epoch(3)
    assert told(loader) == [[3, 4]]


@pytest.mark.parametrize("kind", ["left to torch", "prefetched"])
def test_what_torch_takes_takes_effect_with_the_next_pass(root: Path, kind: str) -> None:
    loader = loaders(root)[kind]
    iterator = iter(loader)
    first = next(iterator).tolist()
    loader.collate_fn = sum
    assert [first, *told(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], "the pass that is open goes on as it began"
    assert told(loader) == [6, 22, 38]
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert told(loader) == [6, 22, 38]
    again = pickle.loads(pickle.dumps(loader))
    assert (again.num_workers, again.collate_fn) == (1, sum)
    assert told(again) == [6, 22, 38]
    with pytest.raises(ValueError, match="in_order=False is not available"):
        loader.in_order = False


def test_ours_takes_them_too(root: Path) -> None:
    loader = dp.DataLoader(root, 4, transform=[T.CenterCrop(24)], num_workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.collate_fn = len
    assert isinstance(next(iterator), tuple)
    assert told(loader) == [4] * 9 + [1]
    seen: list[int] = []
    loader.num_workers, loader.worker_init_fn, loader.timeout, loader.prefetch_factor = 3, seen.append, 60, 4
    assert told(loader) == [4] * 9 + [1]
    assert sorted(seen) == [0, 1, 2]
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor) == (3, 60, 4)
    loader.worker_init_fn = None
    loader.pin_memory, loader.in_order, loader.multiprocessing_context, loader.pin_memory_device = True, True, "spawn", "cuda"
    assert told(loader) == [4] * 9 + [1]


@pytest.mark.parametrize("name", ["generator", "transform", "seed", "shuffle", "on_error", "device", "tail", "output"])
def test_arguments_that_are_read_once_are_refused(root: Path, name: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=f"{name} cannot be set on a loader that exists"):
        setattr(loaders(root)["ours"], name, None)


def test_what_does_not_fit_changes_nothing(root: Path) -> None:
    loader = dp.DataLoader(root, 4, transform=[T.CenterCrop(24)], num_workers=2)
    for name, value in (("num_workers", -1), ("timeout", -1), ("collate_fn", 3), ("prefetch_factor", 0)):
        before = getattr(loader, name)
        with pytest.raises(dp.errors.OptionError, match=name):
            setattr(loader, name, value)
        assert getattr(loader, name) == before
    assert len(list(loader)) == 10


def test_an_attribute_of_the_scripts_own_is_its_own(root: Path) -> None:
    for loader in loaders(root).values():
        loader.note = "train"
        assert loader.note == "train"


def test_attributes_that_scripts_read(root: Path) -> None:
    for loader in loaders(root).values():
        assert loader.in_order is True
        assert loader.multiprocessing_context is None
        assert loader.pin_memory_device == ""


def test_a_dataset_is_read_as_torchvisions(root: Path) -> None:
    theirs = folder(root)
    for taken in (dp.from_torch(DataLoader(theirs, 4)).dataset, dp.DataLoader(theirs, 4).dataset):
        assert taken.samples == taken.imgs == theirs.samples
        assert (taken.root, taken.transform) == (str(root), theirs.transform)
        with pytest.raises(dp.errors.OptionError, match="transform is fixed once a loader has it"):
            taken.transform = None
    ours = dp.DataLoader(root, 4, transform=[T.CenterCrop(24)]).dataset
    assert [(str(Path(path)), label) for path, label in ours.samples] == theirs.samples
    assert (ours.root, ours.transform) == (str(root), None)
    assert ours.select([3, 1]).samples == [ours.samples[3], ours.samples[1]]


@pytest.mark.parametrize("further", [[], [torch.clone]], ids=["ours", "torch's workers"])
def test_a_dataset_changed_after_the_takeover_is_not_passed_over(root: Path, further: list[Any]) -> None:
    def edit_list(dataset: Any) -> None:
        dataset.transform.transforms.insert(0, v1.RandomHorizontalFlip(1.0))

    def edit_operation(dataset: Any) -> None:
        dataset.transform.transforms[0].size = (16, 16)

    def replace(dataset: Any) -> None:
        dataset.transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])

    def shorten(dataset: Any) -> None:
        dataset.samples = dataset.samples[:9]

    for change in (edit_list, edit_operation, replace, shorten):
        dataset = folder(root, *further)
        loader = dp.from_torch(DataLoader(Subset(dataset, range(20)) if change is not shorten else dataset, 4))
        assert len(list(loader)) > 2
        change(dataset)
        with pytest.raises(
            dp.errors.LifecycleError, match=r"when the loader was made and .* make the loader .* after the change"
        ):
            next(iter(loader))


def test_a_dataset_of_the_users_may_change_its_length() -> None:
    dataset = Numbers(6)
    in_order, shuffled = (dp.from_torch(DataLoader(dataset, 4, shuffle=shuffle)) for shuffle in (False, True))
    assert (len(in_order), len(shuffled)) == (2, 2)
    list(shuffled)
    dataset.num = 9
    assert (len(in_order), len(shuffled)) == (3, 3)
    assert told(in_order) == told(DataLoader(dataset, 4))
    assert sorted(sum(told(shuffled), [])) == list(range(9))  # noqa: RUF017


def test_what_a_state_does_not_hold_is_said() -> None:
    with pytest.warns(UserWarning, match="Stateful has a state_dict of its own"):
        loader: Any = dp.from_torch(DataLoader(Stateful(), 4), faithful=True)
    next(iter(loader))
    with pytest.warns(UserWarning, match="the random state is not: what Stateful draws"):
        loader.load_state_dict(loader.state_dict())


def test_samples_with_seeds_of_their_own_are_resumed_exactly_without_a_warning() -> None:
    loader: Any = dp.from_torch(DataLoader(Numbers(), 4))
    next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(loader.state_dict())


def test_torchs_warning_about_too_many_workers_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        theirs = DataLoader(Numbers(), 4, num_workers=2)
        dp.from_torch(theirs)
    assert ["suggested max number of worker" in str(one.message) for one in heard] == [True]


# -- attributes that a script set on torch's loader ----------------------------------------------------


class Graphs(DataLoader[Any]):
    """A subclass with an attribute of its own, as those of other libraries."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        self.follow = ["x"]
        super().__init__(*arguments, **others)


def timms(*arguments: Any, **others: Any) -> Any:
    return pytest.importorskip("timm.data.loader").MultiEpochsDataLoader(*arguments, **others)


RESULTS: dict[str, Any] = {
    "seen through": lambda root: DataLoader(folder(root), 4),
    "torch's workers": lambda root: DataLoader(folder(root, torch.clone), 4),
    "left to torch": lambda root: DataLoader(Numbers(), 4),
    "rows": lambda root: DataLoader(torch.utils.data.TensorDataset(torch.arange(12)), 4),
    "single samples": lambda root: DataLoader(Numbers(), None),
    "a subclass": lambda root: Graphs(Numbers(), 4),
    "a subclass, seen through": lambda root: Graphs(folder(root), 4),
    "timm's": lambda root: timms(Numbers(), 4),
    "timm's, seen through": lambda root: timms(folder(root), 4),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RESULTS)
def test_attributes_of_a_script_are_carried_over(root: Path, name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As open_clip's training reads num_batches and num_samples."""
    theirs = RESULTS[name](root)
    theirs.num_batches, theirs.num_samples, theirs._note = 3, 12, ["private"]
    if device == "cuda":
        pretend_gpus(monkeypatch, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours: Any = dp.from_torch(theirs, device=device)
    assert isinstance(ours, dp.DataLoader) is ("seen through" in name)
    assert (ours.num_batches, ours.num_samples, ours._note) == (3, 12, ["private"])
    if isinstance(theirs, Graphs):
        assert ours.follow == ["x"]
    ours.num_batches = 5
    ours.later, ours._later = "after", "private too"
    for loader in (ours, pickle.loads(pickle.dumps(ours)), copy.copy(ours)):
        assert (loader.num_batches, loader.num_samples, loader._note) == (5, 12, ["private"])
        assert (loader.later, loader._later) == ("after", "private too")
    assert not hasattr(ours, "never set")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["seen through", "left to torch"])
def test_datapipes_own_attributes_stay_and_a_clash_is_named(
    root: Path, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda":
        pretend_gpus(monkeypatch, 1)
    theirs: Any = RESULTS[name](root)
    theirs.seed, theirs.set_epoch, theirs._epochs, theirs.num_batches = "mine", "mine", "mine", 3
    expected: Any = dp.from_torch(RESULTS[name](root), device=device, seed=4)
    with pytest.warns(UserWarning, match="the attributes? .*'seed'.* that the script set .* has one of that name") as heard:
        ours: Any = dp.from_torch(theirs, device=device, seed=4)
    assert "'set_epoch'" in str(heard[0].message)
    assert heard[0].filename == __file__
    assert (ours.seed, ours.num_batches) == (expected.seed, 3)
    assert callable(ours.set_epoch)
    if device == "cpu":
        assert len(told(ours)) == len(told(expected))
    assert theirs.seed == "mine"


def test_a_changed_attribute_of_torchs_is_none_of_the_scripts() -> None:
    theirs = DataLoader(Numbers(), 4)
    theirs.collate_fn = sum
    list(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert told(dp.from_torch(theirs)) == [6, 22, 38]


def test_what_is_unchanged_is_the_object_and_on_a_gpu_it_says_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: Any = timms(Numbers(), None)
    assert dp.from_torch(theirs, device="cpu") is theirs
    assert "the loader is unchanged, and has no state to save" in str(dp.explain(theirs))
    pretend_gpus(monkeypatch, 1)
    single = DataLoader(Numbers(), None)
    before = dict(vars(single))
    ours: Any = dp.from_torch(single)
    assert vars(single) == before
    explained = str(dp.explain(ours))
    assert "unchanged" not in explained.splitlines()[0]
    assert "its batches are copied to cuda:0 ahead, and it has no state to save" in explained
