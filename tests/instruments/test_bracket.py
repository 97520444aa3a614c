"""The bracket around next(): what it counts as waiting, and what it must not be misled by."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.diagnostics.devices import VirtualWorld
from datapipe.instruments.measure.bracket import READ_AT_ONCE, ThreadBracket, watch
from datapipe.instruments.measure.clock import CudaClock, HostClock, Mark, open_clock
from datapipe.instruments.measure.watching import Hooks

ALL = Hooks(syncs=True, copies=True, updates=True)


def batches(world: VirtualWorld, *waits_s: float) -> Iterator[int]:
    for number, wait_s in enumerate(waits_s):
        world.spend(wait_s)
        yield number


def rows(bracket: ThreadBracket) -> Any:
    bracket.finish()
    return bracket.timeline.steps()


def test_the_device_is_idle_only_once_it_has_nothing_left() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world, hooks=ALL)
    for _ in watch(batches(world, 0.050, 0.004, 0.030), bracket):
        world.launch(0.010)
        world.spend(0.001)
    steps = rows(bracket)
    assert steps["host_wait_s"] == pytest.approx([0.050, 0.004, 0.030])
    # After a millisecond of launching nine are left: they hide four, and nine of thirty.
    assert steps["gap_s"] == pytest.approx([0.050, 0.0, 0.030 - 0.009 + 0.004 - 0.009], abs=1e-9)
    assert steps["gap_s"].sum() + steps["work_s"].sum() == pytest.approx(world.free_at)
    assert steps["host_work_s"] == pytest.approx([0.001] * 3)
    assert steps["is_first"].tolist() == [True, False, False]
    assert steps["sync_s"].tolist() == steps["copy_s"].tolist() == [0.0] * 3
    assert bracket.context().device == "virtual"


def test_what_is_not_watched_is_not_zero() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    for _ in watch(batches(world, 0.01), bracket):
        bracket.begin_copy()
        world.launch(0.002, "copy")
        bracket.end_copy()
        bracket.note_update()
    (step,) = rows(bracket)
    assert math.isnan(step["copy_s"])
    assert math.isnan(step["sync_s"])
    assert step["num_updates"] == step["num_ready"] == -1
    assert step["work_s"] == pytest.approx(0.002)


def test_without_a_device_only_the_host_is_measured() -> None:
    bracket = ThreadBracket(HostClock(), hooks=ALL)
    for _ in watch(iter([1, 2]), bracket):
        bracket.begin_copy()
        bracket.end_copy()
    steps = rows(bracket)
    assert len(steps) == 2
    assert all(np.isnan(steps[name]).all() for name in ("gap_s", "work_s", "copy_s"))
    assert (steps["host_wait_s"] > 0).all()
    assert steps["is_ahead"].tolist() == [-1, -1]
    assert bracket.context().device is None


def test_copies_are_taken_out_of_the_work() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world, hooks=ALL)
    for _ in watch(batches(world, 0.01, 0.01), bracket):
        for _ in range(2):
            bracket.begin_copy()
            bracket.begin_copy()  # one within another
            world.launch(0.003, "copy")
            bracket.end_copy()
        world.launch(0.010)
        world.synchronize()
    steps = rows(bracket)
    assert steps["copy_s"] == pytest.approx([0.006, 0.006])
    assert steps["work_s"] == pytest.approx([0.010, 0.010])


def test_syncs_and_updates_belong_to_the_step_they_happen_in() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world, hooks=ALL)
    bracket.note_sync("before any step", 1.0)
    for number in watch(batches(world, 0.01, 0.01, 0.01, 0.01), bracket):
        world.launch(0.010)
        if number % 2:
            bracket.note_sync("Tensor.item", world.synchronize())
            bracket.note_update()
    steps = rows(bracket)
    assert steps["num_updates"].tolist() == [0, 1, 0, 1]
    assert (steps["sync_s"] > 0).tolist() == [False, True, False, True]
    syncs = bracket.context().syncs
    assert set(syncs) == {"Tensor.item"}
    assert syncs["Tensor.item"].num == 2
    assert syncs["Tensor.item"].host_s == pytest.approx(steps["sync_s"].sum())


def test_a_loader_over_a_loader_is_measured_once() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    twice = watch(watch(watch(batches(world, 0.02, 0.02), bracket), bracket), bracket)
    for _ in twice:
        world.launch(0.01)
    steps = rows(bracket)
    assert steps["host_wait_s"] == pytest.approx([0.02, 0.02])
    assert set(steps["pass_id"]) == {steps["pass_id"][0]}
    assert bracket.context().num_nested == 2 * 3


def test_evaluation_in_mid_epoch_is_no_part_of_the_training_step() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    for number in watch(batches(world, 0.01, 0.01, 0.01), bracket, loader=7):
        world.launch(0.010)
        world.synchronize()
        if number == 1:
            for _ in watch(batches(world, 0.5, 0.5), bracket, loader=8, is_evaluation=True):
                world.spend(0.1)
            world.spend(3.0)  # writes a report: part of no step
    steps = rows(bracket)
    assert steps["loader"].tolist() == [7, 7, 8, 8, 7]
    assert steps["is_evaluation"].tolist() == [False, False, True, True, False]
    assert steps["is_first"].tolist() == [True, False, True, False, False]
    assert steps["host_work_s"] == pytest.approx([0.01, 0.01, 0.1, 0.1, 0.01])
    assert bracket.timeline.training.num_steps == 3
    evaluation = bracket.timeline.steps()[bracket.timeline.steps()["is_evaluation"]]
    assert evaluation["host_work_s"].sum() == pytest.approx(0.2)
    assert evaluation["host_wait_s"][evaluation["is_first"]].sum() == pytest.approx(0.5)


def test_a_pass_that_is_left_early_ends_there() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    for number in watch(batches(world, *[0.01] * 9), bracket):
        world.spend(0.002)
        if number == 2:
            break
    world.spend(100.0)
    steps = rows(bracket)
    assert steps["host_work_s"] == pytest.approx([0.002] * 3)


def test_a_loader_that_fails_leaves_the_bracket_sound() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)

    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("broken")

    watched = watch(failing(), bracket)
    next(watched)
    world.spend(0.003)
    with pytest.raises(KeyError, match="broken"):
        next(watched)
    world.spend(1.0)
    for _ in watch(batches(world, 0.01), bracket):
        world.spend(0.004)
    assert rows(bracket)["host_work_s"] == pytest.approx([0.003, 0.004])


def test_a_lost_end_costs_one_step() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    one = bracket.open_pass()
    for is_lost in (False, True, False):
        one.begin()
        world.spend(0.01)
        if not is_lost:
            one.end()
        world.spend(0.001)
    one.stop()
    one.stop()
    assert len(rows(bracket)) == 2


def test_other_threads_are_left_out_and_told_of() -> None:
    world = VirtualWorld()
    bracket = ThreadBracket(world)
    other = bracket.open_pass()

    def elsewhere() -> None:
        other.begin()
        other.end()
        other.stop()
        bracket.note_sync("Tensor.item", 1.0)

    for _ in watch(batches(world, 0.01, 0.01), bracket):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    context = bracket.context()
    assert len(rows(bracket)) == 2
    assert (context.num_elsewhere, context.trains_elsewhere, context.syncs) == (2, False, {})
    thread = threading.Thread(target=bracket.note_update)
    thread.start()
    thread.join()
    assert bracket.context().trains_elsewhere


class LateWorld(VirtualWorld):
    """Counts marks that are in use, and reports none as passed while `is_late`; waiting is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.num_marks = self.num_released = 0
        self.is_late = True

    def mark(self) -> Mark | None:
        self.num_marks += 1
        return super().mark()

    def release(self, mark: Mark) -> None:
        self.num_released += 1

    def is_past(self, mark: Mark) -> bool:
        return not self.is_late

    def wait(self, mark: Mark) -> None:
        assert not self.is_late, "waited for the device"


