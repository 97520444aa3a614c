"""Values that threads compute come in order, a few ahead of whoever takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from datapipe.core.ordered import map_in_order


def test_values_come_in_order_and_few_are_computed_ahead() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(50):
            taken.append(number)
            yield number

    def square(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    found = map_in_order(square, numbers(), num_threads=3)
    assert next(found) == 0
    assert len(taken) == 5
    assert [*found] == [number * number for number in range(1, 50)]


def test_an_error_comes_in_its_place_and_what_was_waiting_is_given_up() -> None:
    begun: list[int] = []

    def check(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise ValueError("two")
        return number

    found = map_in_order(check, range(1000), num_threads=1)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(found)
    assert len(begun) < 10
