"""Hugging Face's `datasets.Dataset` with a column of images: its Arrow files, or the image files that it names."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.containers.foreign import ForeignShards, open_foreign
from datapipe.errors import FormatError, OptionError
from datapipe.index.concat import AnyIndex, select
from datapipe.index.file_list import FileListIndex
from datapipe.index.manifest import class_numbers


def hugging_face_index(dataset: Any) -> AnyIndex | None:
    """Return the samples of a `datasets.Dataset`, in its order; None for any other object.

    Raises OptionError, with the reason, for a dataset that computes its samples or keeps them in memory.
    """
    kind = type(dataset)
    if kind.__module__ != "datasets.arrow_dataset" or kind.__qualname__ != "Dataset":
        return None
    form = dataset.format["type"]
    if form is not None:
        how = "a transform of its own (set_transform)" if form == "custom" else f"the format {form!r}"
        raise OptionError(f"the datasets.Dataset has {how}; pass one without, and the transforms to the loader")
    index = _named_files(dataset) or _arrow_files(dataset)
    if len(index) != dataset.data.num_rows:
        raise OptionError(f"the files of the datasets.Dataset have {len(index)} rows, but it has {dataset.data.num_rows}")
    chosen = dataset._indices
    return index if chosen is None else select(index, chosen.column(0).to_numpy())


def _arrow_files(dataset: Any) -> AnyIndex:
    files = importlib.import_module("datasets.table").list_table_cache_files(
        dataset.data
    )  # `cache_files` has those of indices too
    paths = [Path(file).absolute() for file in files]
    if not paths:
        raise OptionError("the datasets.Dataset is in memory; save_to_disk() it and load_from_disk() it")
    if len({path.parent for path in paths}) > 1:
        raise OptionError("the files of the datasets.Dataset are in several directories; save_to_disk() it")
    try:
        return open_foreign(ForeignShards("arrow", paths[0].parent, tuple(path.name for path in paths)))
    except FormatError as exc:
        raise OptionError(str(exc)) from exc


def _named_files(dataset: Any) -> FileListIndex | None:
    """Return the files if the images are paths without bytes, as `load_dataset("imagefolder", ...)` makes them."""
    images = [name for name, feature in dataset.features.items() if type(feature).__qualname__ == "Image"]
    if len(images) != 1:
        return None
    table = dataset.data.table
    structs = table.column(images[0]).combine_chunks()
    data, paths = structs.field("bytes"), structs.field("path")
    if data.null_count < len(structs) or paths.null_count:
        return None
    labels = next((name for name, feature in dataset.features.items() if type(feature).__qualname__ == "ClassLabel"), None)
    names = None if labels is None else tuple(dataset.features[labels].names)
    return FileListIndex(
        [os.fspath(path) for path in paths.to_pylist()],
        None if labels is None else table.column(labels).to_numpy().astype(np.int64),
        where=f"datasets.Dataset of {len(structs)} files",
        classes=names,
        class_to_idx=class_numbers(names),
    )
