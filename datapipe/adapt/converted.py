"""Read converted data in place of the files that a torch dataset reads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from torch.utils.data import Subset

from datapipe.containers import open_index
from datapipe.core.errors import OptionError
from datapipe.datasets import Unseen, see_through
from datapipe.index.concat import AnyIndex

_LOOKED_AT = 1000  # samples whose names are compared; labels are compared for all


def converted_index(dataset: Any, path: str | os.PathLike[str]) -> AnyIndex:
    """Return the index of a converted folder: the samples of a torch dataset of that folder's files, in its order.

    `dataset`: torchvision's folder, or a `Subset` of one. A sampler's positions then mean the same samples. Raises OptionError
    if they would not, and what `open_index` raises.
    """
    if isinstance(dataset, Subset):
        whole = converted_index(dataset.dataset, path)
        positions = np.fromiter(dataset.indices, np.int64)
        return whole.select(np.where(positions < 0, positions + len(whole), positions))
    name, seen, root = f"data={os.fspath(path)!r}", see_through(dataset), getattr(dataset, "root", None)
    if root is None or isinstance(seen, Unseen):
        raise OptionError(
            f"{name}: converted data can replace one folder that torchvision reads, or a Subset of it, and this is a "
            f"{type(dataset).__qualname__}; read it in the script itself: datapipe.DataLoader({os.fspath(path)!r}, ...)"
        )
    found, index = open_index(path), seen.index
    remedy = f"convert the folder again: datapipe convert {os.fspath(root)} DST --to webdataset"
    if len(found) != len(index):
        raise OptionError(f"{name}: has {len(found)} samples, the dataset {len(index)}; {remedy}")
    differ = np.flatnonzero(found.labels() != index.labels())
    if len(differ):
        raise OptionError(f"{name}: sample {differ[0]} has another label than in the dataset; {remedy}")
    places = np.unique(np.linspace(0, max(0, len(index) - 1), min(_LOOKED_AT, len(index))).round().astype(np.int64))
    for ours, theirs in zip(found.ids(places).tolist(), index.ids(places).tolist(), strict=True):
        source, file = found.describe(ours).source, index.describe(theirs).path
        if source != os.path.relpath(file, root):
            raise OptionError(f"{name}: sample {ours} was made of {source or 'no file'}, but the dataset has {file}; {remedy}")
    return found
