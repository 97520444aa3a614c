"""Find the files of a folder that belong together, by their names alone."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from datapipe.codecs.field_values import FieldKind
from datapipe.containers.field_names import field_name, is_mask_name
from datapipe.containers.listing import ListedFile, is_image_name

IMAGE = "image"
MASK = "mask"
KINDS = {b".txt": FieldKind.TEXT, b".json": FieldKind.JSON, b".npy": FieldKind.ARRAY}  # of files that are not images, by suffix
_BESIDE = {FieldKind.TEXT: "txt", FieldKind.JSON: "json", FieldKind.ARRAY: "array"}  # the field of such a file next to an image
_IMAGE_FOLDERS = frozenset(
    (b"images", b"image", b"imgs", b"img", b"jpegimages", b"photos", b"pictures", b"inputs", b"input", b"rgb")
)
_MASK_FOLDERS = frozenset((b"gt", b"gts", b"groundtruth", b"ground_truth", b"labels", b"label", b"targets", b"target"))
_MASK_ENDING = re.compile(rb"(?i)(.+)[_-](masks?|seg|segmentation|labels?|gt|matte)")


@dataclass(frozen=True, slots=True)
class PairedFile:
    """A file and the sample that it belongs to."""

    directory: bytes  # of the sample: relative to the root, or to the folder of its role
    stem: bytes  # of the sample
    field: str  # IMAGE, MASK, or a name from the folder or the suffix
    kind: FieldKind
    other_stem: bytes | None  # the image it may mask: if there is such an image (IMAGE), if there is none of `stem` (MASK)


def is_pair_name(name: bytes) -> bool:
    """Return True if a file of this name may be part of a sample."""
    return is_image_name(name) or os.path.splitext(name)[1].lower() in KINDS


def role_folders(folders: list[bytes]) -> dict[bytes, str]:
    """Return field by folder, if each folder of a source holds one field and one of them the images; else empty."""
    images = [folder for folder in folders if folder.lower() in _IMAGE_FOLDERS]
    if len(images) != 1 or len(folders) < 2:
        return {}
    return {folder: IMAGE if folder == images[0] else _field_of_folder(folder) for folder in folders}


def _field_of_folder(folder: bytes) -> str:
    name = os.fsdecode(folder)
    return MASK if folder.lower() in _MASK_FOLDERS or is_mask_name(name) else field_name(name)


def place_file(file: ListedFile, roles: dict[bytes, str]) -> PairedFile:
    """Return the sample and field of a file; `roles` from `role_folders`."""
    stem, suffix = os.path.splitext(file.name)
    top, _, below = file.directory.partition(b"/")
    role, directory = (roles.get(top), below) if roles else (None, file.directory)
    ending = _MASK_ENDING.fullmatch(stem)
    masked = ending[1] if ending else None
    if is_image_name(file.name):
        if role in (None, IMAGE):
            return PairedFile(directory, stem, IMAGE, FieldKind.IMAGE, None if role else masked)
        return PairedFile(
            directory, stem, role, FieldKind.MASK if role == MASK else FieldKind.IMAGE, masked if role == MASK else None
        )
    kind = KINDS[suffix.lower()]
    if role in (None, IMAGE):
        return PairedFile(directory, stem, _BESIDE[kind], kind, None)
    if role == MASK and kind is not FieldKind.ARRAY:  # YOLO and others keep texts in a folder named "labels"
        role = field_name(os.fsdecode(top))
    return PairedFile(directory, stem, role, FieldKind.MASK if role == MASK else kind, masked if role == MASK else None)
