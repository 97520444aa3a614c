"""Arrays of numbers that are kept in the user's cache between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core import atomic
from datapipe.core.regular_files import refuse_irregular


def keep_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array, whole or not at all. Raises OSError."""
    with atomic.atomic_writer(path, mode=0o600) as file:
        np.save(file, values)


def kept_array(path: Path) -> NDArray[Any]:
    """Return an array that `keep_array` wrote, mapped into memory. Raises OSError if absent, ValueError if damaged."""
    refuse_irregular(path)
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except EOFError as exc:  # of an empty file
        raise ValueError(f"{path}: {exc}") from exc
    return found
