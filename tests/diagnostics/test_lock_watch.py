"""Python's global lock of a child process, looked at from outside."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.environment import ROOT
from datapipe.diagnostics.ceilings.lock_watch import watch
from datapipe.errors import LifecycleError


def test_a_lock_that_is_held_is_seen_from_outside() -> None:
    """For a tenth of a second each: held, let go, and held again by a call that releases it."""
    code = """
import time
from datapipe.diagnostics.ceilings.lock_watch import offer, report_span
def spin(until):
    while time.perf_counter() < until:
        pass
offer()
for wait in (spin, lambda until: time.sleep(until - time.perf_counter())):
    start = time.perf_counter()
    wait(start + 0.1)
    report_span(start, time.perf_counter(), is_held=float(wait is spin))
"""
    spans = watch([sys.executable, "-c", code], dict(os.environ), cwd=ROOT)
    assert [span["is_held"] for span in spans] == [1, 0]
    assert spans[0]["held"] > 0.9
    assert spans[1]["held"] < 0.1


def test_a_watched_process_that_fails_is_said_so() -> None:
    with pytest.raises(LifecycleError, match="ended before it began"):
        watch([sys.executable, "-c", "1"], dict(os.environ), cwd=ROOT)
