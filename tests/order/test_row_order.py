"""Orders of rows: bijections, the same for any split, that touch few row groups at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import OptionError
from datapipe.order.row_order import RunOrder, StoredRows, WindowedRows
from datapipe.order.row_permutation import MAX_ROWS, RowPermutation
from datapipe.order.sample_order import TABLE_LIMIT


def rows_of_runs(order: RunOrder, epoch: int, start: int, stop: int) -> np.ndarray:
    """What the runs of a range hold, without `__call__`."""
    parts = [np.empty(0, np.int64)]
    for run in order.runs(epoch, start, stop):
        table = np.concatenate(
            [order.starts[piece.group] + np.arange(piece.start, piece.stop) for piece in order.parts(run.window)]
        )
        assert len(table) == len(run.window) <= order.max_window
        shuffled = order.shuffled(run.window)
        parts.append((table if shuffled is None else table[shuffled])[run.start : run.stop])
    return np.concatenate(parts)


@settings(max_examples=30)
@given(num=st.one_of(st.integers(1, 2000), st.integers(TABLE_LIMIT - 2, TABLE_LIMIT + 5000)), key=st.integers(0, 2**64 - 1))
def test_permutation_is_a_bijection(num: int, key: int) -> None:
    assert np.array_equal(np.sort(RowPermutation(num, key)(0, num)), np.arange(num))


@settings(max_examples=30)
@given(start=st.integers(0, 200_000), length=st.integers(0, 70_000))
def test_a_part_of_a_permutation_is_that_part(start: int, length: int) -> None:
    permutation = RowPermutation(270_000, 5)
    assert np.array_equal(permutation(start, start + length), whole_of_270_000()[start : start + length])


_kept: list[np.ndarray] = []


def whole_of_270_000() -> np.ndarray:
    if not _kept:
        _kept.append(RowPermutation(270_000, 5)(0, 270_000))
    return _kept[0]


def test_permutation_is_the_same_for_ever() -> None:
    """Saved states depend on these numbers."""
    assert RowPermutation(1_000_003, 42)(0, 6).tolist() == PERMUTED
    assert RowPermutation(4_000_000_007, 42)(3_999_999_990, 3_999_999_994).tolist() == PERMUTED_LARGE


PERMUTED = [682770, 379980, 559753, 379808, 603255, 821099]
PERMUTED_LARGE = [3366198995, 2385480588, 1111638436, 2101551638]


@pytest.mark.parametrize("num", [100_000, 262_144, 1_000_000])
def test_permutation_looks_random(num: int) -> None:
    """Places of neighbours are uncorrelated and even, for several keys; bounds are five standard deviations."""
    for key in range(4):
        found = RowPermutation(num, key * 977 + 1)(0, num)
        steps = np.diff(found)
        ascending = np.count_nonzero(steps > 0)
        assert abs(ascending - num / 2) < 5 * np.sqrt(num / 12)
        correlation = np.corrcoef(found[:-1], found[1:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(num)
        table, _, _ = np.histogram2d(np.arange(num), found, bins=16)
        chi = ((table - num / 256) ** 2 / (num / 256)).sum()
        assert chi < 225 + 5 * np.sqrt(2 * 225)
        assert np.count_nonzero(found == np.arange(num)) < 12  # fixed points: one is expected


def test_permutations_differ_by_key() -> None:
    one, other = (RowPermutation(100_000, key)(0, 100_000) for key in (1, 2))
    assert np.count_nonzero(one == other) < 12


def test_permutation_beyond_its_range_is_refused() -> None:
    with pytest.raises(OptionError, match="split the table"):
        RowPermutation(MAX_ROWS + 1, 0)


groups = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@settings(max_examples=60)
@given(sizes=groups, batch=st.integers(1, 64), budget=st.integers(1, 4000), epoch=st.integers(0, 3))
def test_windowed_rows_are_a_bijection(sizes: list[int], batch: int, budget: int, epoch: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = WindowedRows.within(starts, seed=3, global_batch=batch, row_nbytes=4, window_nbytes=budget)
    assert batch % order.num_lanes == 0
    found = rows_of_runs(order, epoch, 0, len(order))
    assert np.array_equal(np.sort(found), np.arange(len(order)))
    assert np.array_equal(order(epoch, np.arange(len(order))), found)


@settings(max_examples=60)
@given(sizes=groups, batch=st.integers(1, 64), data=st.data())
def test_any_range_is_that_part_of_the_epoch(sizes: list[int], batch: int, data: st.DataObject) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = WindowedRows.within(starts, seed=1, global_batch=batch, row_nbytes=4, window_nbytes=1000)
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    assert np.array_equal(rows_of_runs(order, 2, start, stop), rows_of_runs(order, 2, 0, len(order))[start:stop])


@settings(max_examples=40)
@given(sizes=groups, batch=st.integers(1, 64), budget=st.integers(1, 4000))
def test_windows_of_a_lane_follow_each_other(sizes: list[int], batch: int, budget: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = WindowedRows.within(starts, seed=1, global_batch=batch, row_nbytes=4, window_nbytes=budget)
    windows = list(dict.fromkeys(run.window for run in order.runs(0, 0, len(order))))
    for lane in {window.lane for window in windows}:
        mine = sorted((window for window in windows if window.lane == lane), key=lambda window: window.first)
        assert [order.following(window) for window in mine] == [*mine[1:], None]
        assert all(one.end == other.first for one, other in itertools.pairwise(mine))


def test_few_row_groups_are_under_way() -> None:
    """A step takes equal shares of all lanes, each from one window or two, and batches mix many row groups."""
    starts = np.arange(0, 64 * 1000 + 1, 1000)
    order = WindowedRows(starts, 1, global_batch=800, num_lanes=8, groups_per_window=2)
    for step in range(80):
        runs = list(order.runs(0, step * 800, (step + 1) * 800))
        assert {run.window.lane for run in runs} == set(range(8))
        assert len(runs) <= 16
        rows = order(0, np.arange(step * 800, (step + 1) * 800))
        assert len(np.unique(rows // 1000)) >= 8


def test_lanes_and_windows_fill_the_budget() -> None:
    starts = np.arange(0, 64 * 1000 + 1, 1000)
    order = WindowedRows.within(starts, seed=0, global_batch=4096, row_nbytes=100, window_nbytes=10_000_000)
    assert (order.num_lanes, order.groups_per_window) == (16, 3)
    small = WindowedRows.within(starts, seed=0, global_batch=4096, row_nbytes=100, window_nbytes=1)
    assert (small.num_lanes, small.groups_per_window) == (1, 1)
    assert small.kind != order.kind


def test_epochs_differ_and_repeat() -> None:
    order = WindowedRows(np.arange(0, 10_001, 500), 9, global_batch=100, num_lanes=4, groups_per_window=1)
    first = rows_of_runs(order, 0, 0, 10_000)
    assert not np.array_equal(first, rows_of_runs(order, 1, 0, 10_000))
    assert np.array_equal(first, rows_of_runs(order, 0, 0, 10_000))


def test_lanes_must_divide_the_step() -> None:
    with pytest.raises(OptionError, match="do not divide"):
        WindowedRows(np.array([0, 10]), 0, global_batch=10, num_lanes=3, groups_per_window=1)


def test_stored_rows_are_in_stored_order() -> None:
    order = StoredRows(np.array([0, 3, 10, 11]))
    assert rows_of_runs(order, 5, 2, 11).tolist() == list(range(2, 11))
    assert [run.window.number for run in order.runs(0, 2, 11)] == [0, 1, 2]
