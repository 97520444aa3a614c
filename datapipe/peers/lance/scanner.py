"""Scan a version of a Lance dataset: which column holds the images, their labels, and what else each row has.

The image is a column of blobs, of binary values, or of structs with a field `bytes`, recognised by its name or else by its
contents; the label is a column of integers. The other columns are further fields. All are addressed by rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers.columns import add_field, rows_of_images
from datapipe.containers.field_names import (
    HEAD_NBYTES,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    kind_of_bytes,
    kind_of_text,
    names_among,
    read_features,
)
from datapipe.containers.form import Form
from datapipe.containers.labels import label_names
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core.directories import files_below
from datapipe.core.regular_files import refuse_irregular
from datapipe.errors import DatapipeError, DecodeError, DependencyError, FormatError, MissingDataError
from datapipe.index.sidecar import FieldColumn, SidecarRows
from datapipe.peers.lance.columns import LanceColumn, columns_of, take
from datapipe.peers.lance.library import DAMAGE, asked
from datapipe.peers.lance.versions import FOLDER, dataset_at, dataset_of, number_of, shown

_GROUP_NBYTES = 8 << 20  # of rows that are read at once where they are read in order
_MOST_ROWS = 4096  # of a group
_SUFFIX = b".lance"


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a version of a Lance dataset of images; None if it is none, or a table."""
    if look.is_stored:
        return None
    if look.nature is Nature.FILE:
        first = str(look.place) if number_of(os.fsdecode(look.name)) is not None else None
    elif look.nature is Nature.FOLDER:
        tables = [os.fsdecode(name) for name in look.folders if name.endswith(_SUFFIX)]
        if tables:
            what = f"holds the Lance datasets {', '.join(tables)}: pass one of them, such as {look.place / tables[0]}"
            return Evidence("it holds folders of Lance datasets", Strength.DECISIVE, what)
        first = _first_version(look)
    else:
        return None
    if first is None or not look.once(f"samples in {first}", lambda: holds_samples(first)):
        return None
    return Evidence(f"it holds {FOLDER}/{os.path.basename(first)}", Strength.DECISIVE)


def _first_version(look: Look) -> str | None:
    names = dict(look.below).get(FOLDER.encode(), ())
    found = next((os.fsdecode(name) for name in names if number_of(os.fsdecode(name)) is not None), None)
    return None if found is None else str(look.place / FOLDER / found)


def holds_samples(path: str) -> bool:
    """Return True if a dataset has columns of images, by its schema and the first values of columns that say nothing.

    True for a damaged one too: whatever reads it says what is wrong.
    """
    try:
        dataset = dataset_at(path)
        return bool(_images_among(dataset, _candidates(dataset.schema, path), path))
    except (FormatError, DependencyError, OSError, *DAMAGE):
        return True


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index a version of a dataset, by its manifest; ids are row numbers.

    Raises MissingDataError, StorageError or FormatError, naming the dataset, and DependencyError without pylance.
    """
    try:
        return _index_columns(dataset_at(path), shown(path), path)
    except DatapipeError:
        raise
    except OSError as exc:
        raise FormatError(f"{shown(path)}: cannot be read ({exc.strerror or exc}); get it again") from exc
    except DAMAGE as exc:
        raise FormatError(f"{shown(path)}: damaged, or of a version of Lance that pylance does not read: {exc}") from exc


def _index_columns(dataset: Any, where: str, path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    num = int(asked(dataset.count_rows))
    if not num:
        raise FormatError(f"{where}: no rows")
    place, _ = dataset_of(path)
    _refuse_other_sizes(dataset, place)
    starts = group_starts(num, _held_below(place), _GROUP_NBYTES, _MOST_ROWS)
    columns = columns_of(dataset.schema)
    image = _image_column(dataset, where)
    features = read_features(dataset.schema.metadata, where)
    whole = {one.called: one for one in columns if one.name == one.called}
    label = next((name for name in label_names("lance", list(whole)) if pa.types.is_integer(whole[name].type)), None)
    labels = None if label is None else _column(dataset, label, num)
    names = None if label is None else features.classes.get(label)
    rows, specs = rows_of_images(
        _by_rows(image, num), _keys(dataset, image, whole, num, where), labels, classes=names, where=where
    )
    for one in columns:
        if one.called in (image.called, label):
            continue
        if one.form is None:
            rows.unread[one.called] = f"of type {one.type}, which cannot become a field"
            continue
        specs.append(add_field(rows, one.called, _kind(dataset, one), _by_rows(one, num)))
    rows.row_groups = starts
    return rows, tuple(specs)


def _refuse_other_sizes(dataset: Any, place: Path) -> None:
    """Raise MissingDataError or FormatError for files of the version that are gone, or of another size than it says."""
    for path, said in files_of(dataset, place):
        try:
            nbytes = path.stat().st_size
        except FileNotFoundError:
            what = f"is missing, though version {dataset.version} has it; get the file again"
            raise MissingDataError(f"{path}: {what}") from None
        if nbytes != said:
            what = f"has {nbytes} bytes, its dataset says {said}"
            raise FormatError(f"{path}: {what}: cut off, or of another version; get the file again")


def files_of(dataset: Any, place: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of the version, with the sizes in bytes that it says; not those without a size, or in other folders."""
    for fragment in asked(dataset.get_fragments):
        for one in asked(fragment.data_files):
            if one.file_size_bytes is not None and getattr(one, "base_id", None) is None:
                yield place / "data" / one.path, one.file_size_bytes


