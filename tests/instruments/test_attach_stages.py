"""What is inside torch's DataLoader: every batch has its profile, and a planted fault is found where it was planted."""

from __future__ import annotations

import hashlib
import time
import traceback
from pathlib import Path
from typing import Any

import attach_datasets as data
import pytest
from attach_watch import Calls, attached
from fixtures import timed
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchvision_reference import torchvision_v2

from datapipe.analysis.judge.attribution import attribute
from datapipe.analysis.judge.breakdown import places_of
from datapipe.analysis.judge.fault import Fault
from datapipe.instruments.torch_stages.timing import TimingSchedule

WAYS: dict[str, dict[str, Any]] = {
    "in the consumer": {},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"},
}


def batches_of(dataset: Any, *, num_passes: int = 1, **options: Any) -> tuple[list[Any], Calls]:
    """All batches of some passes, and what was seen of them."""
    with attached() as calls:
        loader = DataLoader(dataset, **({"batch_size": 8} | options))
        return [batch for _ in range(num_passes) for batch in loader], calls


def calls_of(dataset: Any, **options: Any) -> Calls:
    """What was seen of a pass whose batches are freed one by one, as they lie in shared memory."""
    with attached() as calls:
        for _ in DataLoader(dataset, **({"batch_size": 8} | options)):
            pass
    return calls


def fault_of(dataset: Any, **options: Any) -> Fault:
    calls = calls_of(dataset, **({"num_workers": 2, "multiprocessing_context": "fork"} | options))
    return attribute([profile for profile in calls.profiles if profile.step >= 2])


def blamed(found: Fault) -> tuple[str, str | None]:
    """The stage that is waited for most, leaving out waits for cores, which other processes on the machine may cause."""
    return next((stage.name, stage.transform) for stage in found.stages if stage.name != "cores")


@pytest.mark.parametrize("way", WAYS)
def test_every_batch_has_its_profile(way: str) -> None:
    dataset = data.Numbers(data.Chain(data.Add(1), data.Add(2)))
    batches, calls = batches_of(dataset, num_passes=2, **WAYS[way])
    assert [batch[:, 0].tolist() for batch in batches[:6]] == [[8 * k + i + 3.0 for i in range(8)] for k in range(6)]
    assert [(profile.pass_id, profile.step) for profile in calls.profiles] == [(p, s) for p in (0, 1) for s in range(6)]
    num_workers = WAYS[way].get("num_workers", 0)
    for profile in calls.profiles:
        made = profile.made
        assert made.num_samples == 8
        assert made.nbytes == 8 * 2 * 4
        assert made.start_ns <= made.collate_start_ns <= made.ready_ns <= profile.taken_ns
        assert made.dataset_cpu_ns >= 0
        assert made.worker == (profile.step % num_workers if num_workers else None)
        assert (made.process_cpu_ns is not None) == (profile.moved is not None) == bool(num_workers)
        if profile.moved is not None:
            moved = profile.moved
            times = [made.ready_ns, moved.pickle_start_ns, moved.pickle_end_ns, moved.open_start_ns, moved.open_end_ns]
            assert times == sorted(times)
        if profile.pass_id == 0 and profile.step < max(1, num_workers):  # the first batch of each worker; later a random choice
            assert made.transforms is not None
        if made.transforms is not None:
            assert {transform.name for transform in made.transforms} == {"Chain", "Add"}
    assert calls.troubles == []