def test_a_device_that_is_late_is_never_waited_for_and_memory_stays_bounded() -> None:
    world = LateWorld()
    bracket = ThreadBracket(world)
    for _ in watch(batches(world, *[0.001] * 3000), bracket):
        world.spend(0.001)
    assert len(bracket.timeline) == 0
    assert world.num_marks < 2 * 1024 + 10
    world.is_late = False
    steps = rows(bracket)
    assert len(steps) == 3000
    assert not np.isnan(steps["gap_s"][:1000]).any()
    assert np.isnan(steps["gap_s"][1100:]).all()  # not measured, and not called 0
    assert world.num_released >= world.num_marks - 1


def test_begin_reads_back_a_few_steps_at_most() -> None:
    world = LateWorld()
    bracket = ThreadBracket(world)
    one = bracket.open_pass()
    for number in range(100):
        if number == 90:
            world.is_late = False
        before = len(bracket.timeline)
        one.begin()
        one.end()
        assert len(bracket.timeline) - before <= 2 * READ_AT_ONCE
    assert len(bracket.timeline) >= 40


@pytest.mark.parametrize("clock", [HostClock, VirtualWorld])
def test_the_bracket_costs_far_less_than_100_us(clock: Any) -> None:
    bracket = ThreadBracket(clock(), hooks=ALL)
    one = bracket.open_pass()
    took_ns = []
    for _ in range(3000):
        start = time.perf_counter_ns()
        one.begin(1)
        one.end()
        bracket.note_sync("Tensor.item", 0.0)
        bracket.begin_copy()
        bracket.end_copy()
        bracket.note_update()
        took_ns.append(time.perf_counter_ns() - start)
    assert statistics.median(took_ns) < 100_000


