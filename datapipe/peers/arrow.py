"""Scan Arrow files, as Hugging Face's `datasets` keeps them: where each image's bytes lie, and its label.

Both of Arrow's forms are read, the stream and the file. Values lie uncompressed in one piece each, so images,
texts and other bytes are addressed by bytes. The image is a struct with a field `bytes`, or a binary column, recognised by
the schema's metadata, its name, or its contents; the label is a column of integers. Columns of numbers, lists and structs do
not become fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from datapipe.codecs.field_values import FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers.field_names import (
    HEAD_NBYTES,
    IMAGE_COLUMNS,
    read_features,
)
from datapipe.containers.form import Form
from datapipe.containers.look import Evidence, Look, recognise_by_names
from datapipe.containers.mapped import mapped
from datapipe.containers.tables.arrow_rows import ArrowBatches, schema_of
from datapipe.containers.tables.claims import check_sizes
from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows
from datapipe.peers.arrow_columns import index_batches, read_batches


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one file; ids are row numbers. Raises MissingDataError, StorageError or FormatError, naming the file."""
    with mapped(path, "Arrow"):  # raises the error of a file that cannot be opened, or is empty
        data = arrow_maps.map_file(path)
    try:
        return index_batches(str(path), *read_batches(data), data.address, data.size)
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
