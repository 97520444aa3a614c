"""Read row groups of any container: values as the bytes that decoders and `field_values` take.

Numbers are `.npy` files, texts UTF-8, nested values JSON; images are as stored, or `.npy` files of pixels.
"""

from __future__ import annotations

from collections.abc import Callable

from datapipe.core.errors import IntegrityError, MissingDataError, StorageError
from datapipe.index.entries import RowGroup, Rows


def read_rows(group: RowGroup) -> Rows:
    """Read one field of a row group. Thread-safe.

    Raises MissingDataError, StorageError, or IntegrityError if the shard is damaged or has changed since it was indexed.
    """
    reader, damage = _reader_of(group.container)
    try:
        return reader(group)
    except (MissingDataError, StorageError):  # of a store, which has said what is wrong
        raise
    except FileNotFoundError as exc:
        raise MissingDataError(f"{group.path}: is missing; get the file again") from exc
    except damage as exc:
        if isinstance(exc, OSError) and exc.errno:
            raise StorageError(exc.errno, f"{group.path}: cannot be read ({exc.strerror or exc})") from exc
        raise IntegrityError(
            f"{group.path}: {group.column!r} of rows {group.first} to {group.end - 1} cannot be read ({str(exc) or repr(exc)}): "
            "damaged, or changed since it was indexed; get the file again"
        ) from exc


def _reader_of(container: str) -> tuple[Callable[[RowGroup], Rows], tuple[type[Exception], ...]]:
    """Return what reads row groups of that format, and the errors by which it finds damage.

    Imported here, as each format needs a large library.
    """
    match container:
        case "hdf5":
            from datapipe.containers.hdf5 import rows as hdf5

            return hdf5.read_rows, hdf5.DAMAGE
        case "parquet":
            from datapipe.containers.parquet import rows as parquet

            return parquet.read_rows, parquet.DAMAGE
    raise ValueError(f"container is {container!r}, which has no row groups")
