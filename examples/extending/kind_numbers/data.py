"""Numbers, as users pass them to a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from datapipe.kernel.kind import Data
from kind_numbers.inspection import NumbersIndex
from kind_numbers.kind import NumbersKind


class Numbers(Data):
    """The numbers in the `*.numbers` files of a directory, a loader's `dataset`.

    Batches are (b,) int64; with tail="mask" also which are no repeats, (b,) bool.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.index = NumbersIndex(sorted(Path(path).glob("*.numbers")))

    def __len__(self) -> int:
        return int(self.index.starts[-1])

    @property
    def shown(self) -> str:
        return f"{len(self)} numbers"

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> NumbersKind:
        return NumbersKind(self.index)


def make_data(source: Any, index: NumbersIndex | None) -> Numbers | None:
    """Return the numbers at a path that was claimed. No other object is one of numbers."""
    return None if index is None else Numbers(source)