class FakeEvent:
    """A torch.cuda.Event, as far as it is used; the stream reaches it when the test says so."""

    made: list[FakeEvent] = []  # noqa: RUF012
    now_ms = 0.0
    current = 0  # the index of the current device

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.time_ms: float | None = None
        self.device: int | None = None
        FakeEvent.made.append(self)

    def record(self, stream: object) -> None:
        assert stream == "the current stream"
        self.device = FakeEvent.current
        self.time_ms = FakeEvent.now_ms

    def query(self) -> bool:
        return self.time_ms is not None

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.time_ms is not None
        assert end.time_ms is not None
        return end.time_ms - self.time_ms

    def synchronize(self) -> None:
        raise AssertionError("waited for the device")


@contextmanager
def made_current(device: int) -> Iterator[None]:
    before, FakeEvent.current = FakeEvent.current, device
    yield
    FakeEvent.current = before


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    state = {"is_initialized": True, "is_capturing": False}
    FakeEvent.made = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the current stream")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state["is_initialized"])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["is_capturing"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: FakeEvent.current)
    monkeypatch.setattr(torch.cuda, "device", made_current)
    return state


def test_cuda_events_are_pooled_and_count_milliseconds(fake_cuda: dict[str, bool]) -> None:
    bracket = ThreadBracket(CudaClock())
    one = bracket.open_pass()
    for number in range(50):
        FakeEvent.now_ms = 100.0 * number
        one.begin()
        FakeEvent.now_ms += 30.0
        one.end()
    one.begin()
    bracket._read(10)  # as the next begin would
    steps = bracket.timeline.steps()
    assert len(steps) == 50
    assert steps["gap_s"] == pytest.approx([0.030] * 50)
    assert steps["work_s"] == pytest.approx([*[0.070] * 49, 0.0])
    assert len(FakeEvent.made) <= 2 * READ_AT_ONCE + 8


def test_marks_are_made_on_the_gpu_whose_parameters_are_updated(fake_cuda: dict[str, bool]) -> None:
    """The script trains on GPU 1, and GPU 0 stays the current one."""
    bracket = ThreadBracket(CudaClock())
    one = bracket.open_pass()
    one.begin()
    one.end()
    bracket.note_update(None)  # of parameters on the CPU
    one.begin()
    bracket.note_update(1)
    one.end()
    one.stop()
    assert [event.device for event in FakeEvent.made] == [0, 0, 0, 1, 1]
    assert FakeEvent.current == 0


def test_there_are_no_marks_before_cuda_is_in_use_nor_in_a_graph_capture(fake_cuda: dict[str, bool]) -> None:
    bracket = ThreadBracket(CudaClock())
    one = bracket.open_pass()
    for state in ({"is_initialized": False}, {"is_capturing": True}, {}):
        fake_cuda.update({"is_initialized": True, "is_capturing": False} | state)
        one.begin()
        one.end()
    one.stop()
    bracket._read(10)
    assert np.isnan(bracket.timeline.steps()["gap_s"]).tolist() == [True, True, False]
    assert (bracket.timeline.training.num_steps, bracket.timeline.training.num_on_device) == (3, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what holds where there is no GPU")
def test_without_a_gpu_the_hosts_clock_is_taken() -> None:
    assert open_clock().device is None


@pytest.mark.gpu
def test_gaps_on_a_gpu_are_the_hosts_sleep_less_what_the_device_had_left() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    bracket = ThreadBracket(CudaClock())
    torch.zeros(1, device="cuda")
    one = bracket.open_pass()
    for _ in range(20):
        torch.cuda.synchronize()
        one.begin()
        time.sleep(0.005)
        one.end()
        torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
    one.stop()
    gaps = rows(bracket)["gap_s"]
    assert 0.0045 < float(np.median(gaps)) < 0.007


def test_the_thread_that_is_measured_is_named_unless_it_is_the_main_one() -> None:
    def read(bracket: ThreadBracket) -> None:
        one = bracket.open_pass()
        one.begin()
        one.end()
        one.stop()

    here, elsewhere = ThreadBracket(HostClock()), ThreadBracket(HostClock())
    read(here)
    thread = threading.Thread(target=read, args=(elsewhere,), name="feeder")
    thread.start()
    thread.join(timeout=60)
    assert (here.context().thread, elsewhere.context().thread) == (None, "feeder")
