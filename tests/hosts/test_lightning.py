"""PyTorch Lightning takes a `datapipe.DataLoader` as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_ranks import in_a_process, needs, on_ranks

import datapipe as dp
from datapipe import transforms as T

needs("lightning")

pytestmark = pytest.mark.nightly

NUM, BATCH, STEPS = 50, 6, 9
DDP = {"devices": 2, "strategy": "ddp"}


def fit(path: Path, *arguments: Any) -> Any:
    return in_a_process("lightning_runs:fit", path, *arguments)


def expected(path: Path, epochs: int, **arguments: Any) -> list[tuple[int, list[int]]]:
    """What a loop over the loader gives."""
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3, "num_workers": 0, "output": "dict"} | arguments
    loader = dp.DataLoader(path, transform=[T.RandomResizedCrop(16)], **options)
    return [(epoch, batch["id"].tolist()) for epoch in range(epochs) for batch in loader]


def test_fit_and_validation_give_the_loaders_own_batches(shards: Path) -> None:
    fitted = fit(shards, {}, {}, True)
    assert fitted.error == ""
    assert fitted.same_loader
    assert fitted.num_batches == STEPS
    assert fitted.seen == expected(shards, 2)
    assert fitted.validated == expected(shards, 2, shuffle=False, batch_size=8)
    assert not [text for text in fitted.warnings if "dataloader" in text.lower()]


def test_every_sample_once_per_epoch_on_two_ranks(shards: Path) -> None:
    ranks = on_ranks("lightning_runs:fit", 2, shards, {}, DDP, True)
    for epoch in range(2):
        ids = [[sample for at, batch in rank.seen if at == epoch for sample in batch] for rank in ranks]
        assert sorted(ids[0] + ids[1]) == list(range(NUM))
        assert len(ids[0]) == len(ids[1]) == NUM // 2
    for number, rank in enumerate(ranks):
        assert rank.same_loader, "use_distributed_sampler leaves the loader alone"
        assert rank.seen == expected(shards, 2, ranks=(number, 2))
        assert rank.validated == expected(shards, 2, shuffle=False, batch_size=8, ranks=(number, 2))


def test_limits(shards: Path) -> None:
    fitted = fit(shards, {}, {"limit_train_batches": 4, "limit_val_batches": 0.5}, True)
    assert fitted.seen == [step for epoch in range(2) for step in expected(shards, 2)[epoch * STEPS :][:4]]
    assert fitted.validated == [
        step for epoch in range(2) for step in expected(shards, 2, shuffle=False, batch_size=8)[epoch * 7 :][:3]
    ]


def test_overfitting_takes_the_same_batches_each_epoch(shards: Path) -> None:
    fitted = fit(shards, {"shuffle": False}, {"overfit_batches": 2}, True)
    assert fitted.error == ""
    assert fitted.same_loader
    assert fitted.seen == [step for epoch in range(2) for step in expected(shards, 2, shuffle=False)[epoch * STEPS :][:2]]
    assert fitted.validated[0][1] == list(range(8))


def test_overfitting_with_shuffling_is_refused(shards: Path) -> None:
    """Lightning would make a torch loader of it to turn shuffling off, and says that it cannot."""
    fitted = fit(shards, {}, {"overfit_batches": 2})
    assert "needs to subclass" in fitted.error
    assert fitted.seen == []


@pytest.mark.parametrize("step", [4, 9, 13])
def test_a_stopped_run_goes_on_exactly(shards: Path, tmp_path: Path, step: int) -> None:
    """In mid-epoch, at the end of an epoch, and in the second one; Lightning keeps the loader's state itself."""
    whole = fit(shards)
    first = fit(shards, {}, {}, False, (step, tmp_path / "at.ckpt"))
    assert first.error == "stopped"
    rest = fit(shards, {}, {}, False, None, tmp_path / "at.ckpt")
    assert rest.error == ""
    assert first.seen + rest.seen == whole.seen
    assert first.sums + rest.sums == whole.sums, "crops are what they would have been"


def test_a_run_of_two_ranks_goes_on_with_one(shards: Path, tmp_path: Path) -> None:
    """batch_size x world_size being the same, the steps left are the same."""
    first = on_ranks("lightning_runs:fit", 2, shards, {"batch_size": 3}, DDP, False, (4, tmp_path / "at.ckpt"))
    rest = fit(shards, {}, {}, False, None, tmp_path / "at.ckpt")
    assert rest.error == ""
    done = [sample for rank in first for _, batch in rank.seen for sample in batch]
    left = [sample for epoch, batch in rest.seen if epoch == 0 for sample in batch]
    assert sorted(done + left) == list(range(NUM))


def test_a_checkpoint_of_other_data_is_refused(shards: Path, tmp_path: Path) -> None:
    fit(shards, {}, {}, False, (4, tmp_path / "at.ckpt"))
    assert "StateError: the state was saved with seed=3" in fit(shards, {"seed": 4}, {}, False, None, tmp_path / "at.ckpt").error


def test_seeding_workers_leaves_the_process_alone(shards: Path) -> None:
    """Lightning would give the loader a function that seeds a worker's process; its threads' process is the trainer's."""
    plain, seeded = (in_a_process("lightning_runs:random_numbers", shards, seeds_workers) for seeds_workers in (False, True))
    assert len(plain) == 4
    assert plain == seeded


def test_a_length_asked_for_before_there_were_ranks_is_an_error(shards: Path) -> None:
    """Silently, every rank would take all samples."""
    for message in on_ranks("lightning_runs:fit_after_asking_for_the_length", 2, shards):
        assert "rank" in message
        assert "of 2. Make the loader, or ask for its length, once torch.distributed is initialized" in message
