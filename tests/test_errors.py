"""Errors that are kept are raised as copies."""

from __future__ import annotations

import errno

import pytest

from datapipe.errors import FormatError, StorageError, copied


class _OddError(Exception):
    def __init__(self, place: int, *, reason: str) -> None:
        super().__init__(f"{reason} at {place}")


@pytest.mark.parametrize(
    "kept", [FormatError("x.tar: cut"), StorageError(errno.EIO, "cannot be read", "x.tar"), KeyError("mine"), KeyboardInterrupt()]
)
def test_a_copy_says_the_same_and_leaves_the_kept_error_alone(kept: BaseException) -> None:
    with pytest.raises(type(kept)) as caught:
        raise copied(kept)
    assert (str(caught.value), caught.value.args) == (str(kept), kept.args)
    assert caught.value is not kept
    assert kept.__traceback__ is None


def test_an_error_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(RuntimeError, match="_OddError: short at 3"):
        raise copied(_OddError(3, reason="short"))
