"""Hugging Face Accelerate with `datapipe.adapt.hosts.accelerate.prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures import make_folder
from host_ranks import in_a_process, needs, on_ranks

import datapipe as dp
from datapipe import transforms as T

needs("accelerate")
pytestmark = pytest.mark.nightly

NUM = 1003


@pytest.fixture(scope="session")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,003 small JPEGs: no multiple of anything."""
    return make_folder(tmp_path_factory.mktemp("hosts") / "thousand", num=NUM, size=(12, 16))


def steps_of(path: Path, batch_size: int, epochs: int = 2, **arguments: Any) -> list[list[int]]:
    """The ids of each step, as one process gives them with batches of a whole step."""
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 0} | arguments
    loader = dp.DataLoader(path, batch_size, output="dict", transform=[T.RandomResizedCrop(8)], **options)
    return [batch["id"].tolist() for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("tail", ["pad", "mask"])
def test_what_is_gathered_is_each_sample_once(thousand: Path, tail: str) -> None:
    """35 steps of 4 x 7 and one of 23, padded to 24 or 28: exactly the order of the epoch, on each rank."""
    expected = steps_of(thousand, 28)
    assert len(expected) == 72
    assert sorted(sample for step in expected[:36] for sample in step) == list(range(NUM))
    for steps in on_ranks("accelerate_runs:gathered", 4, thousand, {"tail": tail}):
        assert steps == expected


def test_without_the_adapter_padding_stays(thousand: Path) -> None:
    """Which is why there is one: Accelerate hands other loaders than torch's back as they are."""
    for steps in on_ranks("accelerate_runs:gathered", 2, thousand, {"batch_size": 14}, False):
        assert sum(map(len, steps)) == 2 * (NUM + 1)


def test_a_dropped_tail_has_nothing_to_cut(photos: Path) -> None:
    for steps in on_ranks("accelerate_runs:gathered", 2, photos, {"drop_last": True}):
        assert steps == steps_of(photos, 14, drop_last=True)


def test_a_weighted_sampler_is_cut_by_its_own_length(photos: Path) -> None:
    sampler = dp.WeightedSampler([1.0] * 50, num_samples=31)
    for steps in on_ranks("accelerate_runs:gathered", 2, photos, {"sampler": sampler, "shuffle": None}):
        assert [len(step) for step in steps] == [14, 14, 3] * 2


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_last_step_of_an_epoch_ends_an_accumulation(photos: Path, world_size: int) -> None:
    """Nine steps in groups of four: the ninth is not carried over."""
    arguments = {"batch_size": 6 // world_size}
    group = [False, False, False, True]
    for epochs in on_ranks("accelerate_runs:steps_that_synchronise", world_size, photos, arguments, True):
        assert epochs == [[*group, *group, True]] * 2
    for epochs in on_ranks("accelerate_runs:steps_that_synchronise", world_size, photos, arguments, False):
        assert epochs[0] == [*group, *group, False]


def test_a_saved_state_goes_on_exactly_on_as_many_ranks_as_one_likes(photos: Path, tmp_path: Path) -> None:
    (whole,) = on_ranks("accelerate_runs:stop_or_go_on", 1, photos, tmp_path / "none", {"batch_size": 8}, None)
    first = on_ranks("accelerate_runs:stop_or_go_on", 2, photos, tmp_path / "state", {"batch_size": 4}, 3)[0]
    rest = in_a_process("accelerate_runs:stop_or_go_on", photos, tmp_path / "state", {"batch_size": 8}, None)
    assert first["ids"] + rest["ids"] == whole["ids"] == steps_of(photos, 8)
    assert first["sums"][:3] + rest["sums"] == pytest.approx(whole["sums"], abs=0.05)
    assert first["ends"] + rest["ends"] == whole["ends"] == [False] * 6 + [True] + [False] * 6 + [True]


def test_a_pass_that_is_left_is_forgotten(photos: Path) -> None:
    assert in_a_process("accelerate_runs:state_after_leaving_early", photos) == [True, None]


@pytest.mark.parametrize(("arguments", "options", "skips", "message"), [
    ({}, {"split_batches": True}, 0, "OptionError: the accelerator has split_batches=True, but each rank"),
    ({}, {"dispatch_batches": True}, 0, "OptionError: the accelerator has dispatch_batches=True"),
    ({}, {}, 2, "OptionError: positions were requested from the batch_sampler of a datapipe.DataLoader"),
])  # fmt: skip
def test_what_would_be_lost_is_refused(
    photos: Path, arguments: dict[str, Any], options: dict[str, Any], skips: int, message: str
) -> None:
    assert message in in_a_process("accelerate_runs:error_of", photos, arguments, options, skips)


def test_ranks_that_would_share_samples_are_refused(photos: Path) -> None:
    for found in on_ranks("accelerate_runs:error_of", 2, photos, {"ranks": (0, 1)}, {}):
        assert "OptionError: the loader's step covers 7 samples over all ranks, but batch_size x processes is 7 x 2" in found


def test_another_device_is_refused(photos: Path) -> None:
    message = in_a_process("accelerate_runs:error_on_another_device", photos)
    assert message.startswith("OptionError: the loader delivers batches on cpu, the accelerator computes on cuda:1; pass device=")
