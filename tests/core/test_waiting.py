"""A long wait is reported once, a short one not at all."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures import make_folder

from datapipe.core import waiting
from datapipe.core.user_cache import one_at_a_time
from datapipe.opening.samples import open_index
from datapipe.sources import file_tree

LONG_S = 60.0


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is reported, with waits of any length."""
    monkeypatch.setattr(waiting, "SILENT_S", 0.0)
    lines: list[str] = []
    monkeypatch.setattr(waiting.logger, "warning", lambda form, *values: lines.append(form % values))
    return lines


def until(lines: list[str], num: int) -> None:
    deadline_s = time.monotonic() + LONG_S
    while len(lines) < num and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(lines) == num


def test_the_line_has_what_and_why_and_since_when(told: list[str]) -> None:
    with waiting.reported_wait("another process", "it holds the lock"):
        until(told, 1)
    assert told == ["waiting for another process (it holds the lock, since 0 s)"]


def test_once(told: list[str]) -> None:
    with waiting.reported_wait("a store", "no answer yet") as wait:
        until(told, 1)
        wait.report_if_long()
    assert len(told) == 1


def test_the_reason_is_that_of_the_moment(told: list[str]) -> None:
    reason = ["none yet"]
    wait = waiting.Wait("a store", lambda: reason[0])
    reason[0] = "refused"
    wait.report_if_long()
    assert told == ["waiting for a store (refused, since 0 s)"]


def test_short_waits_are_not_reported(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENT_S", LONG_S)
    before = threading.active_count()
    with waiting.reported_wait("a store", "no answer yet") as wait:
        wait.report_if_long()
    assert told == []
    assert threading.active_count() == before, "the timer ends with the wait"


def test_the_lock_of_another_process_is_named(told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    release = threading.Thread(target=lambda: (until(told, 1), os.close(descriptor)))
    release.start()
    with one_at_a_time(path):
        pass
    release.join(LONG_S)
    assert told == [f"waiting for the lock {path} (another process holds it, since 0 s)"]


def test_the_index_of_a_folder_is_reported_where_there_is_no_terminal(
    told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "folder")
    scan = file_tree.FolderSource.scan

    line = f"waiting for the index of {folder} (it is made once, for as long as the data does not change, since 0 s)"

    def slow(*arguments: Any) -> Any:
        deadline_s = time.monotonic() + LONG_S
        while line not in told and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return scan(*arguments)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_tree.FolderSource, "scan", slow)
    open_index(folder)
    assert told.count(line) == 1