SHAPES: dict[str, tuple[Any, dict[str, Any], int | None]] = {
    "an iterable dataset": (data.Stream(), {}, 8),
    "an iterable dataset, not batched": (data.Stream(), {"batch_size": None}, None),
    "batch_size=None": (data.Numbers(), {"batch_size": None}, None),
    "a batch sampler": (data.Numbers(), {"batch_size": 1, "batch_sampler": [[k, k + 1, k + 2] for k in range(40)]}, 3),
    "out of order": (data.Numbers(), {"in_order": False}, 8),
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_loaders_of_every_shape_are_seen(shape: str, num_workers: int) -> None:
    dataset, options, num_samples = SHAPES[shape]
    options = options | ({"multiprocessing_context": "fork"} if num_workers else {})
    alone = list(DataLoader(dataset, **({"batch_size": 8} | options), num_workers=num_workers))
    batches, calls = batches_of(dataset, **options, num_workers=num_workers)
    assert sorted(map(str, batches)) == sorted(map(str, alone))
    steps = [profile.step for profile in calls.profiles]
    assert steps[:32] == list(range(len(batches)))[:32]  # of more that are so fast, some are looked into
    assert steps == sorted(set(steps) & set(range(len(batches))))
    assert {profile.made.num_samples for profile in calls.profiles} == {num_samples}


FAULTS: dict[str, tuple[Any, dict[str, Any], tuple[str, str | None]]] = {
    "a transform": (data.Numbers(data.Chain(data.Add(1), data.Slow())), {}, ("transform", "Slow")),
    "a transform alone": (data.Numbers(data.Slow()), {}, ("transform", "Slow")),
    "a function as transform": (data.Numbers(data.Slow().__call__), {}, ("transform", "__call__")),
    "a list of transforms": (data.Numbers(data.Chain(data.Chain(data.Slow()))), {}, ("transform", "Slow")),
    "reading": (data.Numbers(stall_s=data.STALL_S), {}, ("read", None)),
    "reading a stream": (data.Stream(data.STALL_S), {}, ("read", None)),
    "collating": (data.Numbers(), {"collate_fn": data.slow_collate}, ("collate", None)),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
@timed
def test_planted_fault_is_found(fault: str, num_workers: int) -> None:
    dataset, options, expected = FAULTS[fault]
    context = {"multiprocessing_context": "fork" if num_workers else None}
    found = fault_of(dataset, **options, **context, num_workers=num_workers)
    assert blamed(found) == expected, found
    assert found.worker is None
    assert sum(stage.share or 0 for stage in found.stages) == pytest.approx(1)
    assert sum(stage.work_share or 0 for stage in found.stages) == pytest.approx(1)


@timed
def test_busy_getitem_is_told_from_a_waiting_one() -> None:
    found = fault_of(data.Busy(num=32), num_workers=1, batch_size=4)
    shares = {stage.name: stage.work_share or 0 for stage in found.stages}
    computing = sum(shares.get(name, 0.0) for name in ("decode", "dataset"))
    assert computing > shares.get("read", 0.0), found  # what a loaded machine takes away is in `cores`


@pytest.mark.nightly
@pytest.mark.parametrize("num_workers", [0, 1])
@timed
def test_a_dataset_of_own_code_is_told_by_its_calls(num_workers: int, tmp_path: Path) -> None:
    dataset = data.Pictures(tmp_path, num=160)
    context = {"multiprocessing_context": "fork" if num_workers else None}
    calls = calls_of(dataset, batch_size=2, num_workers=num_workers, **context)
    found = attribute(calls.profiles)
    shares = {stage.transform or stage.name: stage.work_share or 0 for stage in found.stages}
    assert {"decode", "image.resize", "smoothed", "Spin"} <= set(shares), found
    of_work = [stage for stage in found.stages if stage.name != "cores"]  # which is what a loaded machine takes away
    assert max(of_work, key=lambda stage: stage.work_share or 0).name == "dataset", found
    assert shares["image.resize"] > shares["decode"], found  # 5 times as long
    assert not any("__call__" in name for name in shares), found  # transforms are timed by themselves
    places = places_of(calls.profiles)
    assert "attach_datasets.py" in places["dataset image.resize"]
    assert places["dataset image.resize"].endswith("(Pictures.__getitem__)")


@pytest.mark.nightly
@timed
def test_a_call_that_holds_the_lock_is_told_from_one_that_does_not() -> None:
    start = time.thread_time()
    sum(range(60_000))
    middle = time.thread_time()
    hashlib.sha256(bytes(2_000_000))
    truth = (middle - start) / (time.thread_time() - start)
    found = fault_of(data.Holding(num=1200), num_workers=1, batch_size=8)
    shares = {stage.transform or stage.name: stage.work_share or 0 for stage in found.stages}
    held = shares["sum"] / (shares["sum"] + shares["hashlib.sha256"])
    assert held == pytest.approx(truth, abs=0.25), (found, truth)  # it was 0 to 0.1 where the lock is not asked for at once


@timed
def test_one_slow_worker_is_named() -> None:
    found = fault_of(data.Numbers(stall_s=2 * data.STALL_S, only=1, num=128))
    assert (blamed(found), found.worker) == (("read", None), 1)
    assert found.head_of_line_s is not None
    assert found.head_of_line_s > 0.3 * found.wait_s  # worker 0 has long been ready
    assert "in_order=False" in found.reason


@timed
def test_heavy_transfer_is_found() -> None:
    found = fault_of(data.Blobs(12_000_000), batch_size=2, collate_fn=data.as_they_are)
    assert blamed(found)[0] == "transfer", found


class SlowSampler(Sampler[int]):
    def __init__(self, dataset: Dataset[Any]) -> None:
        self._inner = RandomSampler(dataset)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        for index in self._inner:
            time.sleep(data.STALL_S)
            yield index

    def __len__(self) -> int:
        return len(self._inner)


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_workers", [0, 2])
@timed
def test_slow_sampler_is_found(num_workers: int) -> None:
    dataset = data.Numbers(num=96)
    context = {"multiprocessing_context": "fork" if num_workers else None}
    found = fault_of(dataset, sampler=SlowSampler(dataset), num_workers=num_workers, **context)
    assert blamed(found)[0] == "sampler", found


def test_the_dataset_is_as_it_was() -> None:
    chain = data.Chain(data.Add(1), abs, data.fail_in_transform)
    dataset = data.Numbers(chain)
    before = list(chain.transforms)
    with attached():
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="planted"):
                list(DataLoader(dataset, batch_size=8))
            assert chain.transforms == before
            assert [type(part) for part in chain.transforms] == [type(part) for part in before]
            assert type(chain) is data.Chain
            assert dataset.transform is chain
        chain.transforms.pop()
        assert len(list(DataLoader(dataset, batch_size=8))) == 6
    assert chain.num_calls == 2 + data.NUM_SAMPLES  # what a transform counts stays counted
    assert type(chain.transforms[0]) is data.Add


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [None, data.Chain(data.Add(1), data.fail_in_transform)])
def test_errors_come_as_they_would_alone(num_workers: int, transform: Any) -> None:
    def error() -> str:
        context = "fork" if num_workers else None
        loader = DataLoader(data.Failing(transform), batch_size=8, num_workers=num_workers, multiprocessing_context=context)
        try:
            list(loader)
        except Exception as exc:
            told = traceback.format_exc()
            traceback.clear_frames(exc.__traceback__)  # torch's workers, found by the garbage collector, would be waited for
            return told
        raise AssertionError("nothing was raised")

    alone = error()
    with attached():
        assert error() == alone


