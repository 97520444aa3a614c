"""A long wait is reported once, a short one not at all."""

from __future__ import annotations

import threading
import time

import pytest

from datapipe.core import waiting

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
    deadline_s = time.monotonic() + LONG_S
    while threading.active_count() > before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threading.active_count() == before, "the timer ends with the wait"
