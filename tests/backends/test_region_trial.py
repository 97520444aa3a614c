"""The trial of region decoding: it tells what works from what fails, dies, hangs or is wrong, and is made once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datapipe.backends.images_dali import region_trial as room
from datapipe.backends.images_dali.region_trial import RegionTrial, region_problem, region_trial

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def end_child_by(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child run this in place of the trial."""
    run = room.subprocess.run

    def other(command: list[str], **options: Any) -> Any:
        return run([*command[:-1], code], **options)

    monkeypatch.setattr(room.subprocess, "run", other)


def test_the_cpu_decodes_regions() -> None:
    """The trial itself, in a process of its own, on the one device that every machine has."""
    assert region_trial(None, hw_decoder_load=0.0) == RegionTrial(True, "")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its test was killed by SIGSEGV"),
        ("raise RuntimeError('error 8')", "its test failed: RuntimeError: error 8"),
        ("print(41.5)", "its pixels are 41.5 of 255 off on average"),
        ("print('NaN')", "its pixels are nan of 255 off on average"),
        ("import time; time.sleep(60)", "its test did not end within 1 s"),
    ],
    ids=["killed", "failed", "wrong", "not a number", "hangs"],
)
def test_what_does_not_work_is_said(code: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end_child_by(monkeypatch, code)
    if "sleep" in code:
        monkeypatch.setattr(room, "_LIMIT_S", 1.0)
    assert region_trial(None, hw_decoder_load=0.0) == RegionTrial(False, problem)


def test_the_answer_is_kept_per_driver_and_versions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def try_it(device_id: int | None, *, uses_engines: bool) -> RegionTrial:
        tried.append(uses_engines)
        return RegionTrial(False, "no")

    monkeypatch.setattr(room, "_try_in_child", try_it)
    assert [region_trial(None, hw_decoder_load=load).works for load in (0.0, 0.0, 0.3, 0.9)] == [False] * 4
    assert tried == [False, True], "with the JPEG engines and without"
    monkeypatch.setattr(room, "_driver_version", lambda: "580.159")
    region_trial(None, hw_decoder_load=0.0)
    monkeypatch.setattr(room, "version_of", lambda name: "0.8.0")
    region_trial(None, hw_decoder_load=0.0)
    assert tried == [False, True, False, False]
    found = [json.loads(path.read_text())["circumstances"] for path in cache.rglob("*.json")]
    assert sorted(one["driver"] for one in found) == ["", "", "580.159", "580.159"]


def test_an_nvjpeg_that_is_too_old_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_try_in_child", None)
    monkeypatch.setattr(room, "installation", lambda: type("Old", (), {"decodes_regions": False, "nvjpeg": "12.4.0"}))
    assert region_problem(0, hw_decoder_load=0.0) == "nvJPEG 12.4.0 is older than 13.2"
