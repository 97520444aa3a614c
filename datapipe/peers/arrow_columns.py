"""Find the values of Arrow's record batches in the file that holds them: each in one piece, as nothing is compressed.

The image is a struct with a field `bytes`, or a binary column, recognised by the schema's metadata, its name, or its contents;
the label is a column of integers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.npy import npy_header
from datapipe.codecs.probe import encoding_of
from datapipe.containers.columns import add_field, rows_of_images
from datapipe.containers.field_names import (
    HEAD_NBYTES,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    PATHS_ALONE,
    Features,
    kind_of_bytes,
    kind_of_text,
    names_among,
    read_features,
)
from datapipe.containers.labels import label_names
from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldColumn, SidecarRows


def read_batches(data: pa.Buffer) -> tuple[Any, list[Any]]:
    """Return the schema and the batches of a mapped Arrow file, whose buffers are views of it. Raises `arrow_maps.DAMAGE`."""
    with pa.ipc.open_stream(arrow_maps.stream_of(data)) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate()
    return reader.schema, batches


def index_batches(
    where: str, schema: Any, batches: list[Any], base: int, size: int, *, with_numbers: bool = False
) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Return the rows of a file, ids being row numbers, and its fields.

    `base`, `size`: where the file is mapped, and its bytes, in which the buffers of `batches` lie. `with_numbers`: columns of
    numbers are fields too. Columns that are none are recorded in `unread` of the rows. Raises FormatError without rows or images.
    """
    num = sum(batch.num_rows for batch in batches)
    if not num:
        raise FormatError(f"{where}: no samples; remove it")
    features = read_features(schema.metadata, where)
    columns = {name: [batch.column(name) for batch in batches] for name in dict.fromkeys(schema.names)}
    places: dict[str, tuple[FieldColumn, bytes]] = {}
    unread: dict[str, str] = {}
    for name, parts in columns.items():
        try:
            is_number = with_numbers and (pa.types.is_integer(parts[0].type) or pa.types.is_floating(parts[0].type))
            places[name] = (_numbers_at if is_number else _places)(parts, base, size)
        except ValueError as exc:
            unread[name] = str(exc)
    alone = next((name for name, why in unread.items() if why == PATHS_ALONE), None)
    if alone is not None and (alone in features.images or alone.lower() in IMAGE_COLUMNS or not places):
        raise FormatError(f"{where}: column {alone!r} {PATHS_ALONE}")
    image = _image_column(features, schema, places, where)
    label = _label_column(features, schema)
    labels = None if label is None else _labels(columns[label])
    names = features.classes.get(label) if label is not None else None
    named = [columns[name] for name in names_among(KEY_COLUMNS, columns) if _is_text(schema.field(name).type)]
    keys = next(filter(None, map(_names, [*named, columns[image]])), None) or [f"{Path(where).stem}/{row}" for row in range(num)]
    rows, specs = rows_of_images(places[image][0], map(os.fsencode, keys), labels, classes=names, where=where)
    for name, (column, first) in places.items():
        if name not in (image, label):
            if column.prefix:
                specs.append(add_field(rows, name, FieldKind.ARRAY, column))
                continue
            kind = kind_of_text(name) if _is_text(schema.field(name).type) else kind_of_bytes(name, first)
            specs.append(add_field(rows, name, kind, column))
    rows.unread = {name: why for name, why in unread.items() if name != label}
    return rows, tuple(specs)


