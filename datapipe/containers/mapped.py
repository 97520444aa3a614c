"""Map a shard's bytes for random access."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.core import regular_files
from datapipe.core.errors import FormatError, MissingDataError, StorageError


@contextlib.contextmanager
def mapped(path: Path, form: str) -> Iterator[mmap.mmap]:
    """Yield the bytes of `path`, a file of that form. Nothing is read ahead, as headers are small compared with images.

    Raises MissingDataError, StorageError, or FormatError for an empty or irregular file; also for an OSError in the block.
    """
    try:
        with regular_files.open_file(path) as plain:
            if not os.fstat(plain.fileno()).st_size:
                raise FormatError(f"{path}: empty file, not {form}; get the file again or remove it")
            with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_RANDOM)
                yield data
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such shard") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc
