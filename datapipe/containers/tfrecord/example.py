"""Locate each feature's first value in a serialised `tf.train.Example`.

A strict parser of protobuf's wire format, limited to what an Example can hold: every length must fit
into its enclosing structure, so damaged or hostile bytes lead to an error, and memory does not depend on their claims.

    Example {Features features = 1}                Features {map<string, Feature> feature = 1}
    Feature {oneof: BytesList bytes_list = 1, FloatList float_list = 2, Int64List int64_list = 3}
    BytesList {repeated bytes value = 1}           Int64List {repeated int64 value = 1, packed or not}
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from datapipe.errors import FormatError

MAX_FEATURES = 10_000
_MAX_NAME = 1024  # bytes
_VARINT, _DELIMITED, _FIXED = 0, 2, 5  # wire types; the last is of 32 bits
_KINDS = {1: "bytes", 2: "float", 3: "int64"}


@dataclass(frozen=True, slots=True)
class ExampleFeature:
    """A feature, and its first value."""

    kind: str  # "bytes", "float", "int64"; "nothing" for an empty one
    num_values: int  # 0, 1, or 2 for two and more
    offset: int = 0  # of the first value, or of all floats if they lie in one piece; bytes from the start of `data`
    nbytes: int = 0  # 0 for floats in several pieces
    value: int = 0  # the first value of an int64 list

    def __str__(self) -> str:
        if self.kind in ("float", "nothing"):
            return "floats" if self.kind == "float" else "nothing"
        return f"{('no', 'one', 'several')[self.num_values]} {self.kind} value{'s' * (self.num_values != 1)}"


def parse_example(data: mmap.mmap | bytes, start: int, nbytes: int, place: str) -> dict[str, ExampleFeature]:
    """Return the features, by name, of the Example in `nbytes` of `data` from `start`.

    `place` names it in errors. Raises FormatError for anything that is not an Example.
    """
    try:
        return _parse(data, start, start + nbytes)
    except _StrangeError as exc:
        raise FormatError(f"{place}: not a tf.train.Example ({exc}); datapipe reads TFRecords of those only") from None


class _StrangeError(Exception):
    """A message is invalid; the text says why, the caller knows where it lies."""


def _parse(data: mmap.mmap | bytes, start: int, end: int) -> dict[str, ExampleFeature]:
    features: dict[str, ExampleFeature] = {}
    for number, features_start, features_end in _messages(data, start, end):
        if number != 1 or features:
            raise _StrangeError(f"field {number} in it; a SequenceExample?" if number != 1 else "features twice")
        for of_map, entry_start, entry_end in _messages(data, features_start, features_end):
            if of_map != 1:
                raise _StrangeError(f"field {of_map} among its features")
            name, feature = _entry(data, entry_start, entry_end)
            if name in features:
                raise _StrangeError(f"feature {name!r} twice")
            features[name] = feature
            if len(features) > MAX_FEATURES:
                raise _StrangeError(f"more than {MAX_FEATURES} features")
    return features


def _entry(data: mmap.mmap | bytes, start: int, end: int) -> tuple[str, ExampleFeature]:
    name, feature = "", ExampleFeature("nothing", 0)
    for number, field_start, field_end in _messages(data, start, end):
        if number == 1:
            if field_end - field_start > _MAX_NAME:
                raise _StrangeError(f"a feature's name of {field_end - field_start} bytes")
            name = bytes(data[field_start:field_end]).decode(errors="backslashreplace")
        elif number == 2:
            feature = _feature(data, field_start, field_end)
        else:
            raise _StrangeError(f"field {number} in a feature's entry")
    return name, feature


def _feature(data: mmap.mmap | bytes, start: int, end: int) -> ExampleFeature:
    found = list(_messages(data, start, end, at_most=2))
    if not found:
        return ExampleFeature("nothing", 0)
    number, list_start, list_end = found[0]
    if len(found) > 1 or number not in _KINDS:
        raise _StrangeError("a feature of several lists" if len(found) > 1 else f"list of kind {number} in a feature")
    kind = _KINDS[number]
    if kind == "bytes":
        values = list(_messages(data, list_start, list_end, at_most=2))
        return ExampleFeature(kind, len(values), *_extent(values))
    return _integers(data, list_start, list_end) if kind == "int64" else _floats(data, list_start, list_end)


def _extent(values: list[tuple[int, int, int]]) -> tuple[int, int]:
    if any(number != 1 for number, _, _ in values):
        raise _StrangeError("an unknown field in a list of bytes")
    return (values[0][1], values[0][2] - values[0][1]) if values else (0, 0)


def _integers(data: mmap.mmap | bytes, start: int, end: int) -> ExampleFeature:
    """Return the first of a list of integers, which may be packed (in one field) or not (in one field each)."""
    if start == end:
        return ExampleFeature("int64", 0)
    tag, position = _varint(data, start, end)
    if tag == 1 << 3 | _DELIMITED:
        nbytes, position = _varint(data, position, end)
        if not nbytes:
            return ExampleFeature("int64", 0)
        if position + nbytes > end:
            raise _StrangeError(_OVERLONG)
        is_only = position + nbytes == end
        end = position + nbytes
    elif tag != 1 << 3 | _VARINT:
        raise _StrangeError("an unknown field in a list of integers")
    else:
        is_only = True
    value, behind = _varint(data, position, end)
    signed = value - (1 << 64) if value >> 63 else value
    return ExampleFeature("int64", 1 if is_only and behind == end else 2, position, behind - position, signed)


def _floats(data: mmap.mmap | bytes, start: int, end: int) -> ExampleFeature:
    """Return the extent of a list of floats: in one piece if it is packed, or has one element."""
    if start == end:
        return ExampleFeature("float", 0)
    tag, position = _varint(data, start, end)
    if tag == 1 << 3 | _FIXED:
        return ExampleFeature("float", 1, position, 4) if end - position == 4 else ExampleFeature("float", 2)
    if tag != 1 << 3 | _DELIMITED:
        raise _StrangeError("an unknown field in a list of floats")
    nbytes, position = _varint(data, position, end)
    if nbytes > end - position:
        raise _StrangeError(_OVERLONG)
    if nbytes % 4 or position + nbytes != end:
        return ExampleFeature("float", 2)
    return ExampleFeature("float", min(nbytes // 4, 2), position, nbytes)


_OVERLONG = "a length beyond the end"


def _messages(data: mmap.mmap | bytes, start: int, end: int, *, at_most: int = 1 << 30) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, end) of the length-delimited fields; an Example has no others at these levels."""
    position = start
    while position < end and at_most:
        tag, position = _varint(data, position, end)
        if tag & 7 != _DELIMITED:
            raise _StrangeError(f"wire type {tag & 7}")
        nbytes, position = _varint(data, position, end)
        if nbytes > end - position:
            raise _StrangeError(_OVERLONG)
        yield tag >> 3, position, position + nbytes
        position += nbytes
        at_most -= 1


def _varint(data: mmap.mmap | bytes, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits, and where it ends."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise _StrangeError("a number without an end")
