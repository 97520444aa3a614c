"""Define the kinds of fields, and parse the values of those that are not images: masks, arrays, captions, JSON.

Values are numpy arrays, str and JSON values. Does not depend on torch. Never unpickles.
"""

from __future__ import annotations

import codecs
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from datapipe.codecs.boxes import parse_boxes
from datapipe.codecs.masks import mask_labels
from datapipe.codecs.npy import read_npy_array
from datapipe.errors import DecodeError


class FieldKind(enum.Enum):
    """The meaning of a field's bytes."""

    IMAGE = "image"
    MASK = "mask"
    BOXES = "boxes"
    TEXT = "text"
    JSON = "json"
    ARRAY = "array"
    BYTES = "bytes"
    LABEL = "label"
    IMAGES = "images"  # any number of them, one after the other
    TOKENS = "tokens"  # ids one after the other; the manifest says of which dtype


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field that every sample has."""

    name: str
    kind: FieldKind


IMAGE_FIELD = FieldSpec("image", FieldKind.IMAGE)
LABEL_FIELD = FieldSpec("label", FieldKind.LABEL)
# In place of a label that is null, or of a set without labels; -1 is a label, as unlabelled test sets have it.
NO_LABEL = -(1 << 63)
NULL_LABEL = "its label is null; leave labels out with fields=, or samples with on_error='skip'"


def value_of(kind: FieldKind, data: bytes) -> Any:
    """Return the value of a field of that kind. Raises DecodeError, with the reason, if the bytes have none.

    MASK: (h, w) labels, see `mask_labels`. ARRAY: the array of an .npy file. TEXT: str. JSON: the parsed document.
    BYTES, TOKENS and IMAGES: the bytes themselves.
    """
    return _VALUES[kind](data)


def encode_value(kind: FieldKind, text: str) -> bytes:
    """Return a text value of the source as the contents of a field. Raises DecodeError."""
    if kind is FieldKind.BOXES:
        return parse_boxes(text)
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise DecodeError(f"{text[exc.start : exc.start + 10]!r} is half of a surrogate pair, which UTF-8 cannot encode") from exc


def _array(data: bytes) -> NDArray[Any]:
    """Return a read-only view of the bytes."""
    try:
        return read_npy_array(data)
    except DecodeError as exc:
        raise DecodeError(f"array is not a plain .npy file: {exc}") from exc


def _text(data: bytes) -> str:
    """Return a text without the byte order mark that some editors put before it."""
    text = data.removeprefix(codecs.BOM_UTF8)
    try:
        return text.decode()
    except UnicodeDecodeError as exc:
        raise DecodeError(f"text is not UTF-8: byte 0x{text[exc.start]:02x} at {exc.start}; save it as UTF-8") from exc


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(f"not JSON: {exc}") from exc


_VALUES: dict[FieldKind, Callable[[bytes], Any]] = {
    FieldKind.MASK: mask_labels,
    FieldKind.ARRAY: _array,
    FieldKind.TEXT: _text,
    FieldKind.JSON: _json,
    FieldKind.BYTES: bytes,
    FieldKind.TOKENS: bytes,
    FieldKind.IMAGES: bytes,
}


def json_bytes(value: object) -> bytes:
    """Return the value as JSON. Raises TypeError or ValueError for values that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def without_nulls(value: Any) -> Any:
    """Return a value of a column without the members that are null: columns have no other way to say that one is absent."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
