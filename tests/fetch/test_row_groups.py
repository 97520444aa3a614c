"""Row groups in memory: no more than there is room for, read once however many threads ask, and as rarely as orders allow."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import DatapipeError, IntegrityError, StorageError
from datapipe.fetch.local import LocalFiles, plan_reads
from datapipe.fetch.row_groups import RowGroups, max_lanes, row_groups_of_windows
from datapipe.index.entries import Extents, RowGroup
from datapipe.order.plan import Cursor, Plan, Rank, Tail
from datapipe.order.sample_order import MAX_LANES, WindowedOrder


@dataclass(frozen=True)
class Values:
    """Rows of one row group, which say where they are from."""

    group: RowGroup
    nbytes: int

    def __getitem__(self, row: int) -> bytes:
        return b"%d" % (self.group.first + row)


def group(number: int, rows: int = 10) -> RowGroup:
    return RowGroup("parquet", "x.parquet", "image", number, number * rows, (number + 1) * rows)


class Reader:
    """Reads row groups of that many bytes; counts."""

    def __init__(self, nbytes: int = 100, pause_s: float = 0.0) -> None:
        self.counts: Counter[RowGroup] = Counter()
        self._nbytes, self._pause_s = nbytes, pause_s

    def __call__(self, asked: RowGroup) -> Values:
        self.counts[asked] += 1
        time.sleep(self._pause_s)
        return Values(asked, self._nbytes)


@quick
@given(
    asked=st.lists(st.integers(0, 12), max_size=60),
    sizes=st.lists(st.integers(0, 300), min_size=13, max_size=13),
    max_nbytes=st.integers(0, 1000),
    min_groups=st.integers(1, 4),
)
def test_no_more_is_kept_than_there_is_room_for(asked: list[int], sizes: list[int], max_nbytes: int, min_groups: int) -> None:
    """And the most recently requested ones are kept."""
    read: list[int] = []

    def reader(one: RowGroup) -> Values:
        read.append(one.number)
        return Values(one, sizes[one.number])

    cache = RowGroups(max_nbytes=max_nbytes, min_groups=min_groups, read=reader)
    kept: list[int] = []
    for number in asked:
        num_read = len(read)
        assert cache.value(group(number), number * 10 + 3) == b"%d" % (number * 10 + 3)
        assert read[num_read:] == ([] if number in kept else [number])
        kept = [*(other for other in kept if other != number), number]
        while len(kept) > min_groups and sum(sizes[other] for other in kept) > max_nbytes:
            kept.pop(0)
        assert cache.nbytes == sum(sizes[other] for other in kept)
        assert cache.nbytes <= max_nbytes or len(kept) <= min_groups


def test_what_was_read_to_the_end_goes_first() -> None:
    """In another epoch it is as good as any."""
    cache = RowGroups(max_nbytes=300, read=(reader := Reader()))

    def touch(number: int, *, num: int = 1) -> None:
        for row in range(num):
            cache.value(group(number), number * 10 + row)

    touch(0)
    touch(1)
    touch(2, num=10)
    touch(3)
    assert reader.counts == {group(number): 1 for number in range(4)}
    touch(0)
    touch(1)
    assert reader.counts == {group(number): 1 for number in range(4)}, "2 had to go"
    touch(0, num=9)
    touch(0)
    touch(4)
    assert reader.counts[group(0)] == 1
    touch(0)
    assert reader.counts[group(0)] == 1, "it was begun anew, so 3 had to go"


@pytest.fixture
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_threads(num: int, work: Any) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    assert failures == []


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_ask_at_once_share_one_reading() -> None:
    reader = Reader(pause_s=0.02)
    cache = RowGroups(read=reader)
    begin = threading.Barrier(8)

    def work(number: int) -> None:
        begin.wait()
        for one in range(5):
            assert cache.value(group(one), one * 10 + number) == b"%d" % (one * 10 + number)

    run_threads(8, work)
    assert set(reader.counts.values()) == {1}
    assert len(reader.counts) == 5


def test_the_bound_holds_at_every_moment() -> None:
    """Also while one row group takes the place of another, which is when other threads look."""
    seen: list[int] = []

    class Watched(RowGroups):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_nbytes":
                seen.append(value)

    cache = Watched(max_nbytes=250, read=Reader())
    for number in (0, 1, 2, 0, 3, 4):
        cache.value(group(number), number * 10)
    assert max(seen) == 200


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_push_out_each_others_row_groups_get_the_right_ones() -> None:
    cache = RowGroups(max_nbytes=250, read=Reader())

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 6, 500).tolist():
            assert cache.value(group(number), number * 10 + seed) == b"%d" % (number * 10 + seed)
            assert cache.nbytes <= 250

    run_threads(8, work)


def test_what_failed_is_tried_again() -> None:
    """Threads that waited meanwhile get the same error, each as an exception of its own."""
    asked, begin = [0], threading.Barrier(4)

    def read(one: RowGroup) -> Values:
        asked[0] += 1
        if asked[0] == 1:
            time.sleep(0.05)
            raise StorageError(5, "x.parquet: cannot be read")
        return Values(one, 1)

    cache = RowGroups(read=read)
    caught: list[DatapipeError] = []

    def work(number: int) -> None:
        begin.wait()
        with pytest.raises(StorageError) as failed:
            cache.value(group(0), 0)
        caught.append(failed.value)

    run_threads(4, work)
    assert asked == [1]
    assert len({id(error) for error in caught}) == 4
    assert {(str(error), error.errno) for error in caught if isinstance(error, StorageError)} == {(str(caught[0]), 5)}
    assert cache.value(group(0), 0) == b"0"
    assert cache.nbytes == 1


def test_who_waits_for_a_thread_that_is_interrupted_reads_himself() -> None:
    first, interrupted = threading.Event(), []

    def read(one: RowGroup) -> Values:
        if not first.is_set():
            first.set()
            time.sleep(0.05)
            raise KeyboardInterrupt
        return Values(one, 1)

    cache = RowGroups(read=read)

    def work(number: int) -> None:
        if number == 0:
            with pytest.raises(KeyboardInterrupt):
                cache.value(group(0), 0)
            interrupted.append(number)
        else:
            first.wait()
            assert cache.value(group(0), 1) == b"1"

    run_threads(3, work)
    assert interrupted == [0]


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def read(one: RowGroup) -> Values:
        if threading.current_thread() is not threading.main_thread():
            reading.set()
            go_on.wait(60)
        return Values(one, 1)

    cache = RowGroups(read=read)
    thread = threading.Thread(target=lambda: cache.value(group(0), 0))
    thread.start()
    reading.wait(60)
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(int(cache.value(group(0), 7))))
    child.start()
    child.join(30)
    go_on.set()
    thread.join(60)
    assert child.exitcode == 7


# -- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("uneven", [False, True])
def test_row_groups_of_a_windowed_epoch_are_read_once_in_the_room_that_is_meant_for_them(world_size: int, uneven: bool) -> None:
    """Row groups of 30 MB, and batches made two ahead. A rank that shares a row group with another reads it too."""
    nbytes, num_groups = 30 << 20, 120
    sizes = np.where(np.arange(num_groups) % 2, 20, 60) if uneven else np.full(num_groups, 40)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order = WindowedOrder(starts, 3, global_batch=32, max_lanes=max_lanes(nbytes))
    assert order.num_lanes == 4
    total = 0
    for rank in range(world_size):
        counts: Counter[RowGroup] = Counter()

        def read(one: RowGroup, counts: Counter[RowGroup] = counts) -> Values:
            counts[one] += 1
            return Values(one, nbytes * int(sizes[one.number]) // 40)

        cache = row_groups_of_windows(1)
        cache._read = read
        steps = list(Plan(order, 32 // world_size, Rank(rank, world_size), Tail.DROP).steps(Cursor(1)))
        for step in range(0, len(steps), 3):  # in any order within what is in the making
            positions = np.random.default_rng(step).permutation(np.concatenate([one.positions for one in steps[step : step + 3]]))
            numbers = np.searchsorted(starts, positions, side="right") - 1
            for number, position in zip(numbers.tolist(), positions.tolist(), strict=True):
                one = RowGroup("parquet", "x.parquet", "image", number, int(starts[number]), int(starts[number + 1]))
                assert cache.value(one, position) == b"%d" % position
        assert set(counts.values()) == {1}
        total += len(counts)
    num_owners = max(1, world_size // 4)  # ranks that share a lane
    assert total <= num_owners * (num_groups + order.num_lanes)


@given(nbytes=st.integers(0, 1 << 40))
def test_lanes_are_fewer_where_row_groups_are_large(nbytes: int) -> None:
    lanes = max_lanes(nbytes)
    assert lanes == 1 or 5 * nbytes * lanes <= 1 << 30
    assert WindowedOrder(np.array([0, 10]), 0, 64, max_lanes=lanes).num_lanes <= min(lanes, MAX_LANES)


def test_row_groups_that_are_larger_than_the_room_are_kept_for_one_lane() -> None:
    reader, cache = Reader(2 << 30), row_groups_of_windows(1)
    cache._read = reader
    for number in (0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5):
        cache.value(group(number), number * 10)
    assert set(reader.counts.values()) == {1}
    cache.value(group(0), 0)
    assert reader.counts[group(0)] == 2


# -- extents --------------------------------------------------------------------------------------


def test_extents_may_be_rows_or_bytes(tmp_path: Any) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(bytes(range(100)))
    extents = Extents(
        [str(path)] * 3, np.array([17, 5, 10]), np.array([0, 5, 3]), np.zeros(3, np.uint32), np.zeros(3, np.uint8), False,
        codecs=[group(1), "", ""],
    )  # fmt: skip
    files = LocalFiles(row_groups=RowGroups(read=Reader()))
    assert [files.read(extents, row) for row in range(3)] == [b"17", bytes(range(5, 10)), bytes(range(10, 13))]
    assert [(span.offset, span.nbytes) for span in plan_reads(extents, max_gap=0)] == [(5, 8)]
    files.will_need(extents)


def test_errors_say_which_rows(tmp_path: Any) -> None:
    from datapipe.containers.formats import read_rows

    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1" * 9)
    with pytest.raises(IntegrityError, match=r"x\.parquet: 'image' of rows 10 to 19 cannot be read \(.*damaged, or changed"):
        read_rows(RowGroup("parquet", str(path), "image", 1, 10, 20))
