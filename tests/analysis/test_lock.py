"""Python's global lock is named where another thread takes it, with the function in which that thread computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from diagnosis_processes import COMMAND, process

from datapipe.analysis.judge.attribution import IDLE, TRANSFER
from datapipe.analysis.judge.breakdown import DECODE, READ
from datapipe.analysis.judge.fault import LOCK, charged_to_lock, holder_of
from datapipe.diagnostics.diagnosis import diagnose
from datapipe.diagnostics.document import as_json
from datapipe.diagnostics.report.screen import screen
from datapipe.instruments.attach.lock_sampler import LockSampler
from datapipe.instruments.measure.observed import LockHolder, LockUse

HOLDER = LockHolder("reports", "/somewhere/train.py:7 make_report", 0.6)
TAKEN = LockUse(0.9, (HOLDER,))


@pytest.fixture
def hog() -> Iterator[str]:
    """A thread that computes in Python, by its name."""
    ends = threading.Event()

    def count() -> None:
        while not ends.is_set():
            sum(range(1000))

    thread = threading.Thread(target=count, name="hog", daemon=True)
    thread.start()
    yield thread.name
    ends.set()
    thread.join(30)


def looked(seconds: float) -> LockUse:
    sampler = LockSampler()
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    found = sampler.summary()
    assert found is not None
    return found


@pytest.mark.nightly
def test_a_thread_that_computes_in_python_is_found(hog: str) -> None:
    latest = time.monotonic() + 60
    while not (found := looked(2.0)).holders:
        assert time.monotonic() < latest
    assert found.late_share > 0.25
    assert [one.thread for one in found.holders] == [hog]
    assert found.holders[0].where.endswith("hog.<locals>.count")
    assert holder_of(found) == found.holders[0]


@pytest.mark.nightly
def test_threads_that_wait_are_not_named() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, args=(60,))
    thread.start()
    found = looked(1.0)
    ends.set()
    thread.join(30)
    assert found.holders == ()
    assert holder_of(found) is None


def test_looking_begins_and_ends_with_its_caller() -> None:
    before = set(threading.enumerate())
    sampler = LockSampler()
    assert sampler.summary() is None
    sampler.start(), sampler.start()
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "datapipe-lock"
    sampler.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_what_the_training_process_does_around_batches_is_charged_to_the_lock() -> None:
    waits = {TRANSFER: 40e6, DECODE: 50e6, IDLE: 10e6}  # at 4.5 ms each: eight wake-ups, and four that take all
    charged = charged_to_lock(waits, TAKEN, {TRANSFER: 8, IDLE: 4})
    assert charged == pytest.approx({TRANSFER: 4e6, DECODE: 50e6, IDLE: 0.0, LOCK: 46e6})
    for other in (None, LockUse(0.9), LockUse(0.05, (HOLDER,))):
        assert charged_to_lock(waits, other, {TRANSFER: 8, IDLE: 4}) == waits


@pytest.mark.parametrize("late_share", [0.25, 0.35, 0.9])
def test_the_fault_does_not_depend_on_how_often_the_thread_pauses(late_share: float) -> None:
    """The lock is taken at a third of the moments; a batch that wants it twice loses most of its time to it all the same."""
    slow = process(make_s=0.1e-3, work_s=1e-3, open_s=0.4e-3 + 2 * late_share * 5e-3)
    found = diagnose([replace(slow, lock=LockUse(late_share, (HOLDER,)))], COMMAND).document.attribution
    assert found is not None
    assert found.fault == "lock"


def test_slow_storage_is_not_charged_to_the_lock() -> None:
    """Each read of a file takes the lock again, for 2.5 ms in the mean; the rest of 50 ms is the storage's."""
    charged = charged_to_lock({READ: 50e6}, LockUse(0.5, (HOLDER,)), {READ: 3})
    assert charged == pytest.approx({READ: 42.5e6, LOCK: 7.5e6})


def test_a_diagnosis_names_the_thread_instead_of_the_transfer() -> None:
    slow = process(make_s=2e-3, work_s=10e-3, open_s=20e-3)
    assert as_json(diagnose([slow], COMMAND).document)["attribution"]["fault"] == "transfer"
    found = as_json(diagnose([replace(slow, lock=TAKEN)], COMMAND).document)
    assert found["attribution"]["fault"] == "lock"
    assert found["attribution"]["holder"] == {"thread": "reports", "where": HOLDER.where, "cpu_share": 0.6}
    assert "Thread 'reports' computes in /somewhere/train.py:7 make_report" in found["attribution"]["reason"]
    (need,) = found["remedies"]["needs"]
    assert (need["stage"], need["where"]) == ("lock", HOLDER.where)
    assert "a process of its own" in need["advice"]
    shown = screen(found)
    assert "thread 'reports' holds Python's lock in make_report (train.py:7)" in shown
    assert "uint8" not in shown
