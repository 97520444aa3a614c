"""From recordings to the document: verdict, fault, remedies; and nothing that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_processes import COMMAND, FACTS, process

from datapipe.analysis.judge.analysis import Analysis, analyze
from datapipe.analysis.predict.candidates import candidates_for, change_to_ours
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.workload import Workload
from datapipe.core.observe import Stage, StageEvent
from datapipe.diagnostics.diagnosis import diagnose
from datapipe.diagnostics.document import MAX_SPANS, MAX_STEPS, as_json, read_document
from datapipe.diagnostics.report.page import page
from datapipe.errors import FormatError, MissingDataError
from datapipe.instruments.attach.launching import child_environment
from datapipe.instruments.attach.settings import Applied, Settings, settings_from
from datapipe.instruments.measure.observed import LockHolder, LockUse
from datapipe.instruments.measure.recorded import Process, TrialSource, choose_ranks, read_process, write_process
from datapipe.instruments.trials.results import Trials

MS = 1e-3


def document(*processes: Any, **options: Any) -> dict[str, Any]:
    made = diagnose(processes, COMMAND, **options).document
    found = as_json(made)
    assert read_document(json.loads(json.dumps(found, allow_nan=False))) == made
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def names(found: dict[str, Any], group: str = "predictions") -> list[str]:
    return [one["name"] for one in found["remedies"][group]]


def test_a_slow_decode_is_found_and_more_workers_help() -> None:
    found = document(process(make_s=30 * MS, work_s=10 * MS))
    verdict = found["verdict"]
    assert (found["clock"], verdict["kind"], verdict["severity"], verdict["rank"]) == ("cuda", "data-bound", "high", 0)
    assert verdict["figures"]["starvation"]["value"] == pytest.approx(2 / 3, abs=0.02)
    assert found["attribution"]["fault"] == "decode"
    assert found["attribution"]["stages"][0]["share"] == pytest.approx(0.85, abs=0.1)  # the rest of it is collating
    assert sum(stage["wait_s"] or 0 for stage in found["attribution"]["stages"]) == pytest.approx(found["attribution"]["wait_s"])
    assert found["loaders"][0] | {"where": "train.py:31"} == {
        "id": 0, "where": "train.py:31", "kind": FACTS.kind, "dataset": "Photos", "num_workers": 1, "prefetch_factor": 2,
        "batch_size": 8, "pin_memory": False, "is_evaluation": False, "is_judged": True, "num_steps": 60,
    }  # fmt: skip
    assert found["remedies"]["misfit"] == pytest.approx(0, abs=0.05)
    assert "prefetch_factor=8" in names(found, "within_noise")


def test_the_ceilings_of_a_training() -> None:
    found = document(process(make_s=30 * MS, work_s=10 * MS))["ceilings"]
    step_s = 31 * MS  # one worker, and a millisecond of handing over
    assert found["measured_per_s"] == pytest.approx(8 / step_s, rel=0.05)
    assert found["demand_per_s"] == pytest.approx(8 / (10 * MS), rel=0.1)
    ceilings = {one["part"]: one for one in found["ceilings"]}
    assert found["ceilings"][0]["part"] == "workers"
    assert ceilings["workers"]["per_s"] == pytest.approx(8 / (30 * MS), rel=0.05)
    assert ceilings["workers"]["why"] == "3.75 ms of 1 worker: decode 90%, collate 10%"
    assert ceilings["handing over"]["per_s"] > 10 * ceilings["workers"]["per_s"]
    shown = page(document(process(make_s=30 * MS, work_s=10 * MS)))
    assert "The lowest ceiling is workers" in shown
    assert "too low for it: workers" in shown


def test_more_workers_for_a_loader_that_waits() -> None:
    found = document(process(make_s=30 * MS, work_s=10 * MS, cpu=0.05))
    assert found["attribution"]["fault"] == "read"
    best = found["remedies"]["predictions"][0]
    assert found["remedies"]["best"] == best["name"] == "num_workers=4"
    assert best["step_s"]["value"] == pytest.approx(10.3 * MS, rel=0.05)
    assert best["how"].startswith("num_workers=4 at /somewhere/train.py:31; in DataLoader(...); now 1; if workers do not wait")
    assert best["code"] == [{"language": "python", "text": "num_workers=4"}]
    assert not best["needs_edit"]


def test_a_loop_that_waits_and_has_no_remedy_is_told_what_must_become_faster() -> None:
    """With all cores busy no number of workers helps: what is computed must become less."""
    places = {"dataset": "/somewhere/photos.py:12 (Photos.__getitem__)"}
    slow = process(make_s=30 * MS, work_s=10 * MS, places=places)
    found = document(replace(slow, environment={"cores": 1}))
    assert found["remedies"]["best"] == "no remedy known"
    first = found["remedies"]["needs"][0]
    assert (first["stage"], first["where"]) == ("decode", "/somewhere/photos.py:12 (Photos.__getitem__)")
    # 27 of 30 ms are decoding; without it 3 ms are left, which a step of 10 ms hides
    assert first["step_s"] == pytest.approx(10.3 * MS, rel=0.1)
    assert first["times_faster"] == pytest.approx(27 / 8, rel=0.25)
    assert document(process(make_s=4 * MS, work_s=20 * MS))["remedies"]["needs"] == []


def test_nothing_is_to_be_changed_where_the_device_is_busy() -> None:
    tried = list[Analysis]()

    def try_out(found: Analysis) -> Trials:
        tried.append(found)
        return Trials()

    found = document(process(make_s=4 * MS, work_s=20 * MS), try_out=try_out)
    assert found["verdict"]["kind"] == "compute-bound"
    assert (found["remedies"]["best"], found["remedies"]["predictions"]) == ("change nothing", [])
    assert found["why_no_attribution"] or found["attribution"]["wait_s"] < 0.05
    assert tried == []
    assert "the training does not wait" in found["left_out"][0]["reason"]


def test_syncs_are_a_remedy_of_their_own() -> None:
    found = document(process(make_s=5 * MS, work_s=6 * MS, syncs=True, num_workers=0, prefetch_factor=None))
    assert found["verdict"]["kind"] == "sync-exposed"
    assert found["syncs"] == {"Tensor.item": {"num": 60, "host_s": pytest.approx(60 * 5 * MS, rel=0.05)}}
    best = next(one for one in found["remedies"]["predictions"] if one["name"] == "do not wait for the device")
    assert "Tensor.item" in best["note"]
    assert best["code"] == []


def test_the_slowest_rank_decides() -> None:
    fast, slow = (process(make_s=make_s, work_s=20 * MS, rank=rank) for rank, make_s in enumerate((4 * MS, 50 * MS)))
    found = document(fast, slow)
    assert found["verdict"]["rank"] == 1
    assert "the other rank waits for rank 1" in found["verdict"]["reason"]
    assert [rank["verdict"]["kind"] for rank in found["ranks"]] == ["compute-bound", "data-bound"]


def test_what_was_not_measured_is_null_and_said() -> None:
    found = document(troubles=["a trouble"])
    assert (found["verdict"]["kind"], found["clock"], found["attribution"], found["remedies"]) == (
        "not measured",
        "host",
        None,
        None,
    )
    assert found["steps"] is None
    assert found["troubles"] == ["a trouble"]
    assert "no loader of torch.utils.data, datapipe or accelerate was iterated" in found["why_no_remedies"]

    few = document(process(make_s=30 * MS, work_s=10 * MS, num_steps=8))
    assert few["verdict"]["kind"] == "not enough steps"
    assert few["remedies"] is few["verdict"]["figures"]["starvation"] is None
    assert few["why_no_remedies"]

    blind = document(replace(process(make_s=30 * MS, work_s=10 * MS), profiles=()))
    assert blind["verdict"]["kind"] == "data-bound"
    assert blind["attribution"] is blind["remedies"] is None
    assert "could not be inspected" in blind["why_no_remedies"]


def test_a_page_gets_no_more_than_it_can_show() -> None:
    found = document(process(make_s=1 * MS, work_s=2 * MS, num_steps=2 * MAX_STEPS + 100))
    columns = found["steps"]
    assert {len(column) for column in columns.values()} == {MAX_STEPS}
    assert columns["phase"][0] == "edge"
    assert columns["start_s"][0] == 0.0
    assert 0 < len(found["spans"]) <= MAX_SPANS
    span = next(span for span in found["spans"] if span["stage"] == "decode")
    assert (span["worker"], span["duration_s"]) == (0, pytest.approx(0.9 * MS, rel=0.01))


def in_full(one: Process) -> Process:
    """The recording with everything that a file can hold."""
    one.steps["gap_s"][3], one.steps["num_ready"][4] = np.nan, -1
    return replace(
        one,
        loaders={0: replace(FACTS, places={"dataset": "a.py:1 Photos"})},
        events=((0, StageEvent(Stage.DECODE, 3, 10, 20, 8)),),
        troubles=("one",),
        sources={
            0: TrialSource(file="sample", deferral={"ratio": 0.5, "spread": 0.1}, scaling={"levels": {"2": {"stall_s": 1.0}}})
        },
        lock=LockUse(0.5, (LockHolder("reader", "a.py:3 read", 0.4),)),
    )


def test_a_recording_comes_back_from_its_file(tmp_path: Path) -> None:
    one = in_full(process(make_s=4 * MS, work_s=20 * MS, syncs=True))
    write_process(tmp_path / "one.process", one)
    found = read_process(tmp_path / "one.process")
    assert found.steps.tobytes() == one.steps.tobytes()
    assert replace(found, steps=one.steps) == one
    assert diagnose([found], COMMAND) == diagnose([one], COMMAND)


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path, one = tmp_path / "one.process", process(make_s=4 * MS, work_s=20 * MS)
    with pytest.raises(MissingDataError, match="no such recording"):
        read_process(path)
    write_process(path, one)
    data = path.read_bytes()
    for damaged in (b"", b"{}", data[:-1], data[: len(data) // 2], data.replace(b"asked_ns", b"asked_xx")):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match="no recording of a process, or a damaged one"):
            read_process(path)
    write_process(path, replace(one, version=99))
    with pytest.raises(FormatError, match="has version 99, but this datapipe reads version 3"):
        read_process(path)


def test_of_two_processes_of_one_rank_the_longer_counts() -> None:
    short, long = (replace(process(make_s=4 * MS, work_s=9 * MS, num_steps=num), pid=num) for num in (20, 40))
    idle = replace(short, steps=short.steps[:0], pid=7, rank=1)
    chosen, notes = choose_ranks([short, idle, long])
    assert [one.pid for one in chosen] == [40]
    assert len(notes) == 2
    assert "process 7 trained nothing" in notes[0]
    assert "both rank 0" in notes[1]


def test_settings_travel_through_the_environment() -> None:
    settings = Settings(max_steps=5, ends_after=6, profile="x", applied=Applied("a:1", num_workers=3))
    environment = child_environment({}, Path("results"), open_watch="module:function", settings=settings)
    assert settings_from(environment) == settings
    assert settings_from({}) == Settings()


RATE = {"sample_s": 1 * MS, "spread": 0.05, "num_threads": 2, "num_samples": 100}


def examined(**options: Any) -> tuple[Analysis, Workload]:
    found = analyze(process(make_s=30 * MS, work_s=5 * MS, **options))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    return found, workload


def test_what_was_tried_becomes_a_remedy_and_what_was_not_is_left_out_with_the_reason() -> None:
    found, workload = examined()
    trials = Trials({"ours": RATE, "resized": RATE}, {"cached": "too large"}, resized_to=256, where="my photos")
    candidates = candidates_for(found, workload, trials)
    remedies = {remedy.name: remedy for remedy in candidates.remedies}
    ours, resized = remedies["datapipe's loader"], remedies["datapipe's loader on smaller images"]
    # 8 samples of 1 ms with 2 threads on 2 cores: 16 ms of threads' time, where a torch worker takes 30
    assert ours.change.production_factor == pytest.approx(16 / 30)
    assert (resized.changes_results, ours.changes_results) == (True, False)
    command, python = resized.how.code
    assert (command.language, command.text) == (
        "shell",
        "datapipe convert 'my photos' DST --to webdataset --resize shorter:256",
    )
    compile(python.text, "script", "exec")
    assert max(map(len, python.text.splitlines())) < 95
    assert (resized.how.where, "pixels differ" in resized.how.note) == (FACTS.site, True)
    assert candidates.applied["datapipe's loader"] == Applied(FACTS.site, from_torch=True)
    assert resized.name not in candidates.applied
    assert candidates.left_out == {
        "datapipe's loader, images in memory": "too large",
        "datapipe's loader on converted data": "it was not tried",
    }
    assert change_to_ours(workload, RATE, replace(FACTS, batch_size=16)).production_factor == pytest.approx(32 / 30)


@pytest.mark.parametrize(
    ("cpu", "num_workers", "expected"),
    [
        (1.0, 1, ["num_workers=2"]),
        (0.1, 1, ["num_workers=2", "num_workers=4", "num_workers=8"]),
        (1.0, 4, ["num_workers=1", "num_workers=2"]),
    ],
)
def test_workers_beyond_the_cores_are_for_loaders_that_wait(cpu: float, num_workers: int, expected: list[str]) -> None:
    found, workload = examined(cpu=cpu, num_workers=num_workers)
    candidates = candidates_for(found, workload, Trials())
    assert [remedy.name for remedy in candidates.remedies if "num_workers" in remedy.name] == expected


def test_a_stream_is_not_given_its_first_workers() -> None:
    found, workload = examined(num_workers=0, prefetch_factor=None, is_iterable=True)
    candidates = candidates_for(found, workload, Trials())
    assert not any("num_workers" in remedy.name for remedy in candidates.remedies)
    assert "once per worker" in candidates.left_out["more workers"]
