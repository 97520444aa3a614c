"""`datapipe.Monitor` in a process of its user's, and the clock of `datapipe.training`."""

from __future__ import annotations

import statistics
import time
import weakref
from typing import Any

import attach_datasets as data
import pytest
from attach_watch import attached
from fixtures import timed
from torch.utils.data import DataLoader

import datapipe as dp
from benchmarks.diagnostics.devices import VirtualWorld
from datapipe.diagnostics.document import as_json, read_document
from datapipe.instruments.attach import loaders
from datapipe.training import ClockBracket, epoch


@pytest.mark.nightly
@timed
def test_a_loader_is_measured_and_explained() -> None:
    with dp.Monitor(DataLoader(data.Numbers(stall_s=0.002, num=160), batch_size=4)) as batches:
        assert len(batches) == 40
        assert batches.batch_size == 4
        seen = [batch[:, 0].tolist() for batch in batches]
    assert seen == [[4 * k + i for i in range(4)] for k in range(40)]
    assert loaders.current_session() is None
    found = batches.diagnosis()
    assert as_json(read_document(found)) == found
    assert found["verdict"]["kind"] == "data-bound"
    assert found["verdict"]["figures"]["num_first"] == 1
    assert found["attribution"]["fault"] == "read"
    assert [loader["num_steps"] for loader in found["loaders"]] == [40]
    assert found["command"] == []
    share = batches.starvation
    assert share is not None
    assert share > 0.5
    assert "data" in batches.screen().splitlines()[0]


def test_without_a_block_passes_add_up_and_monitors_are_told_apart() -> None:
    train = dp.Monitor(DataLoader(data.Numbers(num=40), batch_size=2, num_workers=1))
    test = dp.Monitor([1, 2, 3])
    for _ in range(2):
        for _ in train:
            assert loaders.current_session() is not None
        assert loaders.current_session() is None
        assert list(test) == [1, 2, 3]
    first, second = train.diagnosis(), test.diagnosis()
    assert [loader["num_steps"] for loader in first["loaders"]] == [40]
    assert len(first["steps"]["start_s"]) == 40
    assert len(second["steps"]["start_s"]) == 6
    assert first["troubles"] == second["troubles"] == []


@timed
def test_a_pass_within_a_step_is_no_part_of_it() -> None:
    inner, outer = dp.Monitor([1] * 3), dp.Monitor([1] * 20)
    for _ in outer:
        for _ in inner:
            time.sleep(0.001)
    steps = outer.diagnosis()["steps"]
    assert len(steps["step_s"]) == 20
    assert statistics.median(steps["step_s"]) < 0.001


def test_leaving_early_and_failing_are_as_without_it() -> None:
    monitor = dp.Monitor(DataLoader(data.Failing(), batch_size=4))
    for batch in monitor:
        assert batch.shape == (4, 2)
        break
    assert loaders.current_session() is None
    with pytest.raises(KeyError, match="sample 5"):
        list(monitor)
    assert loaders.current_session() is None


def test_a_batch_is_the_users_alone_while_the_next_is_made() -> None:
    class Thing:
        pass

    alive: list[Any] = []

    def things() -> Any:
        for _ in range(3):
            assert [one() for one in alive] == [None] * len(alive)
            thing = Thing()
            alive.append(weakref.ref(thing))
            yield thing
            del thing

    for thing in dp.Monitor(things()):
        assert thing is alive[-1]()
        del thing


def test_under_another_attachment_it_only_hands_on() -> None:
    with attached() as calls:
        monitor = dp.Monitor(DataLoader(data.Numbers(), batch_size=8))
        assert sum(len(batch) for batch in monitor) == data.NUM_SAMPLES
        found = monitor.diagnosis()
    assert calls.num("end") == 6
    assert found["verdict"]["kind"] == "not measured"
    assert "datapipe diagnose" in found["troubles"][0]


def test_training_takes_the_devices_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    world = VirtualWorld()
    monkeypatch.setattr(epoch, "open_clock", lambda: world)
    bracket = ClockBracket()
    assert bracket.starvation is None
    for _ in range(30):
        bracket.begin()
        world.spend(0.010)
        bracket.end()
        world.launch(0.008)  # while the host waits 10 ms, the device works 8 of them
    bracket.stop()
    # the first wait is not hidden by earlier work
    assert bracket.starvation == pytest.approx((0.010 + 29 * 0.002) / (0.010 + 29 * 0.002 + 30 * 0.008), rel=0.01)
