"""A folder of arrays: every `.npy` file is a sample; folders name classes, or nothing does."""

from __future__ import annotations

from converters.options import ConvertOptions
from converters.sources.class_folders import FileForm, FolderSource
from datapipe.codecs.field_values import FieldKind, FieldSpec

_ARRAYS = FileForm(FieldSpec("array", FieldKind.ARRAY), lambda name: name.lower().endswith(b".npy"), "arrays", ".npy")


def open_source(options: ConvertOptions) -> FolderSource:
    """Open the source; see `FolderSource`."""
    return FolderSource(options, _ARRAYS)
