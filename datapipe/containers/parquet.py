"""Parquet files of encoded images: where in the file each image's bytes lie, and which label it has.

Reads what Hugging Face's `datasets`, Petastorm and others write, provided that the images are neither compressed nor
dictionary-encoded: then each lies in one piece. The image is a struct with a field `bytes`, or a binary column, told by
its name or else by its contents; the label a column of integers, told by its name or by the schema's metadata. Others are
refused with the reason.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datapipe.containers import parquet_format as form
from datapipe.containers.parquet_columns import NUMBER_NBYTES, PYARROW_ERRORS, is_believable, read_names, read_numbers
from datapipe.containers.parquet_footer import Column, Footer, read_footer
from datapipe.containers.parquet_pages import UnaddressableError, byte_arrays, plain_values
from datapipe.containers.thrift_compact import DamagedError
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.manifest import FieldSpec, Kind
from datapipe.probe import encoding_of
from datapipe.sidecar import FieldExtent, SidecarRows

_IMAGE_NAMES = ("image", "images", "img", "imgs", "jpeg", "jpg", "png", "x")
_LABEL_NAMES = ("label", "labels", "target", "targets", "y", "class", "fine_label")
_KEY_NAMES = (form.KEY, "__key__", "file_name", "filename", "image_id", "id")
_MAX_KEY = 1024  # bytes
_LOOKED_AT = 64  # bytes of a value: enough to tell an image
_MAX_LISTED = 12  # columns named in an error
_REMEDY = (
    "datapipe reads images that are stored as they are, and `datapipe convert` does not read Parquet yet;"
    " write the file again with pyarrow: compression='none', use_dictionary=False (docs/formats.md has the lines)"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Features:
    """What Hugging Face's metadata say of the columns."""

    images: frozenset[str] = frozenset()
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by column of labels, their names


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Look through one file; ids are row numbers.

    Every row needs an image. Raises MissingDataError, StorageError or FormatError, naming the file and its columns.
    """
    try:
        with path.open("rb") as plain:
            if not os.fstat(plain.fileno()).st_size:
                raise FormatError(f"{path}: empty file, not Parquet; get the file again or remove it")
            with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_RANDOM)  # headers and lengths alone are read: don't drag the images in
                return _index(path, data)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such shard") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc


def _index(path: Path, data: mmap.mmap) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    try:
        footer = read_footer(data)
    except DamagedError as exc:
        raise FormatError(f"{path}: not a Parquet file, or damaged: {exc}; get the file again") from exc
    try:
        return _index_columns(path, footer, data)
    except FormatError:
        raise
    except (DamagedError, *PYARROW_ERRORS) as exc:
        raise FormatError(f"{path}: damaged: {exc}; get the file again") from exc


def _index_columns(path: Path, footer: Footer, data: mmap.mmap) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    if not footer.num_rows:
        raise FormatError(f"{path}: no samples; remove it")
    features = _read_features(footer.metadata, str(path))
    image, extents = _find_images(footer, features, data, str(path))
    label = _label_column(footer, features, str(path))
    labels = None if label is None else _read_labels(path, footer, label, data, len(extents))
    names = features.classes.get(label.name) if label is not None else None
    if labels is not None and names is not None and max(labels) >= len(names):
        raise FormatError(f"{path}: a label is {max(labels)}, its metadata name {len(names)} classes; write the file again")
    keys = _read_keys(path, footer, image, data, len(extents))
    rows = SidecarRows(("image",), classes=names)  # labels are read here and now: they may be encoded and compressed
    for row, (offset, nbytes) in enumerate(extents):
        where = {"image": FieldExtent("", offset, nbytes, None)}
        key = keys[row] if keys is not None else None
        number = -1 if labels is None else labels[row]
        rows.append(id=row, key=key or b"%d" % row, source=b"", label=number, size=(0, 0), extents=where)
    fields = (FieldSpec("image", Kind.IMAGE), FieldSpec("label", Kind.LABEL))
    return rows, fields if labels is not None else fields[:1]


# -- images -----------------------------------------------------------------------------------------


def _find_images(footer: Footer, features: _Features, data: mmap.mmap, where: str) -> tuple[Column, list[tuple[int, int]]]:
    """The column of images, told by name or else by content, and where they lie."""
    candidates, are_images = _candidates(footer, features)
    found: dict[str, tuple[Column, list[tuple[int, int]]]] = {}
    refusals: list[str] = []
    for column in candidates:
        try:
            extents = list(_extents(footer, column, data))
        except UnaddressableError as exc:
            refusals.append(f"{column.path!r} is {exc}")
            continue
        if extents and (are_images or encoding_of(_start(data, *extents[0])) is not None):
            found[column.path] = (column, extents)
    if len(found) == 1 and not (refusals and are_images):
        return next(iter(found.values()))
    what = f"images in several columns ({', '.join(found)})" if len(found) > 1 else "no images that can be read"
    why = "".join(f"; {text}" for text in refusals[:_MAX_LISTED])
    remedy = "name one of them 'image'" if len(found) > 1 else _REMEDY
    raise FormatError(f"{where}: {what}{why} (has: {_listed(footer.columns)}); {remedy}")


def _candidates(footer: Footer, features: _Features) -> tuple[list[Column], bool]:
    """Columns that may hold images, and whether their names or forms leave no doubt that they do."""
    holders = [column for column in footer.columns if column.physical_type == "BYTE_ARRAY" and not column.is_text]
    structs = [column for column in holders if column.path == f"{column.name}.{form.BYTES}"]
    plain = [column for column in holders if column.path == column.name]
    named = [column for column in structs + plain if column.name.lower() in _IMAGE_NAMES]
    declared = [column for column in structs if column.name in features.images]
    for certain in (named, declared, structs):
        if len(certain) == 1:
            return certain, True
    return (declared or structs, True) if structs else (plain, False)


def _extents(footer: Footer, column: Column, data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Offset and size of each value. Raises UnaddressableError, DamagedError."""
    if column.is_repeated:
        raise UnaddressableError("a list, of several images in a row")
    for chunk, codec in footer.chunks(column):
        try:
            for values in plain_values(data, chunk):
                yield from byte_arrays(data, values)
        except UnaddressableError as exc:
            raise UnaddressableError(f"{exc} ({codec})" if chunk.is_compressed else str(exc)) from exc


