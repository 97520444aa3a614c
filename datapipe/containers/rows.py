"""Read row groups of any container: values as the bytes that decoders and `field_values` take.

Numbers are `.npy` files, texts UTF-8, nested values JSON; images are as stored, or `.npy` files of pixels.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import IntegrityError, MissingDataError, StorageError
from datapipe.index.row_groups import RowGroup, Rows


def read_rows(group: RowGroup) -> Rows:
    """Read one field of a row group. Thread-safe.

    Raises MissingDataError, StorageError, or IntegrityError if the shard is damaged or has changed since it was indexed.
    """
    reader = importlib.import_module(f"datapipe.containers.{group.container}.rows")
    damage: tuple[type[Exception], ...] = reader.DAMAGE
    try:
        rows: Rows = reader.read_rows(group)
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
    return rows


@functools.lru_cache(maxsize=256)
def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a version 1 `.npy` file of such values in C order."""
    sink = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(sink, {"descr": descr, "fortran_order": False, "shape": shape})
    return sink.getvalue()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return the array as a `.npy` file."""
    return npy_header(array.shape, array.dtype) + array.tobytes()


def json_bytes(value: object) -> bytes:
    """Return the value as JSON. Raises TypeError or ValueError for values that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
