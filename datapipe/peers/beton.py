"""Scan FFCV's `.beton` files: where the fields of each sample lie, and its label.

    file     header; a description of each field; a record for each sample; pages of data; the table of allocations
    header   uint16 version 2, uint16 fields, uint32 bytes a page, uint64 samples, uint64 place of the table
    field    uint8 type, 16 bytes name, 1,024 bytes of arguments
    record   the fields' parts, aligned as numpy's structures are: a number itself; of others where they lie in the pages

A JPEG's size stands in the table of allocations alone. All numbers are little-endian (ffcv/types.py, ffcv/fields).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.npy import npy_header
from datapipe.codecs.stored import PLAIN, absent, prefixed
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows
from datapipe.peers.packed import PackedValues
from datapipe.peers.packed_fields import BYTES, ENCODED, MAX_DIMENSIONS, StoredAs, number_of, packed_rows

_FORM = "a .beton file of FFCV's"
_HEADER = np.dtype([("version", "<u2"), ("num_fields", "<u2"), ("page", "<u4"), ("num", "<u8"), ("table", "<u8")], align=True)
_FIELD = np.dtype([("type", "u1"), ("name", "u1", 16), ("arguments", "u1", 1024)])
_ALLOCATION = np.dtype([("sample", "<u8"), ("place", "<u8"), ("nbytes", "<u8")])
_ARRAY = np.dtype([("shape", "<u8", 32), ("nbytes", "<u8")])  # of the arguments, before the dtype
_FLOAT, _INT, _IMAGE, _BYTES, _NDARRAY, _JSON, _TENSOR = range(7)
_PLACE, _RANGE = np.dtype("<u8"), np.dtype([("place", "<u8"), ("nbytes", "<u8")])
_PARTS = {
    _FLOAT: np.dtype("<f8"),
    _INT: np.dtype("<i8"),
    _IMAGE: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")]),  # not aligned itself
    _BYTES: _RANGE,
    _NDARRAY: _PLACE,
    _JSON: _RANGE,
    _TENSOR: _PLACE,
}
_JPEG, _RAW = 0, 1  # modes of images
_MAX_FIELDS = 1000


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one file, by its path or URL; ids are row numbers.

    Raises MissingDataError, StorageError or FormatError, naming the file; also for fields of a type that its writer made up.
    """
    where = str(path)
    with byte_source(path, _FORM) as data:
        header, described = _described(data, where)
        names = [bytes(one["name"]).partition(b"\0")[0].decode(errors="backslashreplace") for one in described]
        types = [int(one["type"]) for one in described]
        if len(set(names)) < len(names):
            raise FormatError(f"{where}: two fields of one name ({', '.join(names)}); write the file again")
        unknown = next((name for name, kind in zip(names, types, strict=True) if kind not in _PARTS), None)
        if unknown is not None:
            raise FormatError(
                f"{where}: field {unknown!r} is of a type of its writer's own, so no sample can be found; write it as bytes"
            )
        record = np.dtype([(f"f{number}", _PARTS[kind]) for number, kind in enumerate(types)], align=True)
        start = _HEADER.itemsize + described.nbytes
        end = start + int(header["num"]) * record.itemsize
        if not header["num"] or end > len(data):
            what = f"{header['num']:,} samples whose records end at byte {end:,} of {len(data):,}"
            raise FormatError(f"{where}: {what}: empty, cut off or damaged; write the file again")
        records = np.frombuffer(data[start:end], record)
        pages = _Pages(data, int(header["table"]), end, where)
        offsets = [one[1] for one in (record.fields or {}).values()]
        rows = start + record.itemsize * np.arange(len(records), dtype=np.int64)
        columns: dict[str, tuple[StoredAs, PackedValues]] = {}
        for number, (name, kind) in enumerate(zip(names, types, strict=True)):
            if kind in (_FLOAT, _INT):
                at = rows + offsets[number]
                columns[name] = number_of(_PARTS[kind].str), PackedValues(at, np.full(len(records), 8, np.int64))
            else:
                arguments = bytes(described[number]["arguments"])
                columns[name] = _column(kind, records[f"f{number}"], arguments, pages, f"{where}: field {name!r}")
        return packed_rows(columns, data, "beton", where)


def _described(data: ByteSource, where: str) -> tuple[Any, NDArray[Any]]:
    """Return the header, and the descriptions of the fields."""
    if len(data) < _HEADER.itemsize:
        raise FormatError(f"{where}: not {_FORM}: {len(data)} bytes; get the file again")
    header = np.frombuffer(data[: _HEADER.itemsize], _HEADER)[0]
    if header["version"] != 2 or not 0 < header["num_fields"] <= _MAX_FIELDS:
        raise FormatError(f"{where}: not {_FORM}, or not of version 2 (version {header['version']}); write the file again")
    end = _HEADER.itemsize + _FIELD.itemsize * int(header["num_fields"])
    if end > len(data):
        raise FormatError(f"{where}: cut off after {len(data):,} bytes, its fields end at {end:,}; get the file again")
    return header, np.frombuffer(data[_HEADER.itemsize : end], _FIELD)


