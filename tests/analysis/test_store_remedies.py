"""A datapipe loader that waits for a store: the stage that is named, and what is said to help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_processes import process

from datapipe.analysis.judge.analysis import Analysis, analyze
from datapipe.analysis.predict.candidates import candidates_for, network_share
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.remedies import rank_remedies
from datapipe.analysis.predict.workload import Workload
from datapipe.core.observe import Stage, StageEvent
from datapipe.instruments.trials.results import Trials

MS = 1_000_000


def waiting_for(stage: Stage, *, waited_ms: int = 36, decoded_ms: int = 4) -> Analysis:
    """A loader of ours with one thread, to which a batch takes 40 ms; a step takes 5."""
    found = analyze(process(make_s=0.04, work_s=0.005, kind="datapipe.kinds.loader.DataLoader"))
    events = []
    for step in range(60):
        start_ns = step * 41 * MS
        events.append(StageEvent(stage, step, start_ns, waited_ms * MS, 8))
        events.append(StageEvent(Stage.DECODE, step, start_ns + waited_ms * MS, decoded_ms * MS, 8))
    return replace(found, profiles=(), events=tuple(events))


def remedies_of(found: Analysis) -> tuple[dict[str, float], dict[str, str]]:
    """The predicted steps by name, in ms, and what was left out."""
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    workload = replace(workload, delivery_s=np.array([2e-4]))  # which this run, in which no batch is ever ready, does not tell
    candidates = candidates_for(found, workload, Trials())
    ranking = rank_remedies(workload, candidates.remedies)
    return {one.remedy.name: 1e3 * one.step_s.value for one in ranking.predictions}, candidates.left_out


def test_waiting_for_a_store_has_its_own_remedies() -> None:
    found = waiting_for(Stage.NETWORK)
    assert network_share(found.events) == pytest.approx(0.9)
    steps, left_out = remedies_of(found)
    assert steps["shards kept on a local disk"] < 8, "without the waiting a batch takes 4 ms, and the step decides"
    assert steps["num_workers=2"] < 30, "threads that wait need no core each"
    assert "num_workers=8" in steps
    assert "one stream" in left_out["shuffle='windows'"]


def test_waiting_for_a_disk_has_none_of_them() -> None:
    steps, left_out = remedies_of(waiting_for(Stage.READ))
    assert "shards kept on a local disk" not in steps
    assert "num_workers=8" not in steps
    assert "shuffle='windows'" not in left_out


def test_cores_elsewhere_are_said_to_help_where_images_take_them() -> None:
    """A thread of this machine takes 40 ms for a batch, and 36 ms with what it receives."""
    found = waiting_for(Stage.DECODE)
    assert found.loader is not None
    of_images = replace(found, loader=replace(found.loader, dataset="datapipe.kinds.images.data.Images"))
    steps, _ = remedies_of(of_images)
    assert steps["8 cores elsewhere"] < 10 < 40, "a batch comes every 5 ms or less, and the step decides"
    assert steps["32 cores elsewhere"] <= steps["8 cores elsewhere"]
    assert not any("elsewhere" in name for name in remedies_of(found)[0]), "tables are not made elsewhere"


def test_cores_elsewhere_are_never_chosen_by_themselves() -> None:
    found = waiting_for(Stage.DECODE)
    assert found.loader is not None
    workload = workload_from(replace(found, loader=replace(found.loader, dataset="datapipe.kinds.images.data.Images")))
    assert isinstance(workload, Workload)
    found = replace(found, loader=replace(found.loader, dataset="datapipe.kinds.images.data.Images"))
    candidates = candidates_for(found, workload, Trials())
    only = [one for one in candidates.remedies if one.needs_machines]
    assert [one.name for one in only] == ["8 cores elsewhere", "32 cores elsewhere"]
    assert rank_remedies(workload, only).best.remedy.name == "change nothing"
    assert "num_cpus=8" in only[0].how.sentence()


def test_a_machine_that_only_receives_has_its_limit() -> None:
    """Four cores receive what twenty make."""
    found = waiting_for(Stage.DECODE)
    assert found.loader is not None
    found = replace(found, loader=replace(found.loader, dataset="datapipe.kinds.images.data.Images"))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    workload = replace(workload, setup=replace(workload.setup, num_cores=4.0))
    setups = {one.name: one.change.setup for one in candidates_for(found, workload, Trials()).remedies if one.needs_machines}
    assert setups["8 cores elsewhere"].num_cores == pytest.approx(4 - 0.2 * 7.2 + 7.2)
    assert setups["32 cores elsewhere"].num_cores == pytest.approx(20)


def test_a_little_waiting_is_no_reason() -> None:
    steps, _ = remedies_of(waiting_for(Stage.NETWORK, waited_ms=1, decoded_ms=39))
    assert "shards kept on a local disk" not in steps
