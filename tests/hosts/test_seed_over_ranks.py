"""Ranks of a process group agree on the seed of a loader that is given none: each sample comes once all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_ranks import on_ranks

pytestmark = pytest.mark.nightly


def test_ranks_take_what_rank_0_draws(shards: Path) -> None:
    """Also if rank 0 has looked at a batch alone before: nothing waits for it, and no collective is mixed up."""
    ranks = on_ranks("seed_runs:seeds", 3, shards)
    assert [rank["sum"] for rank in ranks] == [3.0] * 3
    assert [rank["seed"] for rank in ranks] == [10] * 3
    ids = [sample for rank in ranks for sample in rank["ids"]]
    assert (len(ids), set(ids)) == (51, set(range(50)))
    assert [rank["seeded again"] for rank in ranks] == [20] * 3
    assert len({rank["generator"] for rank in ranks}) == 1
    assert [rank["given"] for rank in ranks] == [3] * 3
    assert [rank["shared out"] for rank in ranks] == [20] * 3
    assert [rank["all samples each"] for rank in ranks] == [20, 21, 22], "each for itself, as with torch"
    assert [rank["sampler"] for rank in ranks] == [(20, 20)] * 3, "of samples; the order it decides for itself"


def test_a_rank_does_not_wait_without_limit(shards: Path) -> None:
    _, said = on_ranks("seed_runs:left_alone", 2, shards)
    assert "rank 0 has begun no pass over this dataset within 2 s" in said
    assert "begin passes on all ranks, or pass seed=" in said
