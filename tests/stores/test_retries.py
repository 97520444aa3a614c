"""Attempts that fail for a reason that may pass are made again, after pauses that grow; others at once are errors."""

from __future__ import annotations

import pytest

import datapipe as dp
from datapipe.stores import failures
from datapipe.stores.attempts import retried
from datapipe.stores.failures import ShortBodyError
from datapipe.stores.places import parse_location

PLACE = parse_location("s3://b/x")


def test_pauses_double_up_to_ten_seconds() -> None:
    for attempts in range(12):
        longest_s = min(10.0, 0.1 * 2**attempts)
        pauses = [failures.pause_s(attempts) for _ in range(200)]
        assert 0 <= min(pauses) < 0.1 * longest_s
        assert 0.9 * longest_s < max(pauses) <= longest_s


def failing(times: int, error: Exception) -> list[int]:
    left = [times]

    def attempt(left_s: float) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "done"

    assert retried(attempt, PLACE) == "done"
    return left


def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LONGEST_PAUSE_S", 0.0)
    assert failing(5, ShortBodyError("1 of 2 bytes")) == [-1]


def test_what_will_not_pass_is_an_error_at_once() -> None:
    with pytest.raises(dp.errors.MissingDataError, match="s3://b/x: no such object"):
        failing(1, FileNotFoundError("gone"))


def test_it_ends_after_a_while_without_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LONGEST_PAUSE_S", 0.001)
    attempts = 0

    def attempt(left_s: float) -> None:
        nonlocal attempts
        attempts += 1
        raise ShortBodyError("1 of 2 bytes")

    with pytest.raises(
        dp.errors.StorageError, match=r"s3://b/x: no success in 0 s and \d+ attempts, with 0.05 s at most: the answer was cut"
    ):
        retried(attempt, PLACE, timeout_s=0.05)
    assert attempts > 1
