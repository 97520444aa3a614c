"""Ranges laid end to end are those that `range` makes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datapipe.core.ranges import ranges


@given(st.lists(st.tuples(st.integers(-(1 << 40), 1 << 40), st.integers(0, 9)), max_size=20))
def test_ranges_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(pairs, np.int64).reshape(-1, 2).T
    assert ranges(starts, lengths).tolist() == [number for start, num in pairs for number in range(start, start + num)]
    assert ranges(0, lengths).tolist() == [number for _, num in pairs for number in range(num)]
