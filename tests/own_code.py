"""Code of a user's own, as small as can be: Datasets and a transform that datapipe knows nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset


def watermarked(image: Any) -> Any:
    return image


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, number: int) -> int:
        return number


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))
