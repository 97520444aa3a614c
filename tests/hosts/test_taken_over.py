"""The result of `from_torch` in the frameworks: exact on several ranks, and after resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_ranks import in_a_process, needs, on_ranks

pytestmark = pytest.mark.nightly

NUM, STEPS = 50, 18  # of two epochs
DDP = {"devices": 2, "strategy": "ddp"}


def _joined(ranks: list[list[list[float]]]) -> list[list[float]]:
    return [sorted(one for rank in step for one in rank) for step in zip(*ranks, strict=True)]


def _check_whole(steps: list[list[float]]) -> None:
    """Each sample once in each epoch."""
    assert len(steps) == STEPS
    for epoch in (steps[: STEPS // 2], steps[STEPS // 2 :]):
        assert len({one for step in epoch for one in step}) == sum(map(len, epoch)) == NUM


@pytest.mark.parametrize("kind", ["kept", "seen"])
def test_accelerate_from_two_ranks_to_one(kind: str, photos: Path, tmp_path: Path) -> None:
    needs("accelerate")
    if kind == "seen":
        needs("torchvision")
    whole = in_a_process("taken_runs:with_accelerate", kind, photos, None, tmp_path / "none")
    first, other = on_ranks("taken_runs:with_accelerate", 2, kind, photos, 4, tmp_path / "state")
    assert first == other, "what is gathered is the same on all"
    _check_whole(whole)
    assert first + in_a_process("taken_runs:with_accelerate", kind, photos, None, tmp_path / "state") == whole


def test_lightning_from_two_ranks_to_one(tmp_path: Path) -> None:
    needs("lightning")
    whole = in_a_process("taken_runs:with_lightning", "kept", tmp_path, {}, None, None)
    ranks = on_ranks("taken_runs:with_lightning", 2, "kept", tmp_path, DDP, (4, tmp_path / "at.ckpt"), None)
    rest = in_a_process("taken_runs:with_lightning", "kept", tmp_path, {}, None, tmp_path / "at.ckpt")
    _check_whole(whole)
    assert _joined(ranks) + _joined([rest]) == _joined([whole])


def test_trainer_goes_on_in_mid_epoch(tmp_path: Path) -> None:
    needs("transformers")
    whole = in_a_process("taken_runs:with_trainer", tmp_path / "whole", {}, False)
    _check_whole(whole)
    in_a_process("taken_runs:with_trainer", tmp_path / "cut", {"max_steps": 4}, False)
    assert in_a_process("taken_runs:with_trainer", tmp_path / "cut", {}, True) == whole[4:]
