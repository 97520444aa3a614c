"""Keep the shared pieces of a pass: what several batches are filled from, loaded once, in parts, and dropped in time.

Threads take parts of the pieces that are due, each part once; a thread that needs a piece takes its remaining parts, and turns to
other work while threads still load the others. A piece is dropped once no later step needs it, and freed with the last batch that
is filled from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from datapipe.errors import DecodeError, IntegrityError, copied
from datapipe.kernel.kind import SharedPieces
from datapipe.kernel.options import OnError


@dataclass(slots=True, eq=False)
class LoadedPiece:
    """A shared piece that is being loaded, then complete."""

    content: Any  # the kind's own
    parts: Sequence[Any]
    pending: list[int]  # which of `parts` no thread has taken
    left: set[int]  # which are not loaded yet
    is_due: bool = False  # all are loaded, and Ctrl-C came before the piece was complete
    is_complete: bool = False
    error: BaseException | None = None
    waiting: list[Callable[[], object]] = field(default_factory=list)  # called, once, when it is complete


class PieceStore:
    """The shared pieces of one pass. Thread-safe. `first_step`: the first to be made."""

    def __init__(self, pieces: SharedPieces, *, on_error: OnError, first_step: int) -> None:
        self._pieces, self._on_error = pieces, on_error
        self._lock = threading.Lock()
        self._loaded: dict[Hashable, LoadedPiece] = {}
        self._used: dict[int, set[Hashable]] = {}  # by step: the pieces that it needs, and those loaded ahead for it
        self._floor = first_step  # all steps before it are begun

    def use(
        self, step: int, keys: Sequence[Hashable], ahead: Sequence[Hashable]
    ) -> tuple[dict[Hashable, LoadedPiece], list[Callable[[Any], object]]]:
        """Return the pieces that a step needs, and work, functions of a worker, that loads those of `ahead` that are new.

        Drops the pieces that no step needs any more.
        """
        with self._lock:
            mine = {key: self._get(key, step) for key in dict.fromkeys(keys)}
            new = [key for key in dict.fromkeys(ahead) if key not in self._loaded]
            others = {key: self._get(key, step) for key in new}
            if step >= self._floor:
                self._used[step] = {*keys, *ahead}
            while self._floor in self._used and self._floor + 1 in self._used:
                del self._used[self._floor]
                self._floor += 1
            needed = set().union(*self._used.values())
            for key in [key for key in self._loaded if key not in needed]:
                del self._loaded[key]
        at_once = self._pieces.parts_at_once
        work: list[Callable[[Any], object]] = [
            partial(self._load_ahead, key) for key, one in others.items() for _ in range(0, len(one.pending), at_once)
        ]
        return mine, work

    def contents(self, pieces: Sequence[LoadedPiece], worker: Any, when_complete: Callable[[], object]) -> list[Any] | None:
        """Load what no thread has taken of some pieces; return their contents, or None if other threads still load parts.

        Then `when_complete` is called once, by the thread that completes one of them or fails: ask again. Of those who wait for a
        piece the last is called first. Raises what loading raised.
        """
        for piece in pieces:
            while not piece.is_complete and self._load_some(piece, worker):
                pass
        if not all(piece.is_complete for piece in pieces):
            with self._lock:
                incomplete = next((piece for piece in pieces if not piece.is_complete), None)
                if incomplete is not None:
                    incomplete.waiting.append(when_complete)
                    return None
        for piece in pieces:
            if piece.error is not None:
                raise copied(piece.error)
        return [piece.content for piece in pieces]

    def _get(self, key: Hashable, step: int) -> LoadedPiece:
        loaded = self._loaded.get(key)
        if loaded is None:
            content, parts = self._pieces.open(key, step)
            numbers = range(len(parts))
            loaded = self._loaded[key] = LoadedPiece(content, parts, list(numbers), set(numbers))
        return loaded

    def _load_ahead(self, key: Hashable, worker: Any) -> None:
        """Load a remaining part, or several at once, of a piece that is still needed.

        The piece is named, not referenced: queued work must not keep dropped pieces in memory.
        """
        loaded = self._loaded.get(key)
        if loaded is not None:
            self._load_some(loaded, worker)

    def _load_some(self, piece: LoadedPiece, worker: Any) -> bool:
        """Load one remaining part of the piece, or several at once, and complete it after the last.

        Returns whether there was anything to do. What Ctrl-C interrupts is left to the next call.
        """
        numbers: list[int] = []
        is_last = False
        try:
            with self._lock:
                numbers = piece.pending[: self._pieces.parts_at_once]
                del piece.pending[: len(numbers)]
                is_last, piece.is_due = piece.is_due, False
            if numbers:
                self._load(piece, worker, [piece.parts[number] for number in numbers])
                with self._lock:
                    piece.left.difference_update(numbers)
                    is_last = not piece.left
            if is_last:
                self._complete(piece)
            return is_last or bool(numbers)
        except BaseException:
            with self._lock:
                piece.pending[:0] = [number for number in numbers if number in piece.left and number not in piece.pending]
                piece.is_due = not piece.left
            self._call_waiting(piece)
            raise

    def _complete(self, piece: LoadedPiece) -> None:
        try:
            self._pieces.complete(piece.content)
        except Exception as exc:
            piece.error = exc
        with self._lock:
            piece.is_complete = True
        self._call_waiting(piece)

    def _call_waiting(self, piece: LoadedPiece) -> None:
        with self._lock:
            waiting, piece.waiting = piece.waiting, []
        for call in reversed(waiting):  # they come before all other work, so the first one is to be called last
            call()

    def _load(self, piece: LoadedPiece, worker: Any, parts: Sequence[Any]) -> None:
        try:
            self._pieces.load(piece.content, parts, worker)
        except Exception as exc:
            if len(parts) > 1:
                for part in parts:
                    self._load(piece, worker, [part])
            elif isinstance(exc, (DecodeError, IntegrityError)) and self._on_error != "raise":
                try:
                    self._pieces.leave_out(piece.content, parts[0], exc)
                except Exception as error:  # a warning turned into an error
                    piece.error = error
            else:
                piece.error = exc
