"""Ranks joined: which one the others wait for, in what part of its step, and when none is to blame."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_processes import COMMAND, FACTS
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.diagnostics import late_ranks
from benchmarks.diagnostics.late_ranks import FAULTS, Planted
from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.judge.ranks import PARTS, Joined, join_ranks, parts_of
from datapipe.core.observe import Stage, StageEvent
from datapipe.diagnostics.diagnosis import diagnose
from datapipe.diagnostics.document import as_json
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen
from datapipe.instruments.attach.exchanges import ExchangeReader
from datapipe.instruments.measure.observed import Exchange
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import STEP, Context

MS = 1e-3
NUM = 200


def rank_of(
    rank: int,
    *,
    data: float = 1 * MS,
    forward: float = 5 * MS,
    backward: float = 5 * MS,
    loop: float = 1 * MS,
    others: float = 1 * MS,
    host: str = "one",
    jitter: float = 0.02,
    num_timed: int = 10,
    syncs_in_forward: bool = False,
    num_updates: int = 1,
    seed: int = 0,
) -> Process:
    """A rank of those mean parts of a step, in seconds; each differs from step to step by `jitter` of itself."""
    rng = np.random.default_rng([seed, rank])

    def vary(mean: float, num: int = NUM) -> Any:
        return mean * (1 + jitter * rng.uniform(-1, 1, num))

    steps = np.zeros(NUM, STEP)
    steps["host_wait_s"], steps["host_work_s"] = vary(data), vary(forward + backward + loop + others)
    ends = np.cumsum(steps["host_wait_s"] + steps["host_work_s"])
    steps["start_ns"] = ((ends - ends[0]) * 1e9).astype(np.int64)
    steps["gap_s"] = steps["work_s"] = steps["copy_s"] = steps["sync_s"] = np.nan
    steps["num_ready"], steps["is_ahead"], steps["num_updates"], steps["is_first"][0] = -1, -1, num_updates, True
    reads = steps["start_ns"][:: max(1, NUM // max(1, num_timed))][:num_timed]
    times = zip(vary(forward, len(reads)), vary(backward, len(reads)), vary(others, len(reads)), strict=True)
    exchanges = [
        Exchange(0, 20 * number, int(read_ns), *map(float, of), syncs_in_forward)
        for number, (read_ns, of) in enumerate(zip(reads + 1, times, strict=True))
    ]
    return Process(
        rank=rank,
        pid=100 + rank,
        loaders={0: FACTS},
        steps=steps,
        context=Context(None),
        profiles=(),
        events=(),
        troubles=(),
        environment={"host": host},
        sources={},
        exchanges=tuple(exchanges),
    )


def joined(*ranks: Process) -> Joined:
    return join_ranks([analyze(one) for one in ranks])


def late(part: str, rank: int, num_ranks: int, by: float = 8 * MS, **options: Any) -> list[Process]:
    """Ranks of which one takes longer in a part, so that the others wait for it."""
    normal = {"data": 1 * MS, "forward": 5 * MS, "backward": 5 * MS, "loop": 1 * MS}
    slow = rank_of(rank, **{part: normal[part] + by}, **options)
    return [slow if one == rank else rank_of(one, others=1 * MS + by, **options) for one in range(num_ranks)]


@pytest.mark.nightly
@given(st.sampled_from(PARTS), st.integers(2, 8), st.data(), st.floats(2 * MS, 100 * MS), st.integers(0, 99))
def test_the_rank_that_the_others_wait_for_is_found(part: str, num_ranks: int, drawn: Any, by: float, seed: int) -> None:
    rank = drawn.draw(st.integers(0, num_ranks - 1))
    found = joined(*late(part, rank, num_ranks, by, seed=seed))
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.part, found.place, found.verdict.rank) == (rank, part, rank, rank)
    assert found.straggler.excess_s == pytest.approx(by, rel=0.2)


@pytest.mark.nightly
@given(st.integers(1, 8), st.floats(0.1 * MS, 50 * MS), st.integers(0, 99))
def test_even_ranks_are_not_blamed(num_ranks: int, data: float, seed: int) -> None:
    assert joined(*(rank_of(rank, data=data, seed=seed) for rank in range(num_ranks))).straggler is None


@pytest.mark.parametrize("part", ["data", "loop"])
def test_waiting_within_forward_is_not_taken_for_slowness(part: str) -> None:
    """Buffers are sent from rank 0, for which the others wait in forward, and not where gradients are exchanged."""
    slow = rank_of(0, **{part: 9 * MS}, syncs_in_forward=True)
    others = [rank_of(rank, forward=13 * MS, syncs_in_forward=True) for rank in (1, 2)]
    found = joined(slow, *others).straggler
    assert found is not None
    assert (found.rank, found.part) == (0, part)


def test_a_rank_that_alone_waits_in_forward_is_not_slow() -> None:
    """Of the ranks that wait for the late one, one does so in forward, and the others where gradients are exchanged."""
    slow = rank_of(3, data=9 * MS, syncs_in_forward=True)
    within_forward = rank_of(1, forward=13.5 * MS, syncs_in_forward=True)
    others = [rank_of(rank, others=9 * MS, syncs_in_forward=True) for rank in (0, 2)]
    found = joined(others[0], within_forward, others[1], slow).straggler
    assert found is not None
    assert (found.rank, found.part) == (3, "data")


def test_a_loop_that_waits_for_others_is_not_late() -> None:
    """The loop itself gathers something of all ranks, such as a metric."""
    found = joined(rank_of(0, data=9 * MS), rank_of(1, loop=9 * MS)).straggler
    assert found is None or (found.rank, found.part) == (0, "data")


def test_a_faster_rank_that_waits_for_its_data_holds_up_nobody() -> None:
    assert joined(rank_of(0, data=6 * MS, forward=1 * MS), rank_of(1), rank_of(2)).straggler is None


def test_a_difference_within_the_noise_is_not_blamed() -> None:
    ranks = [rank_of(rank, forward=(5 + 1.5 * (rank == 1)) * MS, others=(3 - 1.5 * (rank == 1)) * MS) for rank in range(2)]
    assert joined(*ranks).straggler is not None
    noisy = [replace(one, exchanges=tuple(map(_scaled, one.exchanges, itertools.cycle((3, 0.01, 0.01))))) for one in ranks]
    assert joined(*noisy).straggler is None


def _scaled(one: Exchange, factor: float) -> Exchange:
    return Exchange(
        one.module, one.iteration, one.read_ns, one.forward_s * factor, one.backward_s * factor, one.wait_s * factor, False
    )


@pytest.mark.parametrize("num_timed", [0, 3])
def test_without_times_of_exchanges_only_data_is_blamed(num_timed: int) -> None:
    found = joined(*late("data", 1, 3, num_timed=num_timed))
    assert found.parts[0] is not None
    assert (found.parts[0].forward_s, found.parts[0].others_s) == (None, None)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.part) == (1, "data")
    assert joined(*late("forward", 1, 3, num_timed=num_timed)).straggler is None


def test_parts_of_accumulated_gradients_are_those_of_an_update() -> None:
    one = rank_of(0, num_updates=0)
    one.steps["num_updates"][3::4] = 1
    parts = parts_of(analyze(one))
    assert parts is not None
    assert parts.step_s == pytest.approx(4 * 13 * MS, rel=0.02)
    assert parts.data_s == pytest.approx(4 * 1 * MS, rel=0.02)
    assert parts.forward_s == pytest.approx(5 * MS, rel=0.02)


def test_the_stage_is_the_one_that_takes_longer_than_on_the_others() -> None:
    """Decoding takes longest on all ranks, and reading takes longer on one."""

    def with_stages(process: Process, read: float) -> Process:
        events = []
        for number, start_ns in enumerate(process.steps["start_ns"].tolist()):
            for stage, seconds in ((Stage.WAIT, 1 * MS), (Stage.READ, read), (Stage.DECODE, 20 * MS)):
                events.append((0, StageEvent(stage, number, start_ns, round(seconds * 1e9), 8)))
        return replace(process, events=tuple(events))

    ranks = [with_stages(one, (9 if one.rank == 1 else 2) * MS) for one in late("data", 1, 3, host="one")]
    found = joined(*ranks).straggler
    assert found is not None
    assert (found.stage, found.host) == ("read", None)
    assert (found.stage_s, found.usual_stage_s) == (pytest.approx(9 * MS), pytest.approx(2 * MS))
    elsewhere = joined(ranks[0], replace(ranks[1], environment={"host": "two"}), ranks[2])
    assert elsewhere.straggler is not None
    assert elsewhere.straggler.host == "two"
    assert "rank 1 on two" in elsewhere.verdict.reason


def test_ranks_that_wait_in_turn() -> None:
    """Each waits in one of ten steps, no two in the same; what earlier steps a recording has dropped does not matter."""
    ranks = [rank_of(rank, others=5 * MS) for rank in range(3)]
    for one in ranks:
        one.steps["host_wait_s"][3 * one.rank :: 10] = 30 * MS
    found = joined(*ranks)
    assert found.straggler is None
    assert found.in_turn_s == pytest.approx(6 * MS, rel=0.2)
    shifted = replace(ranks[2], steps=ranks[2].steps[20:].copy(), num_before=20)
    assert joined(*ranks[:2], shifted).in_turn_s == pytest.approx(6 * MS, rel=0.2)
    together = [replace(one, steps=np.roll(one.steps, -3 * one.rank)) for one in ranks]
    assert joined(*together).in_turn_s is None


def test_it_is_shown() -> None:
    document = diagnose(late("forward", 2, 4), COMMAND).document
    shown = screen(document)
    assert "The 3 other ranks wait for rank 2 8.0 ms of each step (38%): its forward pass takes longer" in " ".join(shown.split())
    assert re.search(r"Waiting by rank, for data \+ for others  0: 4\.\d% \+ 42\.\d%, 1: ", shown)
    assert "rank 2, the slowest of 4" in " ".join(shown.split())
    assert "The 3 other ranks wait for rank 2" in page(document)
    assert as_json(document)["straggler"]["part"] == "forward"
    in_turn = [rank_of(rank, others=5 * MS) for rank in range(2)]
    for one in in_turn:
        one.steps["host_wait_s"][5 * one.rank :: 10] = 30 * MS
    shown = screen(diagnose(in_turn, COMMAND).document)
    assert "The ranks wait for data one after the other: " in " ".join(shown.split())
    assert "which waits most of 2" in " ".join(shown.split())


def test_a_part_of_a_recording_knows_what_was_before() -> None:
    whole = rank_of(0)
    since_ns = int(whole.steps["start_ns"][50])
    part = whole.part(None, since_ns=since_ns)
    assert (len(part.steps), part.num_before) == (NUM - 50, 50)
    assert part.exchanges == tuple(one for one in whole.exchanges if one.read_ns >= since_ns)


def test_without_other_ranks_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.get_objects", lambda: pytest.fail("the process has no other ranks"))
    reader = ExchangeReader()
    reader(100)
    assert reader.latest() == ()


_READS = """
import gc, os, sys, weakref
import torch
from torch import nn
from datapipe.instruments.attach.exchanges import ExchangeReader

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/group", rank=int(sys.argv[2]), world_size=2)
reader = ExchangeReader(every=2)
reader(0)
assert reader.latest() == (), "there is no module yet"
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
reader(1)
for step in range(40):
    model(torch.randn(4, 8)).sum().backward()
    reader(step)
