"""`from_torch` over LeRobot's dataset gives the batches of LeRobot's code; where it cannot, that goes on, with the reason."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler

pytest.importorskip("av")

from lerobot_files import CAMERAS, LENGTHS, write_lerobot
from lerobot_stand_in import LeRobotDataset
from video_files import pictures

import datapipe as dp
from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.episode_data import write_episodes
from datapipe.adapt.episodes import FloatFrames
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.errors import LifecycleError

TOP, WRIST = CAMERAS
DELTAS = {TOP: [-0.2, 0.0, 0.1], WRIST: [0.0], "action": [0.0, 0.1, 0.2, 0.3], "observation.state": [-0.1, 0.0]}


@pytest.fixture(scope="module", params=["v3.0", "v2.1"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of two cameras. Not to be changed."""
    return write_lerobot(tmp_path_factory.mktemp("lerobot") / "data", request.param)


def assert_equal_batches(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        found = ours[name]
        if isinstance(values, torch.Tensor):
            assert (found.dtype, found.shape) == (values.dtype, values.shape), name
            assert torch.equal(found, values), name
            assert found.is_contiguous(), name
        else:
            assert found == values


@pytest.mark.daily(2)
@pytest.mark.parametrize("deltas", [None, DELTAS], ids=["now", "deltas"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_lerobots_own_code(root: Path, deltas: dict[str, list[float]] | None, num_workers: int) -> None:
    theirs = DataLoader(LeRobotDataset(root, delta_timestamps=deltas), 8, num_workers=num_workers)
    ours = dp.from_torch(theirs)
    assert isinstance(ours, dp.DataLoader)
    assert len(ours) == len(theirs)
    for made, expected in zip(ours, theirs, strict=True):
        assert_equal_batches(made, expected)
    said = str(dp.explain(ours))
    assert "LeRobotDataset: datapipe reads its videos and tables; equal to LeRobot's own code in " in said


def test_some_episodes_shuffled_without_the_last_batch(root: Path) -> None:
    dataset = LeRobotDataset(root, episodes=[0, 2], delta_timestamps=DELTAS)
    theirs = DataLoader(dataset, 8, shuffle=True, drop_last=True)
    ours = dp.from_torch(theirs, seed=0)
    assert isinstance(ours, dp.DataLoader)
    assert len(ours) == len(theirs) == (LENGTHS[0] + LENGTHS[2]) // 8
    places = {int(dataset[position]["index"]): position for position in range(len(dataset))}
    seen: list[int] = []
    for batch in ours:
        indices = batch["index"].tolist()
        seen += indices
        assert_equal_batches(batch, torch.utils.data.default_collate([dataset[places[index]] for index in indices]))
    assert len({*seen}) == len(seen) == 8 * len(ours)
    assert seen != sorted(seen)


def test_frames_may_stay_uint8(root: Path) -> None:
    dataset = LeRobotDataset(root, return_uint8=True)
    dataset.reader = dataset
    ours = dp.from_torch(DataLoader(dataset, 5))
    assert isinstance(ours, dp.DataLoader)
    assert_equal_batches(next(iter(ours)), next(iter(DataLoader(dataset, 5))))


@pytest.mark.daily(1)
def test_a_state_resumes_in_mid_epoch(root: Path) -> None:
    def loader() -> Any:
        return dp.from_torch(DataLoader(LeRobotDataset(root), 8, shuffle=True), seed=1)

    alone = [batch["index"].tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    other = loader()
    other.load_state_dict(first.state_dict())
    assert [batch["index"].tolist() for batch in other] == alone[3:]


def test_the_trainings_random_numbers_are_left_alone(root: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    dp.from_torch(DataLoader(LeRobotDataset(root), 8, num_workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def without_a_row(dataset: Any) -> Any:
    dataset._rows[0] = None
    return dataset


class Doubled(LeRobotDataset):
    def __getitem__(self, position: int) -> dict[str, Any]:
        return {name: value * 2 for name, value in super().__getitem__(position).items()}


def with_another_pixel(dataset: Any) -> Any:
    dataset._frames[WRIST][0][0, 0] ^= 1
    return dataset


def with_another_field(dataset: Any) -> Any:
    for row in dataset._rows:
        row["subtask"] = 1
    return dataset


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda root: DataLoader(Doubled(root), 4), "Doubled is a subclass of LeRobotDataset"),
        (lambda root: DataLoader(Subset(LeRobotDataset(root), [1, 2, 3]), 4), "a Subset of a LeRobotDataset"),
        (lambda root: DataLoader(LeRobotDataset(root, image_transforms=torch.neg), 4), "its image_transforms are called with"),
        (lambda root: DataLoader(LeRobotDataset(root), 4, collate_fn=list), "its collate_fn is custom Python code"),
        (lambda root: DataLoader(LeRobotDataset(root), 4, sampler=SubsetRandomSampler([3, 4])), "a SubsetRandomSampler decides"),
        (lambda root: DataLoader(LeRobotDataset(root, episodes=[2, 0]), 4), "its episodes are not in ascending order"),
        (lambda root: DataLoader(LeRobotDataset(root, tolerance_s=0.05), 4), "its tolerance_s is 0.05"),
        (
            lambda root: DataLoader(with_another_pixel(LeRobotDataset(root)), 4),
            f"{WRIST} of samples that were made both ways differ",
        ),
        (lambda root: DataLoader(with_another_field(LeRobotDataset(root)), 4), "other fields than datapipe's clips: subtask"),
        (
            lambda root: DataLoader(without_a_row(LeRobotDataset(root)), 4),
            "its own code failed for a sample that was",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_datapipe_would_give_otherwise_goes_on_as_it_is(root: Path, loader: Callable[[Path], Any], reason: str) -> None:
    theirs = loader(root)
    ours = dp.from_torch(theirs)
    assert isinstance(ours, TorchLoader)
    assert reason in str(dp.explain(ours))
    if isinstance(theirs.sampler, RandomSampler | SubsetRandomSampler) or theirs.collate_fn is list or "failed" in reason:
        return
    assert_equal_batches(next(iter(ours)), next(iter(theirs)))


def test_videos_that_are_not_there_leave_it_to_lerobot(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    dataset = LeRobotDataset(copy)
    shutil.rmtree(copy / "videos")
    assert "datapipe cannot read its files: " in str(dp.explain(dp.from_torch(DataLoader(dataset, 4))))


def test_faithful_leaves_the_samples_to_torchs_workers(root: Path) -> None:
    assert isinstance(dp.from_torch(DataLoader(LeRobotDataset(root), 4), faithful=True), TorchLoader)


def test_a_dataset_that_changes_afterwards_is_an_error(root: Path) -> None:
    dataset = LeRobotDataset(root)
    ours = dp.from_torch(DataLoader(dataset, 4))
    dataset.image_transforms = torch.neg
    with pytest.raises(LifecycleError, match="LeRobotDataset has changed"):
        next(iter(ours))


def test_frames_are_divided_as_lerobot_divides_them() -> None:
    frames = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(2, 3, 8, 16).transpose(0, 1)
    as_floats = pickle.loads(pickle.dumps(FloatFrames()))
    first, second = as_floats(frames), as_floats(frames + 1)
    assert torch.equal(first, (frames / 255.0).type(torch.float32))
    assert torch.equal(second, ((frames + 1) / 255.0).type(torch.float32))
    assert first.is_contiguous()
    place = first.data_ptr()
    del first
    assert as_floats(frames).data_ptr() == place


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="lerobot is not installed")
@pytest.mark.parametrize("episodes", [None, [0, 2]])
def test_batches_are_those_of_lerobot_itself(tmp_path: Path, episodes: list[int] | None) -> None:
    import_torchvision()  # whose compiled part need not fit this torch
    of_lerobot: Any = importlib.import_module("lerobot.datasets.lerobot_dataset")
    write_episodes(tmp_path / "data", [50, 37, 60], lambda number, num: pictures(num, 96, 64, seed=number))
    deltas = {TOP: [-2 / 30, 0.0], WRIST: [0.0], "action": [place / 30 for place in range(5)]}
    dataset = of_lerobot.LeRobotDataset("a/b", root=tmp_path / "data", episodes=episodes, delta_timestamps=deltas)
    theirs = DataLoader(dataset, 16, num_workers=1)
    ours = dp.from_torch(theirs)
    assert isinstance(ours, dp.DataLoader), dp.explain(ours)
    for made, expected in zip(ours, theirs, strict=True):
        assert_equal_batches(made, expected)
