"""Name fields, and tell their kinds by names, first bytes, and the metadata of Hugging Face's `datasets`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, FieldKind, FieldSpec
from datapipe.codecs.npy import read_npy_header
from datapipe.codecs.probe import encoding_of
from datapipe.containers.forms import AUDIO_SUFFIXES, VIDEO_SUFFIXES
from datapipe.core.printable import get_logger
from datapipe.errors import DecodeError, OptionError

IMAGE = "image"
LABEL = "label"

AUDIO_FIELD = FieldSpec("audio", FieldKind.BYTES)  # of sound files, of any format
SPOKEN = FieldSpec("txt", FieldKind.TEXT)  # what is said in them

# Names of columns of images and keys in Parquet and Arrow files of other tools; those of labels: `labels`.
IMAGE_COLUMNS = ("image", "images", "img", "imgs", "jpeg", "jpg", "png", "x")
KEY_COLUMNS = ("key", "__key__", "file_name", "filename", "image_id", "id")

# What is said of a column of `datasets` that was written without its files.
PATHS_ALONE = (
    "holds no bytes, at most the paths of files: write it with the files in it, as `to_parquet` of `datasets` does, or pass a"
    " .csv that lists the paths"
)

HEAD_NBYTES = 256  # of a value: enough to recognise it
_UNMISTAKABLE = ("jpeg", "png", "webp", "gif", "tiff", "npy")  # a text may begin like the other encodings
FEATURES = b"huggingface"  # the key in a schema's metadata; the value is JSON, {"info": {"features": {NAME: FEATURE}}}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_LENGTH = 32
_OURS = frozenset(("cls", "id", "key", "size", "source"))  # names to which one of the formats gives another meaning
_SUFFIXES = frozenset(("jpg", "png", "webp", "bmp", "gif", "tif", "ppm", "npy"))  # of `datapipe.codecs.probe`'s encodings
_MASK_WORDS = frozenset(
    ("mask", "masks", "seg", "segmentation", "segmentations", "segmentationclass", "trimap", "trimaps", "matte")
)
_TEXT_WORDS = frozenset(
    ("txt", "text", "texts", "caption", "captions", "transcript", "transcription", "description", "title", "prompt", "sentence")
)

logger = get_logger(__name__)


def names_among(wanted: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return those of `names` that are `wanted`, which are in lower case, in their order; capitals make no difference.

    If two names differ in nothing else, the one without capitals comes first.
    """
    found = [name for name in names if name.lower() in wanted]
    return sorted(found, key=lambda name: (wanted.index(name.lower()), name != name.lower()))


def is_field_name(name: str) -> bool:
    """Return True if every format can hold a field of that name: lower-case letters, digits and `_`, at most 32, a letter first.

    Names to which a format gives another meaning (`key`, `cls`, the suffixes of images) are excluded.
    """
    return bool(_NAME.fullmatch(name)) and name not in _OURS and name not in _SUFFIXES


def checked_fields(fields: Sequence[FieldSpec]) -> tuple[FieldSpec, ...]:
    """Return `fields`, if every format can hold them.

    Fields have different names of lower-case letters, digits and `_`, at most 32 characters. Labels are named `label`, and a
    field named `image` is an image. Names that a format uses for something else (`key`, `cls`, the suffixes of images) are
    refused. Raises OptionError.
    """
    names = [field.name for field in fields]
    for one in fields:
        if not is_field_name(one.name):
            raise OptionError(f"field {one.name!r}: not a name that every format can hold; choose another of a-z, 0-9 and _")
        if (one.name == LABEL_FIELD.name) != (one.kind is FieldKind.LABEL):
            raise OptionError(f"field {one.name!r} of kind {one.kind.value}: labels, and nothing else, are named 'label'")
        if one.name == IMAGE_FIELD.name and one.kind is not FieldKind.IMAGE:
            raise OptionError(f"field 'image' of kind {one.kind.value}: a field named 'image' must be an image; rename it")
    if not names or len(set(names)) < len(names):
        raise OptionError(f"fields {', '.join(names) or 'none'}: a set must have one or more, with different names")
    return tuple(fields)


