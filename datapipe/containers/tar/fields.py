"""Decide which field a member of a WebDataset tar is, by its suffix, alike for indexing and for converting.

    jpg, png, ...                the image              npy, of raw pixels         the image
    cls                          the label              npy, of anything else      `array`
    txt, text, caption           text                   NAME.npy                   an array, or a mask
    json                         json                   NAME.txt, NAME.json, ...   field NAME of that kind
    NAME.png, NAME.jpg, ...      an image, or a mask    NAME.bin, any other        bytes

A mask is a member with a word for one (`mask`, `seg`, ...) in its name, unless it is an array of other things than labels.
"""

from __future__ import annotations

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import probe
from datapipe.containers.field_names import IMAGE, LABEL, field_name, is_mask_name, kind_of_array
from datapipe.containers.tar.layout import LABEL_SUFFIX
from datapipe.core.errors import DecodeError

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "gif", "npy")  # the best one first
HEAD_NBYTES = 256  # of a member: enough to recognise raw pixels
_KINDS = {
    "txt": FieldKind.TEXT,
    "text": FieldKind.TEXT,
    "caption": FieldKind.TEXT,
    "json": FieldKind.JSON,
    "npy": FieldKind.ARRAY,
}
_BYTES_EXTENSION = "bin"


def field_of_suffix(suffix: str, head: bytes, kind: FieldKind | None = None) -> FieldSpec:
    """Return the field of members of that suffix. `head`: the first HEAD_NBYTES of one; `kind`: if it is known.

    Two suffixes may give one field, like `depth.png` and `depth.jpg`.
    """
    stem, _, extension = suffix.rpartition(".")
    if suffix == LABEL_SUFFIX and kind is None:
        return FieldSpec(LABEL, FieldKind.LABEL)
    kind = kind or _kind_of(stem, extension, head)
    is_known = extension in IMAGE_SUFFIXES or extension in _KINDS or extension == _BYTES_EXTENSION
    if not stem:
        if kind is FieldKind.IMAGE:
            return FieldSpec(IMAGE, kind)
        return FieldSpec(kind.value if extension in IMAGE_SUFFIXES else field_name(extension), kind)  # "png" names no purpose
    name = stem if is_known else suffix
    return FieldSpec(IMAGE if name == IMAGE and kind is FieldKind.IMAGE else field_name(name), kind)


def suffix_of_bytes(name: str) -> str:
    """Return the suffix of members that are the field `name` of kind bytes: its name, unless that has another meaning.

    `mp4` is a video in a member `KEY.mp4`; bytes called `json` are in `KEY.json.bin`.
    """
    return name if field_of_suffix(name, b"") == FieldSpec(name, FieldKind.BYTES) else f"{name}.{_BYTES_EXTENSION}"


def _kind_of(stem: str, extension: str, head: bytes) -> FieldKind:
    if extension == "npy":
        return kind_of_array(stem, head) if stem or not _is_raw_image(head) else FieldKind.IMAGE
    if extension in IMAGE_SUFFIXES:
        return FieldKind.MASK if is_mask_name(stem) else FieldKind.IMAGE
    return _KINDS.get(extension, FieldKind.BYTES)


def _is_raw_image(head: bytes) -> bool:
    """Return True if a .npy begins like one of (height, width, 3) uint8."""
    try:
        return probe(head).encoding == "npy"
    except DecodeError:
        return False