class _Pages:
    """The data of a file, and its table of allocations."""

    def __init__(self, data: ByteSource, table: int, begin: int, where: str) -> None:
        """`table`: where the table of allocations is said to begin; `begin`: where the records end."""
        if not begin <= table <= len(data) or (len(data) - table) % _ALLOCATION.itemsize:
            raise FormatError(f"{where}: its table of allocations is not at its end: writing it was interrupted; write it again")
        self._begin, self._end = begin, table
        found = np.frombuffer(data[table : len(data)], _ALLOCATION)
        order = np.argsort(found["place"], kind="stable")
        self._places, self._sizes = found["place"][order], found["nbytes"][order]

    def sizes_at(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the sizes of what was allocated at these places; those of nothing are 0."""
        if not len(self._places):
            return np.zeros(len(places), np.uint64)
        at = np.minimum(np.searchsorted(self._places, places), len(self._places) - 1)
        return np.where(self._places[at] == places, self._sizes[at], 0)

    def values(self, places: NDArray[np.uint64], sizes: NDArray[np.uint64], codecs: list[str]) -> PackedValues:
        """Return where values lie; one that would lie elsewhere than in the pages is absent."""
        is_within = (places >= self._begin) & (places <= self._end) & (sizes <= self._end - np.minimum(places, self._end))
        for row in np.flatnonzero(~is_within).tolist():
            codecs[row] = absent(f"would lie at byte {places[row]:,}, outside of the pages: damaged; write the file again")
        offset, nbytes = (np.where(is_within, one, 0).astype(np.int64) for one in (places, sizes))
        return PackedValues(offset, nbytes, codecs)


def _column(kind: int, parts: NDArray[Any], arguments: bytes, pages: _Pages, where: str) -> tuple[StoredAs, PackedValues]:
    """Return how the values of a field are stored, and where they lie. `parts`: of the records."""
    codecs = [PLAIN] * len(parts)
    if kind in (_NDARRAY, _TENSOR):
        stored = _array(arguments, where)
        return stored, pages.values(parts, np.full(len(parts), stored.nbytes, np.uint64), codecs)
    if kind == _IMAGE:
        return ENCODED, _images(parts, pages, codecs)
    if kind == _JSON:  # a null byte ends it
        return StoredAs(FieldKind.JSON), pages.values(parts["place"], np.maximum(parts["nbytes"], 1) - 1, codecs)
    return BYTES, pages.values(parts["place"], parts["nbytes"], codecs)


def _images(parts: NDArray[Any], pages: _Pages, codecs: list[str]) -> PackedValues:
    """Return where images lie: JPEGs, or rows of RGB pixels."""
    places, modes = parts["place"], parts["mode"]
    heights, widths = (parts[name].astype(np.uint64) for name in ("height", "width"))
    sizes = np.where(modes == _RAW, 3 * heights * widths, pages.sizes_at(places))
    for row, (mode, height, width) in enumerate(zip(modes.tolist(), heights.tolist(), widths.tolist(), strict=True)):
        if mode == _RAW:
            codecs[row] = prefixed(npy_header((height, width, 3), np.dtype("u1")))
        elif mode != _JPEG or not sizes[row]:
            codecs[row] = absent("is not in the table of allocations, or of an unknown mode: damaged; write the file again")
    return pages.values(places, sizes, codecs)


def _array(arguments: bytes, where: str) -> StoredAs:
    """Return how arrays of one dtype and shape are stored."""
    head = np.frombuffer(arguments[: _ARRAY.itemsize], _ARRAY)[0]
    shape = tuple(int(extent) for extent in head["shape"])
    shape = shape[: max((place + 1 for place, extent in enumerate(shape) if extent), default=0)]
    text = arguments[_ARRAY.itemsize : _ARRAY.itemsize + int(min(head["nbytes"], len(arguments)))]
    try:
        dtype = _dtype(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as exc:
        raise FormatError(f"{where}: its dtype does not parse ({exc!r:.60}); write the file again") from exc
    if dtype.hasobject or dtype.names or not shape or len(shape) > MAX_DIMENSIONS or math.prod(shape) * dtype.itemsize >= 1 << 32:
        raise FormatError(f"{where}: arrays of {dtype} and shape {shape}, larger than a page can be; write the file again")
    return StoredAs(FieldKind.ARRAY, number=dtype, shape=shape)


def _dtype(described: Any) -> np.dtype[Any]:
    """Return the dtype of `numpy.dtype.descr`, as JSON has it: [["", "<f4"]]."""
    ((name, text),) = described
    if name or not isinstance(text, str):
        raise ValueError("not of one kind of number")
    return np.dtype(text)
