"""Scan Arrow files, as Hugging Face's `datasets` keeps them: where each image's bytes lie, and its label.

Both of Arrow's forms are read, the stream and the file. Values lie uncompressed in one piece each, so images,
texts and other bytes are addressed by bytes. The image is a struct with a field `bytes`, or a binary column, recognised by
the schema's metadata, its name, or its contents; the label is a column of integers. Columns of numbers, lists and structs do
not become fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldSpec
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
from datapipe.containers.form import Form
from datapipe.containers.labels import label_names
from datapipe.containers.look import Evidence, Look, recognise_by_names
from datapipe.containers.mapped import mapped
from datapipe.containers.tables.arrow_rows import ArrowBatches, schema_of
from datapipe.containers.tables.claims import check_sizes
from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldColumn, SidecarRows

Ints = NDArray[np.int64]


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one file; ids are row numbers. Raises MissingDataError, StorageError or FormatError, naming the file."""
    with mapped(path, "Arrow"):  # raises the error of a file that cannot be opened, or is empty
        data = arrow_maps.map_file(path)
    try:
        with pa.ipc.open_stream(arrow_maps.stream_of(data)) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate()
        return _index(str(path), reader.schema, batches, data.address, data.size)
    except FormatError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{path}: not an Arrow file, or damaged ({exc}); get the file again") from exc


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is Arrow files of images; None if it is none, or if they are tables."""
    found = recognise_by_names(look, form.name)
    first = None if found is None else look.first_shard(form.name)
    if found is None or first is None:
        return found
    return found if look.once(f"samples in {first}", lambda: holds_samples(first)) else None


def holds_samples(path: str) -> bool:
    """Return True if a file has columns of images, by its schema and the first values of columns of which that says nothing.

    True for a damaged file too: whatever reads it says what is wrong. Raises MissingDataError or StorageError.
    """
    try:
        with mapped(Path(path), "Arrow"):
            data = arrow_maps.map_file(path)
        check_sizes(data)
        schema = schema_of(data)
        features = read_features(schema.metadata, path)
        places = [place for place, field in enumerate(schema) if _holds_bytes(field.type)]
        names = [schema.names[place] for place in places]
        if any(name in features.images or name.lower() in IMAGE_COLUMNS for name in names):
            return True
        if not places:
            return False
        batches = ArrowBatches(data, fields=places)
        first = next((one for one in (batches[number] for number in range(len(batches))) if one.num_rows), None)
        if first is not None:
            first.validate()
        return first is not None and any(map(_begins_with_image, first.columns))
    except (FormatError, *arrow_maps.DAMAGE):
        return True


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _begins_with_image(column: Any) -> bool:
    value = column[0].as_py()
    value = value.get("bytes") if isinstance(value, dict) else value
    return isinstance(value, bytes) and encoding_of(value[:HEAD_NBYTES]) is not None


def _index(where: str, schema: Any, batches: list[Any], base: int, size: int) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    num = sum(batch.num_rows for batch in batches)
    if not num:
        raise FormatError(f"{where}: no samples; remove it")
    features = read_features(schema.metadata, where)
    columns = {name: [batch.column(name) for batch in batches] for name in dict.fromkeys(schema.names)}
    places: dict[str, tuple[FieldColumn, bytes]] = {}
    unread: dict[str, str] = {}
    for name, parts in columns.items():
        try:
            places[name] = _places(parts, base, size)
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
    usable = [name for name in places if not _is_text(schema.field(name).type)]
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
