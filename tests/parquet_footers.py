"""Footers of Parquet files taken apart and put together again: for files whose footer lies, and everything else is sound.

Thrift's compact protocol (apache/thrift: thrift-compact-protocol.md), read into lists that can be changed and written back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_END = b"PAR1"


@dataclass
class Struct:
    """A struct: its fields by number, each a kind and a value. Lists are (kind, values)."""

    fields: dict[int, tuple[int, Any]]

    def __getitem__(self, number: int) -> Any:
        kind, value = self.fields[number]
        return value[1] if kind in (LIST, SET) else value

    def __setitem__(self, number: int, value: Any) -> None:
        kind, _ = self.fields.get(number, (I64, None))
        self.fields[number] = (kind, value)


def footer_of(data: bytes) -> Struct:
    """The footer of a Parquet file: FileMetaData of parquet.thrift."""
    nbytes = int.from_bytes(data[-8:-4], "little")
    return _Reader(data[-8 - nbytes : -8]).struct()


def with_footer(data: bytes, footer: Struct) -> bytes:
    """The file with that footer in place of its own."""
    nbytes = int.from_bytes(data[-8:-4], "little")
    written = _written(STRUCT, footer)
    return data[: -8 - nbytes] + written + len(written).to_bytes(4, "little") + _END


def tampered(data: bytes, change: Callable[[Struct], None]) -> bytes:
    """The file with a changed footer."""
    footer = footer_of(data)
    change(footer)
    return with_footer(data, footer)


def claim_rows(data: bytes, num_rows: int, *, with_values: bool = True, group: int = 0) -> bytes:
    """The file, one of whose row groups claims that many rows; `with_values`: its columns claim as many values."""

    def change(footer: Struct) -> None:
        groups = footer[4]
        footer[3] = footer[3] - groups[group][3] + num_rows
        groups[group][3] = num_rows
        for column in groups[group][1] if with_values else ():
            column[3][5] = num_rows

    return tampered(data, change)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self.signed()
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            head = self.byte()
            num = head >> 4 if head >> 4 < 15 else self.varint()
            element = head & 15
            if num > len(self.data) - self.place:
                raise ValueError("a list is longer than the footer")
            return element, [self.byte() if element in (TRUE, FALSE) else self.value(element) for _ in range(num)]
        nbytes = {BYTE: 1, DOUBLE: 8}.get(kind) or self.varint()
        self.place += nbytes
        return self.data[self.place - nbytes : self.place]

    def struct(self) -> Struct:
        fields: dict[int, tuple[int, Any]] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.signed()
            fields[number] = (head & 15, self.value(head & 15))
        return Struct(fields)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _written(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _varint((value << 1 ^ value >> 63) & (1 << 64) - 1)
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind in (BYTE, DOUBLE):
        return bytes(value)
    if kind in (LIST, SET):
        element, items = value
        head = bytes([len(items) << 4 | element]) if len(items) < 15 else bytes([0xF0 | element]) + _varint(len(items))
        return head + b"".join(bytes([one]) if element in (TRUE, FALSE) else _written(element, one) for one in items)
    out, before = bytearray(), 0
    for number, (inner, one) in sorted(value.fields.items()):
        inner = (TRUE if one else FALSE) if inner in (TRUE, FALSE) else inner
        step = number - before
        out += bytes([step << 4 | inner]) if 0 < step < 16 else bytes([inner]) + _written(I16, number)
        out += b"" if inner in (TRUE, FALSE) else _written(inner, one)
        before = number
    return bytes(out) + b"\0"