def _places(parts: list[Any], base: int, size: int) -> tuple[FieldColumn, bytes]:
    """Return where the values of a column lie, and the head of the first. Raises ValueError, with the reason, if nowhere."""
    offsets, nbytes, first = [], [], b""
    if all(pa.types.is_struct(part.type) and _holds_paths_alone(part) for part in parts):
        raise ValueError(PATHS_ALONE)
    for part in parts:
        values = part
        if pa.types.is_struct(part.type):
            if part.type.get_field_index("bytes") < 0:
                raise ValueError("a struct without bytes")
            values = part.field("bytes")
        width = _offset_width(values.type)
        if part.null_count or values.null_count:
            raise ValueError("without a value in some rows")
        _, ends, data = values.buffers()
        if not len(values):
            continue
        edges = np.frombuffer(ends, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        start = (data.address if data is not None else base) - base
        if start < 0 or edges[0] < 0 or (np.diff(edges) < 0).any() or start + edges[-1] > size:
            raise ValueError("compressed, or reaching beyond the file")
        offsets.append(start + edges[:-1])
        nbytes.append(np.diff(edges))
        if not first:
            first = data.slice(int(edges[0]), int(min(nbytes[-1][0], HEAD_NBYTES))).to_pybytes() if data is not None else b""
    return FieldColumn(np.concatenate(offsets), np.concatenate(nbytes)), first


def _numbers_at(parts: list[Any], base: int, size: int) -> tuple[FieldColumn, bytes]:
    """Return where the numbers of a column lie, each to be an array. Raises ValueError, with the reason, if nowhere."""
    dtype, offsets = np.dtype(parts[0].type.to_pandas_dtype()), []
    for part in parts:
        if part.null_count:
            raise ValueError("without a value in some rows")
        if not len(part):
            continue
        start = part.buffers()[1].address - base + part.offset * dtype.itemsize
        if start < 0 or start + len(part) * dtype.itemsize > size:
            raise ValueError("reaching beyond the file")
        offsets.append(start + dtype.itemsize * np.arange(len(part), dtype=np.int64))
    places = np.concatenate(offsets)
    return FieldColumn(places, np.full(len(places), dtype.itemsize, np.int64), npy_header((), dtype)), b""


def _holds_paths_alone(part: Any) -> bool:
    """Return True if structs have bytes, of which all are null."""
    return bool(part.type.get_field_index("bytes") >= 0 and part.field("bytes").null_count == len(part))


def _offset_width(kind: Any) -> Any:
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return np.int32
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return np.int64
    raise ValueError(f"of type {kind}, which cannot become a field")


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _image_column(features: Features, schema: Any, places: dict[str, tuple[FieldColumn, bytes]], where: str) -> str:
    """Return the column of images: declared so, named so, or the only one that holds any."""
    usable = [name for name, (column, _) in places.items() if not column.prefix and not _is_text(schema.field(name).type)]
    declared = [name for name in usable if name in features.images]
    named = [name for name in declared or usable if name.lower() in IMAGE_COLUMNS]
    holding = [name for name in usable if encoding_of(places[name][1]) is not None]
    for certain in (named, declared, holding):
        if len(certain) == 1:
            return certain[0]
    listed = ", ".join(f"{name} {schema.field(name).type}" for name in schema.names[:12])
    what = (
        f"images in several columns ({', '.join(declared or holding)})" if declared or holding else "no images that can be read"
    )
    raise FormatError(
        f"{where}: {what} (has: {listed}); name one of binary values, or structs with 'bytes', 'image', or "
        "read a table of numbers with datapipe.Table; to convert one, pass --from table"
    )


def _label_column(features: Features, schema: Any) -> str | None:
    candidates: Iterator[str] = (
        name for name in (*label_names("arrow", schema.names), *features.classes) if name in schema.names
    )
    return next((name for name in candidates if pa.types.is_integer(schema.field(name).type)), None)


def _names(parts: list[Any]) -> list[str] | None:
    """Return the names of samples in a column of texts, or in the paths of images, if they are unique."""
    if pa.types.is_struct(parts[0].type):
        if parts[0].type.get_field_index("path") < 0:
            return None
        parts = [part.field("path") for part in parts]
    if not _is_text(parts[0].type):
        return None
    for part in parts:
        part.validate(full=True)  # nothing has checked yet where each text lies
    names = [name for part in parts for name in part.to_pylist()]
    return names if all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names) else None


def _labels(parts: list[Any]) -> list[int | None]:
    """Return the integer in each row."""
    return [value for part in parts for value in part.to_pylist()]