found = reader.latest()
assert len(found) >= 15 and len({one.iteration for one in found}) == len(found), found
assert all(one.forward_s > 0 and one.backward_s > 0 and one.wait_s >= 0 and one.syncs_in_forward for one in found), found
del model
other = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
reader(10_000)
for step in range(20):
    other(torch.randn(4, 8)).sum().backward()
    reader(10_000 + step)
assert {one.module for one in reader.latest()} == {0, 1} and not reader.latest()[-1].syncs_in_forward
del other
gc.collect()  # gloo's threads must end before the interpreter does, which aborts otherwise
torch.distributed.destroy_process_group()
"""


@pytest.mark.nightly
def test_modules_are_found_and_read(tmp_path: Path) -> None:
    script = [sys.executable, "-c", _READS, str(tmp_path)]
    ranks = [subprocess.Popen([*script, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        assert (rank.wait(100), rank.stderr.read() if rank.stderr else "")[0] == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("num_ranks", "fault"),
    [(2, "decode"), (2, "backward"), (1, "read")],
)
def test_a_late_rank_of_a_real_run(num_ranks: int, fault: str) -> None:
    assert fault in FAULTS
    found = late_ranks.run(Planted(num_ranks, fault, rank=num_ranks - 1, has_statistics=False))
    assert found.is_rank_right
    assert found.is_stage_right or found.stage == "cores", found  # on a loaded machine, its ranks wait for these most


def test_a_benchmarks_judgement() -> None:
    even = Planted(2, None, None, has_statistics=False)
    document = diagnose(late("data", 1, 2), COMMAND).document
    assert not late_ranks.found_in(document, even).is_rank_right
    slow = replace(even, fault="read", rank=1)
    assert late_ranks.found_in(document, slow).is_rank_right
    assert not late_ranks.found_in(document, slow).is_stage_right
    assert late_ranks.sum_up([late_ranks.found_in(document, even)])["num_false"] == 1
