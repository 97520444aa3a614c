"""Trials run in a process of their own, and what it could not find out has a reason."""

from __future__ import annotations

import re
from pathlib import Path

from datapipe.instruments.measure.recorded import TrialSource
from datapipe.instruments.trials.results import Trials
from datapipe.instruments.trials.running import run_trials

SCALING = {"levels": {}}


def told_of(source: TrialSource | None, directory: Path, *, seconds: float = 1.0) -> tuple[Trials, list[str]]:
    told = list[str]()
    return run_trials(source, directory, seconds=seconds, evicts=False, tell=told.append), told


def test_nothing_is_tried_where_nothing_was_kept_or_asked_for(tmp_path: Path) -> None:
    assert told_of(TrialSource(file="sample"), tmp_path, seconds=0.0) == (
        Trials(reasons={"": "trials were not requested (--trials 0)"}),
        [],
    )
    assert told_of(None, tmp_path) == (Trials(reasons={"": "its data was not recorded"}), [])
    known = TrialSource(reason="it has no files", deferral={"ratio": 0.5}, scaling=SCALING)
    assert told_of(known, tmp_path) == (Trials(reasons={"": "it has no files"}, deferral={"ratio": 0.5}, scaling=SCALING), [])


def test_a_process_that_fails_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "sample").write_bytes(b"no pickle")
    found, told = told_of(TrialSource(file="sample", scaling=SCALING), tmp_path)
    assert found.reasons.keys() == {""}
    assert not found.rates
    assert re.match("trying it failed: .*Unpickling", found.reasons[""])
    assert found.scaling == SCALING
    assert told == ["trying datapipe's loader on some of its samples, for about 1 s"]
