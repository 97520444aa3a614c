"""Scan Parquet files of encoded images, or sound: where each is, its label, and what else the file has of each sample.

Reads what Hugging Face's `datasets`, Petastorm and others write. Images that are neither compressed nor dictionary-encoded
lie in one piece each, and are addressed by bytes; others by rows, to be read a row group at a time. The image is a
struct with a field `bytes`, or a binary column, recognised by its name or else by its contents (called `audio`, it is sound);
the label is a column of integers, recognised by its name or by the schema's metadata. The other columns are further fields.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import IMAGE_FIELD, FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers import parquet as form
from datapipe.containers.columns import add_field, rows_of_images
from datapipe.containers.field_names import (
    AUDIO_FIELD,
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
from datapipe.containers.look import Evidence, Look, Strength, recognise_by_names
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.pages import UnaddressableError, byte_arrays, plain_values
from datapipe.containers.parquet.rows import (
    CODECS,
    NUMBER_NBYTES,
    NoFieldError,
    Pages,
    first_value,
    is_believable,
    pages_of,
    read_names,
    read_numbers,
)
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.parquet.values import PYARROW_ERRORS
from datapipe.core.printable import get_logger, listed
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.sidecar import FieldColumn, SidecarRows

_OF_SOUND = (f"{AUDIO_FIELD.name}.{form.BYTES}", AUDIO_FIELD.name)  # columns
_KEYS = (form.KEY, "__key__")  # the samples' names, which the index has anyway
_HOLDERS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_MAX_KEY = 1024  # bytes
_MAX_REFUSALS = 12  # in an error
_REMEDY = (
    "datapipe reads a struct with a field 'bytes', or a binary column, of one encoded image in each row; write such a one, or "
    "read a table of numbers with datapipe.Table; to convert one, pass --from table"
)

logger = get_logger(__name__)


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one file; ids are row numbers. Fields: the image, the label, and the other columns in the file's order.

    Columns that cannot be fields are recorded in `unread` of the rows. Raises MissingDataError, StorageError or
    FormatError, naming the file and its columns.
    """
    with byte_source(path, "Parquet") as data:
        try:
            file = ParquetFile(str(path), read_footer(data), data)
        except DamagedError as exc:
            raise FormatError(f"{path}: not a Parquet file, or damaged: {exc}; get the file again") from exc
        try:
            return _index_columns(file)
        except (FormatError, MissingDataError, StorageError):
            raise
        except (DamagedError, *PYARROW_ERRORS) as exc:
            raise FormatError(f"{path}: damaged: {exc}; get the file again") from exc


def recognise(look: Look, how: Form) -> Evidence | None:
    """Return why a place is Parquet files of images or sound; None if it is none, or if they are tables."""
    found = recognise_by_names(look, how.name)
    first = None if found is None else look.first_shard(how.name)
    if found is None or first is None:
        return found
    if not look.once(f"samples in {first}", lambda: holds_samples(first)):
        return None
    is_sound = look.once(f"sound in {first}", lambda: holds_sound(first))
    return replace(found, strength=Strength.LIKELY) if is_sound else found  # which is rather read as sound


def holds_sound(path: str) -> bool:
    """Return True if a file has sound as Hugging Face's datasets writes it; a damaged one is left to others."""
    try:
        with byte_source(path, "Parquet") as data:
            columns = read_footer(data).columns
            return any(one.path in _OF_SOUND and one.physical_type == "BYTE_ARRAY" and not one.is_text for one in columns)
    except (FormatError, DamagedError):
        return False


def holds_samples(path: str) -> bool:
    """Return True if a file has columns of images or sound, by its footer and the first value of a column that says nothing.

    True for a damaged file too: whatever reads it says what is wrong. Raises MissingDataError or StorageError.
    """
    try:
        with byte_source(path, "Parquet") as data:
            file = ParquetFile(path, read_footer(data), data)
            candidates, are_images = _candidates(file.footer, read_features(file.footer.metadata, path))
            return bool(candidates) and (are_images or any(_begins_with_image(file, column) for column in candidates))
    except (FormatError, DamagedError, *PYARROW_ERRORS):
        return True


def _begins_with_image(file: ParquetFile, column: SchemaLeaf) -> bool:
    try:
        pages = sum(file.pages(column), Pages(column))
        value = first_value(file.path, column.path, [pages])[1] if file.num_rows else None
    except NoFieldError:
        return False
    return value is not None and encoding_of(value[:HEAD_NBYTES]) is not None


