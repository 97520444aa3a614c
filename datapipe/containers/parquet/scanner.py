"""Scan Parquet files of encoded images: where each image is, its label, and what else the file has of each sample.

Reads what Hugging Face's `datasets`, Petastorm and others write. Images that are neither compressed nor dictionary-encoded
lie in one piece each, and are addressed by bytes; others by rows, to be read a row group at a time. The image is a
struct with a field `bytes`, or a binary column, recognised by its name or else by its contents; the label is a column of
integers, recognised by its name or by the schema's metadata. The other columns are further fields.
"""

from __future__ import annotations

from pathlib import Path

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers.field_names import IMAGE, IMAGE_COLUMNS, KEY_COLUMNS, LABEL, LABEL_COLUMNS
from datapipe.containers.hugging_face import Features, read_features
from datapipe.containers.mapped import byte_source
from datapipe.containers.parquet import layout as form
from datapipe.containers.parquet.columns import NUMBER_NBYTES, PYARROW_ERRORS, is_believable, read_names, read_numbers
from datapipe.containers.parquet.fields import ParquetFile, ReadableColumn, add_further_columns
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.rows import NoFieldError
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.core.errors import FormatError, MissingDataError, StorageError
from datapipe.core.printable import get_logger
from datapipe.index.sidecar import SidecarRows

_MAX_KEY = 1024  # bytes
_MAX_LISTED = 12  # columns named in an error
_REMEDY = (
    "datapipe reads a struct with a field 'bytes', or a binary column, of one encoded image in each row; write such a one, or "
    "read a table of numbers with datapipe.TableLoader"
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
            return _index_columns(path, file)
        except (FormatError, MissingDataError, StorageError):
            raise
        except (DamagedError, *PYARROW_ERRORS) as exc:
            raise FormatError(f"{path}: damaged: {exc}; get the file again") from exc


def _index_columns(path: str | Path, file: ParquetFile) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    footer = file.footer
    if not footer.num_rows:
        raise FormatError(f"{path}: no samples; remove it")
    features = read_features(footer.metadata, str(path))
    image, found = _find_images(file, features)
    label = _label_column(footer, features, str(path))
    labels = None if label is None else _read_labels(path, file, label)
    names = features.classes.get(label.name) if label is not None else None
    if labels is not None and names is not None and max(labels) >= len(names):
        raise FormatError(f"{path}: a label is {max(labels)}, its metadata name {len(names)} classes; write the file again")
    keys = _read_keys(path, file, image)
    rows = SidecarRows((), classes=names)
    rows.add_column(IMAGE, found.column)
    for row in range(footer.num_rows):  # labels are read now, as they may be encoded and compressed
        key = keys[row] if keys is not None else None
        number = -1 if labels is None else labels[row]
        rows.append(id=row, key=key or b"%d" % row, source=b"", label=number, size=(0, 0), extents={})
    specs = [FieldSpec(IMAGE, FieldKind.IMAGE), *([] if labels is None else [FieldSpec(LABEL, FieldKind.LABEL)])]
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
    why = "".join(f"; {text}" for text in refusals[:_MAX_LISTED])
    remedy = "name one of them 'image'" if len(found) > 1 else _REMEDY
    raise FormatError(f"{file.path}: {what}{why} (has: {_listed(file.footer.columns)}); {remedy}")


def _candidates(footer: Footer, features: Features) -> tuple[list[SchemaLeaf], bool]:
    """Return columns that may hold images, and whether their names or forms leave no doubt that they do."""
    holders = [column for column in footer.columns if column.physical_type == "BYTE_ARRAY" and not column.is_text]
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
    named = next((top[name] for name in LABEL_COLUMNS if name in top), None)
    if named is None and len(features.classes) == 1:
        named = top.get(next(iter(features.classes)))
    if named is not None and named.physical_type not in ("INT32", "INT64"):
        logger.warning(
            "%s: %r holds no class numbers (%s); the set is read without labels", where, named.path, named.physical_type
        )
        return None
    return named


def _read_labels(path: str | Path, file: ParquetFile, label: SchemaLeaf) -> list[int]:
    """Return the label of each row; -1 if it is null."""
    num = file.num_rows
    if not is_believable(file.footer, label, file.data, value_nbytes=NUMBER_NBYTES):
        raise FormatError(f"{path}: column {label.path!r} claims to be larger than its rows; get the file again")
    labels = [-1 if value is None else value for value in read_numbers(path, label)]
    if len(labels) != num or min(labels) < -1:
        what = f"{len(labels)} labels for {num} images" if len(labels) != num else f"a label is {min(labels)}"
        raise FormatError(f"{path}: {what}, expected a class number from 0 for each; write the file again")
    return labels


def _read_keys(path: str | Path, file: ParquetFile, image: SchemaLeaf) -> list[bytes | None] | None:
    """Return the name of each sample for messages: from a column of names, else the images' file names."""
    by_path = {
        column.path: column for column in file.footer.columns if column.physical_type == "BYTE_ARRAY" and not column.is_repeated
    }
    for name in (*KEY_COLUMNS, f"{image.name}.{form.PATH}"):
        column = by_path.get(name)
        if column is None or column == image or not is_believable(file.footer, column, file.data, value_nbytes=_MAX_KEY):
            continue
        keys = read_names(path, column, at_most=_MAX_KEY)
        if keys is not None and len(keys) == file.num_rows and all(keys):
            return keys
    return None


def _listed(columns: tuple[SchemaLeaf, ...]) -> str:
    shown = [f"{column.path} {column.physical_type}" for column in columns[:_MAX_LISTED]]
    more = f", and {len(columns) - _MAX_LISTED} more" if len(columns) > _MAX_LISTED else ""
    return (", ".join(shown) or "no columns") + more
