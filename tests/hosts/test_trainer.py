"""Transformers' Trainer with `datapipe.adapt.hosts.trainer.LoaderMixin`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from host_ranks import exit_code_of, in_a_process, needs, on_ranks

import datapipe as dp
from datapipe import transforms as T

needs("transformers")

pytestmark = pytest.mark.nightly

NUM, BATCH, STEPS = 50, 6, 9


def train(path: Path, directory: Path, *arguments: Any) -> Any:
    return in_a_process("trainer_runs:train", path, directory, *arguments)


def expected_ids(path: Path, **arguments: Any) -> list[list[int]]:
    loader = dp.DataLoader(
        path, BATCH, shuffle=True, seed=3, num_workers=0, output="dict", transform=T.RandomResizedCrop(16), **arguments
    )
    return [batch["id"].tolist() for _ in range(2) for batch in loader]


def steps_of_killed(directory: Path) -> list[list[int]]:
    """What a killed run wrote down."""
    (log,) = directory.glob("steps-*.txt")
    return [[int(number) for number in line.partition(" sum ")[0].split()] for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An uninterrupted run of two epochs."""
    return train(shards, tmp_path_factory.mktemp("whole"), None, None, None, False, "plain")


def test_training_takes_the_loaders_own_batches(shards: Path, tmp_path: Path, whole: Any) -> None:
    assert train(shards, tmp_path).steps == whole.steps
    assert whole.error == ""
    assert [ids for ids, _ in whole.steps] == expected_ids(shards)
    assert whole.global_step == 2 * STEPS
    assert whole.epoch == 2


@pytest.mark.parametrize(
    ("killed_at", "saved_at", "kind"),
    [(6, 4, "vit"), (6, 4, "plain"), (14, 12, "plain")],
)
def test_a_killed_run_goes_on_exactly(shards: Path, tmp_path: Path, whole: Any, killed_at: int, saved_at: int, kind: str) -> None:
    """With the samples and crops that it would have had, and in the end the weights."""
    assert exit_code_of("trainer_runs:train", shards, tmp_path, None, None, killed_at, False, kind) == -signal.SIGKILL
    assert steps_of_killed(tmp_path) == expected_ids(shards)[:killed_at]
    rest = train(shards, tmp_path, None, None, None, True, kind)
    assert rest.error == ""
    assert rest.steps == whole.steps[saved_at:]
    assert (rest.global_step, rest.epoch) == (whole.global_step, whole.epoch)
    if kind == "plain":  # of a ViT, transformers 5.23 does not find all weights again in a checkpoint of its own
        assert rest.weights == whole.weights


def test_with_accumulation_and_on_other_ranks(shards: Path, tmp_path: Path) -> None:
    """Nine batches an epoch in groups of two, saved on one process, gone on with on two."""
    options = {"gradient_accumulation_steps": 2, "save_steps": 3}
    assert exit_code_of("trainer_runs:train", shards, tmp_path, None, options, 4) == -signal.SIGKILL
    ranks = on_ranks(
        "trainer_runs:train", 2, shards, tmp_path, {"batch_size": 3}, {**options, "per_device_train_batch_size": 3}, None, True
    )
    steps = [ranks[0].steps[step][0] + ranks[1].steps[step][0] for step in range(2 * STEPS - 6)]
    assert [len(rank.steps) for rank in ranks] == [12, 12]
    assert [rank.global_step for rank in ranks] == [10, 10]
    assert [sorted(step) for step in steps] == [sorted(step) for step in expected_ids(shards)[6:]]


def test_without_the_mixin_resuming_is_an_error(shards: Path, tmp_path: Path) -> None:
    """Trainer makes a torch loader of any other; ours does not let it."""
    exit_code_of("trainer_runs:train", shards, tmp_path, None, None, 6)
    message = in_a_process("trainer_runs:resume_without_mixin", shards, tmp_path)
    assert message.startswith("OptionError: positions were requested from the batch_sampler of a datapipe.DataLoader")


def test_evaluation_equals_that_of_torchs_loader(shards: Path) -> None:
    """50 samples in batches of 8: the last one weighs a quarter of the others."""
    ours = in_a_process("trainer_runs:evaluate", shards)
    torchs = in_a_process("trainer_runs:evaluation_of_torchs_loader", shards)
    assert ours.metrics["eval_some_loss"] == pytest.approx(torchs["eval_loss"], rel=1e-5)
    assert ours.labels == dp.DataLoader(shards).dataset.targets
    assert ours.predicted == (NUM, 3)


def test_evaluation_on_two_ranks_counts_each_sample_once(shards: Path) -> None:
    alone = in_a_process("trainer_runs:evaluate", shards)
    for rank in on_ranks("trainer_runs:evaluate", 2, shards, 4):
        assert rank.labels == alone.labels
        assert rank.predicted == (NUM, 3)


def test_another_batch_size_is_refused(shards: Path, tmp_path: Path) -> None:
    found = train(shards, tmp_path, {"batch_size": 5})
    assert "OptionError: the loader has batch_size=5, Trainer assumes 6" in found.error
    assert found.error.endswith("pass per_device_train_batch_size=5")
