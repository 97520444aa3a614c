"""Fields other than the image, from bytes to values; invalid bytes make a bad sample, never a crash."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import datapipe as dp
from datapipe.codecs.field_values import FieldKind, value_of

LABELS = np.random.default_rng(0).integers(0, 20, (12, 15), np.uint8)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def palette(labels: np.ndarray[Any, Any]) -> Image.Image:
    image = Image.fromarray(labels, "P")
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
    return image


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(Image.fromarray(LABELS)), LABELS),
        (png(palette(LABELS)), LABELS),
        (png(Image.fromarray(LABELS > 9)), (LABELS > 9).astype(np.uint8)),
        (png(Image.fromarray(LABELS.astype(np.uint16) * 1000)), LABELS.astype(np.int32) * 1000),
        (npy(LABELS.astype(np.int64)), LABELS.astype(np.int64)),
    ],
    ids=["grey", "palette", "1 bit", "16 bits", "npy"],
)
def test_masks_are_labels(data: bytes, expected: np.ndarray[Any, Any]) -> None:
    found = value_of(FieldKind.MASK, data)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_arrays_texts_documents_and_bytes() -> None:
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert np.array_equal(value_of(FieldKind.ARRAY, npy(array)), array)
    assert value_of(FieldKind.TEXT, "zwölf Boxkämpfer".encode()) == "zwölf Boxkämpfer"
    assert value_of(FieldKind.TEXT, "\ufeffzwölf\u2028Boxkämpfer\x85".encode()) == "zwölf\u2028Boxkämpfer\x85"
    assert value_of(FieldKind.JSON, json.dumps({"a": [1, None]}).encode()) == {"a": [1, None]}
    assert value_of(FieldKind.BYTES, b"\x00\xff") == b"\x00\xff"


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (FieldKind.MASK, b"", "empty"),
        (FieldKind.MASK, png(Image.fromarray(LABELS))[:60], "mask does not decode"),
        (FieldKind.ARRAY, npy(np.array([{}], object), allow_pickle=True), "not a plain .npy file"),
        (FieldKind.ARRAY, npy(LABELS).replace(b"(12, 15), }", b"(-6,-30), }"), "not a plain .npy file"),
        (FieldKind.ARRAY, npy(LABELS)[:-1], "not a plain .npy file"),
        (FieldKind.ARRAY, b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8',", "not a plain .npy file"),
        (FieldKind.TEXT, b"caf\xe9", "not UTF-8"),
        (FieldKind.JSON, b"{'a': 1}", "not JSON"),
        (FieldKind.JSON, b"[" * 100_000, "not JSON"),
    ],
)
def test_what_means_nothing_is_bad(kind: FieldKind, data: bytes, said: str) -> None:
    with pytest.raises(dp.errors.DecodeError, match=said):
        value_of(kind, data)


@settings(max_examples=200)
@given(kind=st.sampled_from([FieldKind.MASK, FieldKind.ARRAY, FieldKind.TEXT, FieldKind.JSON]), data=st.data())
def test_damage_is_bad_or_harmless(kind: FieldKind, data: st.DataObject) -> None:
    whole = {FieldKind.MASK: png(palette(LABELS)), FieldKind.ARRAY: npy(LABELS)}.get(kind, b'{"a": [1, 2], "b": "text"}')
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(dp.errors.DecodeError):
        value_of(kind, bytes(damaged[: data.draw(st.integers(0, len(whole)))]))