def test_batches_to_time_are_drawn_evenly_and_rarely() -> None:
    """Every third batch costs more: on average that is seen, and timing takes what it may."""
    schedule = TimingSchedule(seed=0)
    timed, cost_ns = [], 0
    for batch in range(30_000):
        clock = schedule.clock()
        if clock is not None:
            timed.append(batch)
            for _ in range(100):
                if clock.is_due("f"):
                    clock.call_timed(f, "f", f)
                else:
                    clock.call(f)
            cost_ns += clock.cost_ns()
        schedule.note(1_000_000, clock, is_worker=False)
    assert 5_000 < cost_ns / 30_000 < 15_000
    shares = [sum(batch % 3 == rest for batch in timed) / len(timed) for rest in range(3)]
    assert all(0.28 < share < 0.39 for share in shares), shares
    assert timed[0] == 0
    assert any(1 < batch < 6 for batch in timed)  # of short passes too


def f() -> None: ...


def test_torchvision_compose_is_seen_wherever_it_is_held() -> None:
    v2 = torchvision_v2()
    from torchvision import transforms as v1

    methods = v1.Compose.__call__, v2.Compose.forward
    for compose in (v1.Compose([data.Add(1), data.Slow()]), v2.Compose([data.Add(1), data.Slow()])):
        found = fault_of(Held(compose), num_workers=0, multiprocessing_context=None)
        assert blamed(found) == ("transform", "Slow")
    assert methods == (v1.Compose.__call__, v2.Compose.forward)


class Held(data.Numbers):
    """Calls a transform that no attribute holds."""

    def __init__(self, compose: Any) -> None:
        super().__init__()
        self.hidden = lambda x: compose(x)

    def __getitem__(self, index: int) -> Any:
        return self.hidden(super().__getitem__(index))