def _index_columns(file: ParquetFile) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    footer = file.footer
    if not footer.num_rows:
        raise FormatError(f"{file.path}: no samples; remove it")
    features = read_features(footer.metadata, file.path)
    image, found = _find_images(file, features)
    if found.head is None and footer.null_counts().get(image.path) == footer.num_rows:
        raise FormatError(f"{file.path}: column {image.name!r} {PATHS_ALONE}")
    label = _label_column(footer, features, file.path)
    labels = None if label is None else _read_labels(file, label)
    names = features.classes.get(label.name) if label is not None else None
    keys = _read_keys(file, image) or [None] * footer.num_rows
    named = [key or b"%d" % row for row, key in enumerate(keys)]
    field = AUDIO_FIELD if image.name == AUDIO_FIELD.name else IMAGE_FIELD
    rows, specs = rows_of_images(found.column, named, labels, classes=names, where=file.path, field=field)
    specs += add_further_columns(rows, file, (image.name,) if label is None else (image.name, label.name))
    if any(column.column is not None for column in rows.columns.values()):
        rows.row_groups = tuple(file.starts.tolist())
    return rows, tuple(specs)


# -- images -----------------------------------------------------------------------------------------


def _find_images(file: ParquetFile, features: Features) -> tuple[SchemaLeaf, ReadableColumn]:
    """Return the column of images, recognised by name or else by content, and the places of the images."""
    candidates, are_images = _candidates(file.footer, features)
    found: dict[str, tuple[SchemaLeaf, ReadableColumn]] = {}
    refusals: list[str] = []
    for column in candidates:
        try:
            if column.is_repeated:
                raise NoFieldError("a list, of several images in a row")
            images = file.find(column.path)
        except NoFieldError as exc:
            refusals.append(f"{column.path!r} is {exc}")
            continue
        if are_images or encoding_of(images.head or b"") is not None:
            found[column.path] = (column, images)
    if len(found) == 1 and not (refusals and are_images):
        return next(iter(found.values()))
    what = f"images in several columns ({', '.join(found)})" if len(found) > 1 else "no images that can be read"
    why = "".join(f"; {text}" for text in refusals[:_MAX_REFUSALS])
    has = listed([f"{column.path} {column.physical_type}" for column in file.footer.columns]) or "no columns"
    remedy = "name one of them 'image'" if len(found) > 1 else _REMEDY
    raise FormatError(f"{file.path}: {what}{why} (has: {has}); {remedy}")


def _candidates(footer: Footer, features: Features) -> tuple[list[SchemaLeaf], bool]:
    """Return columns that may hold images, and whether their names or forms leave no doubt that they do."""
    holders = [column for column in footer.columns if column.physical_type in _HOLDERS and not column.is_text]
    structs = [column for column in holders if column.path == f"{column.name}.{form.BYTES}"]
    plain = [column for column in holders if column.path == column.name]
    named = [column for column in structs + plain if column.name.lower() in IMAGE_COLUMNS]
    declared = [column for column in structs if column.name in features.images]
    for certain in (named, declared, structs):
        if len(certain) == 1:
            return certain, True
    return (declared or structs, True) if structs else (plain, False)


# -- labels, names -----------------------------------------------------------------------------------


def _label_column(footer: Footer, features: Features, where: str) -> SchemaLeaf | None:
    top = {column.path: column for column in footer.columns}
    named = next((top[name] for name in label_names("parquet", top)), None)
    if named is None and len(features.classes) == 1:
        named = top.get(next(iter(features.classes)))
    if named is not None and named.physical_type not in ("INT32", "INT64"):
        logger.warning(
            "%s: %r holds no class numbers (%s); the set is read without labels", where, named.path, named.physical_type
        )
        return None
    return named


def _read_labels(file: ParquetFile, label: SchemaLeaf) -> list[int | None]:
    """Return the integer in each row."""
    if not is_believable(file.footer, label, file.data, value_nbytes=NUMBER_NBYTES):
        raise FormatError(f"{file.path}: column {label.path!r} claims to be larger than its rows; get the file again")
    labels = read_numbers(file.path, label)
    if len(labels) != file.num_rows:
        raise FormatError(f"{file.path}: {len(labels)} labels for {file.num_rows} images; write the file again")
    return labels


def _read_keys(file: ParquetFile, image: SchemaLeaf) -> list[bytes | None] | None:
    """Return the name of each sample for messages: from a column of names, else the images' file names."""
    by_path = {
        column.path: column for column in file.footer.columns if column.physical_type == "BYTE_ARRAY" and not column.is_repeated
    }
    for name in (*names_among(KEY_COLUMNS, by_path), f"{image.name}.{form.PATH}"):
        column = by_path.get(name)
        if column is None or column == image or not is_believable(file.footer, column, file.data, value_nbytes=_MAX_KEY):
            continue
        try:
            keys = read_names(file.path, sum(file.pages(column), Pages(column)), at_most=_MAX_KEY)
        except NoFieldError:
            continue
        if keys is not None and len(keys) == file.num_rows and all(keys):
            return keys
    return None


# -- columns ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadableColumn:
    """A column with readable values."""

    column: FieldColumn
    kind: FieldKind
    head: bytes | None  # of the first value; None if it is null