def _held_below(place: Path) -> int:
    """Return the bytes of all files of data, those of blobs among them. Raises FormatError for what is no regular file."""
    files = files_below(place / "data")
    for file in files:
        refuse_irregular(file)
    return sum(os.stat(file).st_size for file in files)


def group_starts(num: int, held: int, nbytes: int, most: int) -> tuple[int, ...]:
    """Return the rows at which groups of about `nbytes` bytes, and `most` rows at most, begin, and `num`.

    `held`: the bytes of all `num` rows.
    """
    rows = max(1, min(most, nbytes * num // max(1, held)))
    return (*range(0, num, rows), num)


def _by_rows(column: LanceColumn, num: int) -> FieldColumn:
    return FieldColumn(np.arange(num, dtype=np.int64), np.zeros(num, np.int64), column=column.name)


def _image_column(dataset: Any, where: str) -> LanceColumn:
    found = _images_among(dataset, _candidates(dataset.schema, where), where)
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{field.name} {field.type}" for field in list(dataset.schema)[:12])
    what = f"images in several columns ({', '.join(one.called for one in found)})" if found else "no images that can be read"
    raise FormatError(
        f"{where}: {what} (has: {listed}); name one of blobs, binary values or structs with 'bytes', 'image', or read a table of "
        "numbers with datapipe.Table"
    )


def _candidates(schema: Any, where: str) -> tuple[list[LanceColumn], bool]:
    """Return columns that may hold images, and whether their names leave no doubt that they do."""
    holders = [one for one in columns_of(schema) if one.form is not None and one.form.kind is FieldKind.BYTES]
    declared = [one for one in holders if one.called in read_features(schema.metadata, where).images]
    named = [one for one in holders if one.called.lower() in IMAGE_COLUMNS]
    for certain in (named, declared):
        if len(certain) == 1:
            return certain, True
    return holders, False


def _images_among(dataset: Any, found: tuple[list[LanceColumn], bool], where: str) -> list[LanceColumn]:
    candidates, is_certain = found
    if is_certain or not candidates or not asked(dataset.count_rows):
        return candidates
    return [one for one in candidates if encoding_of(_head(dataset, one)) is not None]


def _head(dataset: Any, column: LanceColumn) -> bytes:
    (value,) = take(dataset, column, [0])
    return b"" if isinstance(value, DecodeError) else value[:HEAD_NBYTES]


def _kind(dataset: Any, column: LanceColumn) -> FieldKind:
    assert column.form is not None
    if column.form.kind is FieldKind.TEXT:
        return kind_of_text(column.called)
    return kind_of_bytes(column.called, _head(dataset, column)) if column.form.kind is FieldKind.BYTES else column.form.kind


def _column(dataset: Any, name: str, num: int) -> list[Any]:
    """Return a small column. Raises LanceError."""
    values: list[Any] = asked(lambda: dataset.to_table(columns=[name])).column(0).to_pylist()
    if len(values) != num:
        raise ValueError(f"column {name!r} has {len(values)} values for {num} rows")
    return values


def _keys(dataset: Any, image: LanceColumn, whole: dict[str, LanceColumn], num: int, where: str) -> list[bytes]:
    """Return the names of the rows: from a column of texts that are all different, else their numbers."""
    for name in names_among(KEY_COLUMNS, whole):
        form = whole[name].form
        if name != image.called and form is not None and form.kind is FieldKind.TEXT:
            values = _column(dataset, name, num)
            if all(isinstance(value, str) and value for value in values) and len({*values}) == num:
                return [os.fsencode(value) for value in values]
    return [b"%d" % row for row in range(num)]
