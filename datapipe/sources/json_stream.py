"""Read large JSON files element by element: an object whose arrays are read one member at a time."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapipe.core import regular_files
from datapipe.errors import DecodeError, FormatError, MissingDataError, StorageError

_READ_NBYTES = 1 << 20
_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


def array_elements(path: Path, keys: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, element) for every element of the arrays that the object in `path` holds under `keys`, in the file's order.

    (key, None) announces an array even if it is empty. Other members are skipped. Memory holds one element (of a skipped
    member: all of it). Raises MissingDataError, StorageError, or FormatError for a file that is not such an object.
    """
    with _text_of(path) as text:
        yield from _members(text, keys)


def list_elements(path: Path) -> Iterator[Any]:
    """Yield the elements of the array in `path`, one at a time. Raises as `array_elements`."""
    with _text_of(path) as text:
        yield from _elements(text)


@contextlib.contextmanager
def _text_of(path: Path) -> Iterator[_Text]:
    try:
        with regular_files.open_file(path) as file:
            yield _Text(path, iter(lambda: file.read(_READ_NBYTES), b""))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check the path of the source") from exc
    except OSError as exc:
        if isinstance(exc, StorageError | DecodeError):
            raise
        raise StorageError(f"{path}: cannot be read ({exc.strerror}); check its permissions") from exc


def _elements(text: _Text) -> Iterator[Any]:
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    yield text.value()
    while text.take_one_of(",]") == ",":
        yield text.value()


def _members(text: _Text, keys: frozenset[str]) -> Iterator[tuple[str, Any]]:
    text.expect("{")
    if text.peek() == "}":
        return
    while True:
        key = text.value()
        if not isinstance(key, str):
            raise text.error("expected a name in quotes")
        text.expect(":")
        if key in keys:
            yield key, None
            for element in _elements(text):
                yield key, element
        else:
            text.value()
        if text.take_one_of(",}") == "}":
            return


class _Text:
    """The rest of the file, as far as it has been read."""

    def __init__(self, path: Path, blocks: Iterator[bytes]) -> None:
        self._path = path
        self._blocks = blocks
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._num_before = 0  # characters dropped from the front
        self._has_ended = False

    def peek(self) -> str:
        """Return the next character that is not a space. Raises FormatError at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                raise self.error("unexpected end: is the file truncated?")

    def take_one_of(self, marks: str) -> str:
        mark = self.peek()
        if mark not in marks:
            raise self.error(f"expected {' or '.join(map(repr, marks))}, found {mark!r}")
        self._at += 1
        return mark

    def expect(self, mark: str) -> None:
        self.take_one_of(mark)

    def value(self) -> Any:
        """Return the next JSON value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as exc:
                if self._more():
                    continue
                if isinstance(exc, json.JSONDecodeError):
                    self._at = exc.pos
                    raise self.error(exc.msg) from exc
                raise self.error(str(exc)) from exc
            if end < len(self._text) or not self._more():  # a number at the end of the text read so far may continue
                self._at = end
                return value

    def error(self, what: str) -> FormatError:
        where = f"character {self._num_before + self._at}"
        return FormatError(f"{self._path}: unexpected JSON at {where}: {what}; repair the file, or get it again")

    def _more(self) -> bool:
        """Read at least as many characters as are left; return False at the end."""
        if self._has_ended:
            return False
        left = self._text[self._at :]
        self._num_before += self._at
        parts = [left]
        wanted, nread = len(left), 0
        while not nread or nread < wanted:
            block = next(self._blocks, b"")
            try:
                parts.append(self._decode.decode(block, final=not block))
            except UnicodeDecodeError as exc:
                raise FormatError(f"{self._path}: is not UTF-8 ({exc.reason}); save it as UTF-8") from exc
            if not block:
                self._has_ended = True
                break
            nread += len(block)
        self._text, self._at = "".join(parts), 0
        return True
