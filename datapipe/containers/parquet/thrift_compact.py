"""Parse Thrift's compact protocol, used by Parquet's headers and footers (apache/thrift: thrift-compact-protocol.md).

A strict parser: every length must fit into its enclosing structure, structs nest only a few levels deep, and only requested
fields are kept. So hostile bytes cost time in proportion to their number only, and no memory for what they claim. (pyarrow's
own access to footers ends the process for values that it does not know.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.containers.mapped import ByteSource

# Fields to keep, by number: None for a number, a boolean or a string, a nested shape for a struct and a list of structs.
Shape = Mapping[int, "Shape | None"]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_FIXED_NBYTES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_MAX_DEPTH = 8
_MAX_FIELDS = 64  # of a struct
_MAX_KEPT = 1 << 20  # structs in lists


class DamagedError(Exception):
    """Bytes that no writer produces; the caller knows in which file."""


def read_struct(data: ByteSource, position: int, end: int, shape: Shape) -> tuple[dict[int, Any], int]:
    """Return the requested fields of a struct by number, according to `shape`, and where the struct ends.

    Numbers and booleans are int and bool, strings bytes, structs dicts, lists of structs lists. Raises DamagedError.
    """
    return _Reader(data, end).struct(position, shape, 0)


def read_varint(data: ByteSource, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits, and where it ends. Raises DamagedError."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise DamagedError(f"a number is cut at byte {end}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedError(f"a number without an end at byte {position}")


def number_in(fields: dict[int, Any], number: int) -> int:
    """Return a field that must exist and must not be negative. Raises DamagedError."""
    value = fields.get(number)
    if type(value) is not int or value < 0:
        raise DamagedError(f"field {number} of a header is {value!r}, expected a number")
    return value


class _Reader:
    """Parses the values of one struct; counts what it keeps."""

    __slots__ = ("data", "end", "num_kept")

    def __init__(self, data: ByteSource, end: int) -> None:
        self.data = data
        self.end = end
        self.num_kept = 0

    def struct(self, position: int, shape: Shape, depth: int) -> tuple[dict[int, Any], int]:
        fields: dict[int, Any] = {}
        number = 0
        for _ in range(_MAX_FIELDS):
            head, position = self._byte(position)
            if not head:
                return fields, position
            kind = head & 15
            if head >> 4:
                number += head >> 4
            else:
                number, position = self._signed(position)
            if number not in shape:
                position = self._skip(position, kind, depth)
            elif kind in (_TRUE, _FALSE):
                if shape[number] is not None:
                    raise DamagedError(f"a boolean at byte {position}, expected a struct")
                fields[number] = kind == _TRUE
            elif shape[number] is None:
                fields[number], position = self._scalar(position, kind)
            else:
                fields[number], position = self._nested(position, kind, shape[number] or {}, depth)
        raise DamagedError(f"a header of more than {_MAX_FIELDS} fields at byte {position}")

    def _scalar(self, position: int, kind: int) -> tuple[int | bytes, int]:
        if kind in (_I16, _I32, _I64):
            return self._signed(position)
        if kind != _BINARY:
            raise DamagedError(f"a value of type {kind} at byte {position}, expected a number or a string")
        nbytes, position = self._length(position)
        return bytes(self.data[position : position + nbytes]), position + nbytes

    def _nested(self, position: int, kind: int, shape: Shape, depth: int) -> tuple[Any, int]:
        if depth >= _MAX_DEPTH or kind not in (_STRUCT, _LIST):
            raise DamagedError(f"a value of type {kind} at byte {position}, expected a struct")
        if kind == _STRUCT:
            return self.struct(position, shape, depth + 1)
        element, num, position = self._list_head(position)
        if element != _STRUCT and num:
            raise DamagedError(f"a list of type {element} at byte {position}, expected one of structs")
        self.num_kept += num
        if self.num_kept > _MAX_KEPT:
            raise DamagedError(f"more than {_MAX_KEPT} structs in a header, which is implausible")
        found = []
        for _ in range(num):
            one, position = self.struct(position, shape, depth + 1)
            found.append(one)
        return found, position

    def _skip(self, position: int, kind: int, depth: int) -> int:
        if kind in (_TRUE, _FALSE):
            return position
        if kind in (_I16, _I32, _I64):
            return read_varint(self.data, position, self.end)[1]
        if kind == _BINARY:
            nbytes, position = self._length(position)
            return position + nbytes
        if kind in _FIXED_NBYTES:
            return self._within(position, _FIXED_NBYTES[kind])
        if kind not in (_LIST, _SET, _MAP, _STRUCT) or depth >= _MAX_DEPTH:
            raise DamagedError(f"a value of type {kind} at byte {position}")
        if kind == _STRUCT:
            return self.struct(position, {}, depth + 1)[1]
        elements: tuple[int, ...]
        if kind == _MAP:
            num, position = read_varint(self.data, position, self.end)
            if not num:
                return position
            kinds, position = self._byte(position)
            elements = (kinds >> 4, kinds & 15)
        else:
            element, num, position = self._list_head(position)
            elements = (element,)
        for _ in range(num):  # each takes at least a byte, so this ends with the data
            for element in elements:
                position = self._within(position, 1) if element in (_TRUE, _FALSE) else self._skip(position, element, depth + 1)
        return position

    def _list_head(self, position: int) -> tuple[int, int, int]:
        """Return type and number of the elements, and where they begin."""
        head, position = self._byte(position)
        num = head >> 4
        if num == 15:
            num, position = read_varint(self.data, position, self.end)
        if num > self.end - position:
            raise DamagedError(f"a list at byte {position} is longer than its enclosing structure")
        return head & 15, num, position

    def _length(self, position: int) -> tuple[int, int]:
        nbytes, position = read_varint(self.data, position, self.end)
        self._within(position, nbytes)
        return nbytes, position

    def _within(self, position: int, nbytes: int) -> int:
        if nbytes > self.end - position:
            raise DamagedError(f"a value at byte {position} reaches beyond its enclosing structure")
        return position + nbytes

    def _signed(self, position: int) -> tuple[int, int]:
        value, position = read_varint(self.data, position, self.end)
        return value >> 1 ^ -(value & 1), position

    def _byte(self, position: int) -> tuple[int, int]:
        if position >= self.end:
            raise DamagedError(f"a header is cut at byte {self.end}")
        return self.data[position], position + 1