def field_name(text: str) -> str:
    """Return a field's name for a source's name of it; appends `_` to a name that the formats reserve."""
    if _is_free(text):
        return text
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if not name or not name[0].isalpha():
        name = f"f_{name}".rstrip("_")
    name = name[:_MAX_LENGTH]
    return name if _is_free(name) else name[: _MAX_LENGTH - 1] + "_"


def _is_free(name: str) -> bool:
    return is_field_name(name) and name not in (IMAGE, LABEL)


def is_video(field: FieldSpec) -> bool:
    """Return True for a field of videos: of members such as `KEY.mp4`, or `KEY.front.mp4`."""
    return field.kind is FieldKind.BYTES and f".{field.name.rpartition('_')[2]}" in VIDEO_SUFFIXES


def is_audio(field: FieldSpec) -> bool:
    """Return True for a field of sound files: `audio`, or of members such as `KEY.flac`."""
    is_named = field == AUDIO_FIELD or f".{field.name.rpartition('_')[2]}" in AUDIO_SUFFIXES
    return is_named and field.kind is FieldKind.BYTES


def is_mask_name(text: str) -> bool:
    """Return True if one of its words means a mask."""
    return not _MASK_WORDS.isdisjoint(_words(text))


def is_text_name(text: str) -> bool:
    """Return True if one of its words means a text."""
    return not _TEXT_WORDS.isdisjoint(_words(text))


def kind_of_array(name: str, head: bytes) -> FieldKind:
    """Return the kind of a `.npy` file that begins with `head`: an array, or by name, shape and dtype a mask."""
    try:
        header = read_npy_header(head)
    except DecodeError:
        return FieldKind.ARRAY
    is_labels = len(header.shape) == 2 and header.dtype.kind in "biu"
    return FieldKind.MASK if is_labels and is_mask_name(name) else FieldKind.ARRAY


def _words(text: str) -> list[str]:
    return re.split(r"[^a-z]+", text.lower())


def kind_of_bytes(name: str, head: bytes) -> FieldKind:
    """Return the kind of a field. `name`: its name in the shard; `head`: the first HEAD_NBYTES of a value."""
    encoding = encoding_of(head)
    if is_text_name(name) and encoding not in _UNMISTAKABLE:
        return FieldKind.TEXT
    if _is_json_name(name):
        return FieldKind.JSON
    if encoding is None:
        return FieldKind.BYTES
    if encoding == "npy":
        return kind_of_array(name, head)
    return FieldKind.MASK if is_mask_name(name) else FieldKind.IMAGE


def kind_of_text(name: str) -> FieldKind:
    """Return the kind of a field that is declared to be text."""
    return FieldKind.JSON if _is_json_name(name) else FieldKind.TEXT


def _is_json_name(name: str) -> bool:
    return "json" in _words(name)


@dataclass(frozen=True, slots=True)
class Features:
    """The columns of images and the names of classes, from the metadata of a file."""

    images: frozenset[str] = frozenset()
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by column of labels, their names


def read_features(metadata: Mapping[bytes, bytes] | None, where: str) -> Features:
    """Return the features; none if there is no such document, or with a warning if it does not parse."""
    text = (metadata or {}).get(FEATURES)
    if text is None:
        return Features()
    try:
        described: dict[str, Any] = json.loads(text)["info"]["features"]
        kinds = {name: value.get("_type") for name, value in described.items() if isinstance(value, dict)}
        classes = {name: tuple(map(str, described[name]["names"])) for name, kind in kinds.items() if kind == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        logger.warning("%s: the 'huggingface' metadata do not parse (%r); classes have no names", where, exc)
        return Features()
    return Features(frozenset(name for name, kind in kinds.items() if kind == "Image"), classes)