class ParquetFile:
    """A file to be indexed: its path, its footer and its bytes."""

    def __init__(self, path: str, footer: Footer, data: ByteSource) -> None:
        """Raises DamagedError."""
        self.path = path
        self.footer = footer
        self.data = data
        self.num_rows = footer.num_rows
        self.starts = np.array(footer.row_starts(), np.int64)

    def find(self, name: str) -> ReadableColumn:
        """Return the column of that name, or path. Raises NoFieldError, with the reason, and the errors of damaged files."""
        leaves = self.footer.leaves(name)
        if len({leaf.name for leaf in leaves}) != 1 or len({leaf.path for leaf in leaves}) < len(leaves):
            raise NoFieldError("several columns have this name")
        if len(leaves) == 1 and leaves[0].physical_type == "BYTE_ARRAY":
            try:
                return self._by_bytes(leaves[0])
            except UnaddressableError:
                pass
        return self._by_rows(name, leaves)

    def _by_bytes(self, leaf: SchemaLeaf) -> ReadableColumn:
        if leaf.is_repeated:
            raise UnaddressableError("a list")
        offset, nbytes = np.empty(self.num_rows, np.int64), np.empty(self.num_rows, np.int64)
        row = -1
        for row, place in enumerate(itertools.islice(self._places(leaf), self.num_rows)):
            offset[row], nbytes[row] = place
        if row + 1 != self.num_rows:
            raise DamagedError(f"column {leaf.path!r} has {row + 1} values for {self.num_rows} rows")
        head = self.data[offset[0] : offset[0] + min(nbytes[0], HEAD_NBYTES)]
        kind = kind_of_text(leaf.name) if leaf.is_text else kind_of_bytes(leaf.name, head)
        return ReadableColumn(FieldColumn(offset, nbytes), kind, head)

    def _places(self, leaf: SchemaLeaf) -> Iterator[tuple[int, int]]:
        for chunk, _ in self.footer.chunks(leaf):
            for values in plain_values(self.data, chunk):
                yield from byte_arrays(self.data, values)

    def _by_rows(self, name: str, leaves: list[SchemaLeaf]) -> ReadableColumn:
        if any(leaf.physical_type == "INT96" for leaf in leaves):
            raise NoFieldError("of type INT96, which cannot become a field")
        nbytes = np.zeros(len(self.starts) - 1, np.int64)
        found: list[Pages] = []
        for leaf in leaves:
            each = self.pages(leaf)
            nbytes += [one.nbytes for one in each]
            found.append(sum(each, Pages(leaf)))
        made, value = first_value(self.path, name, found)
        kind = made.kind
        if kind in (FieldKind.BYTES, FieldKind.TEXT):
            kind = kind_of_text(name) if kind is FieldKind.TEXT else kind_of_bytes(name, value or b"")
        sizes = np.diff(self.starts)
        about = np.repeat(nbytes // np.maximum(sizes, 1), sizes)
        head = None if value is None else value[:HEAD_NBYTES]
        return ReadableColumn(FieldColumn(np.arange(self.num_rows, dtype=np.int64), about, column=name), kind, head)

    def pages(self, leaf: SchemaLeaf) -> list[Pages]:
        """Return what the pages of a leaf say of themselves, row group by row group. Raises NoFieldError and DamagedError."""
        found: list[Pages] = []
        for chunk, codec in self.footer.chunks(leaf):
            if codec not in CODECS:
                raise NoFieldError(f"compressed ({codec})")
            found.append(pages_of(chunk, self.data, leaf, file_nbytes=len(self.data)))
        return found


def add_further_columns(rows: SidecarRows, file: ParquetFile, taken: Collection[str]) -> list[FieldSpec]:
    """Add every column but those `taken` as a field; a column that cannot be one is recorded in `rows.unread`.

    Raises DamagedError and PYARROW_ERRORS if the file's own tables are inconsistent.
    """
    specs: list[FieldSpec] = []
    names = dict.fromkeys(column.name for column in file.footer.columns)
    for name in names:
        if name in taken or name in _KEYS:
            continue
        paths = [leaf.path for leaf in file.footer.columns if leaf.name == name]
        try:
            found = file.find(f"{name}.{form.BYTES}" if _is_image(name, paths) else name)
        except StorageError:
            raise
        except NoFieldError as exc:
            rows.unread[name] = str(exc)
            continue
        except (DamagedError, *PYARROW_ERRORS) as exc:
            logger.warning("%s: left out: %r, which is damaged or cannot be decoded (%s)", file.path, name, exc)
            continue
        specs.append(add_field(rows, name, found.kind, found.column))
    return specs


def _is_image(name: str, paths: list[str]) -> bool:
    """Return True if a column is a struct of bytes and their file name, as `datasets` has it for images."""
    return f"{name}.{form.BYTES}" in paths and {*paths} <= {f"{name}.{form.BYTES}", f"{name}.{form.PATH}"}
