"""A folder of images: one folder per class as torchvision's `ImageFolder` reads it, or deeper, or without classes."""

from __future__ import annotations

from converters.options import ConvertOptions
from converters.sources.class_folders import FileForm, FolderSource
from converters.writers import IMAGE_FIELD
from datapipe.containers.listing import is_image_name

_IMAGES = FileForm(IMAGE_FIELD, is_image_name, "images", ".jpg, .jpeg, .png, ...")


def open_source(options: ConvertOptions) -> FolderSource:
    """Open the source; see `FolderSource`."""
    return FolderSource(options, _IMAGES)
