"""Looks at many files: in order, by one thread where they compute and by several where they wait."""

from __future__ import annotations

import threading
import time

import pytest

from datapipe.opening.looking import look_at_each


class Look:
    """Returns the square of a number after `wait_s` seconds, and keeps who looked."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.wait_s, self.threads = wait_s, set[int]()

    def __call__(self, number: int) -> int:
        self.threads.add(threading.get_ident())
        if self.wait_s:
            time.sleep(self.wait_s)
        return number * number


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("wait_s", [0.0, 0.002])
@pytest.mark.parametrize("num", [0, 1, 64, 65, 300])
def test_all_are_looked_at_in_order(num: int, wait_s: float, is_remote: bool) -> None:
    assert list(look_at_each(Look(wait_s), num, is_remote=is_remote)) == [number * number for number in range(num)]


def test_looks_that_compute_stay_in_their_thread() -> None:
    look = Look()
    assert len(list(look_at_each(look, 1000, is_remote=False))) == 1000
    assert look.threads == {threading.get_ident()}


def test_looks_that_wait_are_spread_over_threads() -> None:
    look = Look(wait_s=0.002)
    assert len(list(look_at_each(look, 300, is_remote=False))) == 300
    assert len(look.threads) > 2


def test_looks_at_a_store_are_spread_from_the_beginning() -> None:
    look = Look(wait_s=0.002)
    assert len(list(look_at_each(look, 60, is_remote=True))) == 60
    assert threading.get_ident() not in look.threads
    assert len(look.threads) > 1


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_error_comes_in_its_place(is_remote: bool) -> None:
    def look(number: int) -> int:
        if number == 70:
            raise ValueError("70 is damaged")
        return number

    found = look_at_each(look, 100, is_remote=is_remote)
    assert [next(found) for _ in range(64)] == list(range(64))
    with pytest.raises(ValueError, match="70 is damaged"):
        list(found)
