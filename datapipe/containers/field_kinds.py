"""Of which kind a field of bytes is, where nobody says: by its name, and by what its first value begins as."""

from __future__ import annotations

import re

from datapipe.containers.field_names import is_mask_name, is_text_name, kind_of_array
from datapipe.manifest import Kind
from datapipe.probe import encoding_of

HEAD_NBYTES = 256  # of a value: enough to tell what it is
_UNMISTAKABLE = ("jpeg", "png", "webp", "gif", "tiff", "npy")  # a text may begin as the other encodings do


def kind_of_bytes(name: str, head: bytes) -> Kind:
    """`name`: what the shard calls the field; `head`: the first HEAD_NBYTES of a value."""
    encoding = encoding_of(head)
    if is_text_name(name) and encoding not in _UNMISTAKABLE:
        return Kind.TEXT
    if _is_json_name(name):
        return Kind.JSON
    if encoding is None:
        return Kind.BYTES
    if encoding == "npy":
        return kind_of_array(name, head)
    return Kind.MASK if is_mask_name(name) else Kind.IMAGE


def kind_of_text(name: str) -> Kind:
    """Of a field that is declared to be text."""
    return Kind.JSON if _is_json_name(name) else Kind.TEXT


def _is_json_name(name: str) -> bool:
    return "json" in re.split(r"[^a-z]+", name.lower())
