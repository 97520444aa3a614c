"""Ranges laid end to end are those that `range` makes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datapipe.core.ranges import ranges, spread


@given(st.lists(st.tuples(st.integers(-(1 << 40), 1 << 40), st.integers(0, 9)), max_size=20))
def test_ranges_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(pairs, np.int64).reshape(-1, 2).T
    assert ranges(starts, lengths).tolist() == [number for start, num in pairs for number in range(start, start + num)]
    assert ranges(0, lengths).tolist() == [number for _, num in pairs for number in range(num)]


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_spread_numbers_are_those_of_evenly_spaced_places(num: int, most: int) -> None:
    found = spread(num, most)
    assert found == sorted({*found})
    if num <= most:
        assert found == list(range(num))
    else:
        assert len(found) == most
        assert found == np.linspace(0, num - 1, most, dtype=np.int64).tolist()
