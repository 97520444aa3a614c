"""Shared pieces: each part is loaded once, and no thread waits for the parts that another one loads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from datapipe.errors import DecodeError
from datapipe.kernel.options import OnError
from datapipe.kernel.shared_pieces import PieceStore

LIMIT_S = 30.0


class Words:
    """Pieces whose parts are letters; loading one may be held up, or fail."""

    parts_at_once = 1

    def __init__(self, held_up: dict[str, threading.Event] | None = None, bad: str = "") -> None:
        self.held_up, self.bad = held_up or {}, bad
        self.loaded: list[str] = []
        self.begun = threading.Event()

    def open(self, key: Any, step: int) -> tuple[list[str], list[str]]:
        return [], list(key)

    def load(self, piece: list[str], parts: Sequence[str], worker: Any) -> None:
        (letter,) = parts
        self.loaded.append(letter)
        if letter in self.held_up:
            self.begun.set()
            assert self.held_up[letter].wait(LIMIT_S)
        if letter == self.bad:
            raise DecodeError(f"{letter} is bad")
        piece.append(letter)

    def leave_out(self, piece: list[str], part: str, reason: Exception) -> None:
        piece.append("-")

    def complete(self, piece: list[str]) -> None:
        piece.sort()


def never() -> None:
    raise AssertionError("nobody else loads anything")


def store_of(words: Words, on_error: OnError = "raise") -> PieceStore:
    return PieceStore(words, on_error=on_error, first_step=0)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_one_thread_loads_all_parts_of_several_pieces() -> None:
    words = Words()
    store = store_of(words)
    pieces, work = store.use(0, ["ab", "cd"], ["ef"])
    assert store.contents([pieces["cd"], pieces["ab"]], None, never) == [["c", "d"], ["a", "b"]]
    assert store.contents([pieces["ab"]], None, never) == [["a", "b"]]
    assert words.loaded == ["c", "d", "a", "b"]
    for load in work:
        load(None)
    assert words.loaded == ["c", "d", "a", "b", "e", "f"]


def test_a_thread_is_called_when_another_one_has_completed_a_piece() -> None:
    let_go, called = threading.Event(), threading.Event()
    words = Words({"a": let_go})
    store = store_of(words)
    pieces, _ = store.use(0, ["ab", "cd"], [])
    other = in_thread(lambda: store.contents([pieces["ab"]], None, never))
    assert words.begun.wait(LIMIT_S)
    assert store.contents([pieces["ab"], pieces["cd"]], None, called.set) is None  # at once, after it did what there was to do
    assert sorted(words.loaded) == ["a", "b", "c", "d"]
    assert not called.is_set()
    let_go.set()
    assert called.wait(LIMIT_S)
    other.join(LIMIT_S)
    assert store.contents([pieces["ab"], pieces["cd"]], None, never) == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_error_reaches_those_who_asked_before_and_after(on_error: OnError) -> None:
    let_go, called = threading.Event(), threading.Event()
    words = Words({"a": let_go}, bad="a")
    store = store_of(words, on_error)
    pieces, _ = store.use(0, ["a"], [])
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            assert store.contents([pieces["a"]], None, never) == [["-"]]
        except DecodeError as exc:
            raised.append(exc)

    other = in_thread(ask)
    assert words.begun.wait(LIMIT_S)
    assert store.contents([pieces["a"]], None, called.set) is None
    let_go.set()
    assert called.wait(LIMIT_S)
    other.join(LIMIT_S)
    ask()
    assert len(raised) == (2 if on_error == "raise" else 0)


def test_those_who_wait_longest_are_called_last_as_the_last_comes_first() -> None:
    let_go, called = threading.Event(), list[int]()
    words = Words({"a": let_go})
    store = store_of(words)
    pieces, _ = store.use(0, ["a"], [])
    other = in_thread(lambda: store.contents([pieces["a"]], None, never))
    assert words.begun.wait(LIMIT_S)
    for number in range(3):
        assert store.contents([pieces["a"]], None, partial(called.append, number)) is None
    let_go.set()
    other.join(LIMIT_S)
    assert called == [2, 1, 0]