def _start(data: mmap.mmap, offset: int, nbytes: int) -> bytes:
    return data[offset : offset + min(nbytes, _LOOKED_AT)]


# -- labels, names -----------------------------------------------------------------------------------


def _read_features(metadata: dict[bytes, bytes], where: str) -> _Features:
    text = metadata.get(form.FEATURES)
    if text is None:
        return _Features()
    try:
        described: dict[str, Any] = json.loads(text)["info"]["features"]
        kinds = {name: value.get("_type") for name, value in described.items() if isinstance(value, dict)}
        classes = {name: tuple(map(str, described[name]["names"])) for name, kind in kinds.items() if kind == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        logger.warning("%s: the 'huggingface' metadata do not parse (%r); classes have no names", where, exc)
        return _Features()
    return _Features(frozenset(name for name, kind in kinds.items() if kind == "Image"), classes)


def _label_column(footer: Footer, features: _Features, where: str) -> Column | None:
    top = {column.path: column for column in footer.columns}
    named = next((top[name] for name in _LABEL_NAMES if name in top), None)
    if named is None and len(features.classes) == 1:
        named = top.get(next(iter(features.classes)))
    if named is not None and named.physical_type not in ("INT32", "INT64"):
        logger.warning(
            "%s: %r holds no class numbers (%s); the set is read without labels", where, named.path, named.physical_type
        )
        return None
    return named


def _read_labels(path: Path, footer: Footer, label: Column, data: mmap.mmap, num: int) -> list[int]:
    """Of each row; -1 where it is null."""
    if not is_believable(footer, label, data, value_nbytes=NUMBER_NBYTES):
        raise FormatError(f"{path}: column {label.path!r} claims to be larger than its rows; get the file again")
    labels = [-1 if value is None else value for value in read_numbers(path, label)]
    if len(labels) != num or min(labels) < -1:
        what = f"{len(labels)} labels for {num} images" if len(labels) != num else f"a label is {min(labels)}"
        raise FormatError(f"{path}: {what}, expected a class number from 0 for each; write the file again")
    return labels


def _read_keys(path: Path, footer: Footer, image: Column, data: mmap.mmap, num: int) -> list[bytes | None] | None:
    """What to call each sample in messages: a column of names, else the file names that the images have."""
    by_path = {
        column.path: column for column in footer.columns if column.physical_type == "BYTE_ARRAY" and not column.is_repeated
    }
    for name in (*_KEY_NAMES, f"{image.name}.{form.PATH}"):
        column = by_path.get(name)
        if column is None or column == image or not is_believable(footer, column, data, value_nbytes=_MAX_KEY):
            continue
        keys = read_names(path, column, at_most=_MAX_KEY)
        if keys is not None and len(keys) == num and all(keys):
            return keys
    return None


def _listed(columns: tuple[Column, ...]) -> str:
    shown = [f"{column.path} {column.physical_type}" for column in columns[:_MAX_LISTED]]
    more = f", and {len(columns) - _MAX_LISTED} more" if len(columns) > _MAX_LISTED else ""
    return (", ".join(shown) or "no columns") + more
