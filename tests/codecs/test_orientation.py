"""Images are turned as Pillow turns them."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from conversation_trees import held
from fixtures import encode, picture
from PIL import Image, ImageOps, PngImagePlugin

from datapipe.codecs.decode import checked_header
from datapipe.codecs.orientation import UPRIGHT, orientation_of, upright, upright_size
from datapipe.errors import DecodeError


def turned_by_pillow(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def found(data: bytes) -> int:
    return orientation_of(data, checked_header(data))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_orientations_are_those_of_pillow(form: str, orientation: int) -> None:
    data = encode(picture(orientation, 13, 24), form, exif=held(orientation))
    assert found(data) == orientation
    with Image.open(io.BytesIO(data)) as image:
        pixels = upright(np.asarray(image.convert("RGB")), orientation)
    expected = turned_by_pillow(data)
    assert np.array_equal(pixels, expected)
    assert upright_size(13, 24, orientation) == expected.shape[:2]


@pytest.mark.parametrize("data", [encode(picture(0), form) for form in ("JPEG", "PNG", "GIF", "BMP")])
def test_what_says_no_orientation_is_upright(data: bytes) -> None:
    assert found(data) == UPRIGHT


@pytest.mark.parametrize("orientation", [0, 9, 700])
def test_an_orientation_that_there_is_not_is_upright(orientation: int) -> None:
    assert found(encode(picture(0), exif=held(orientation))) == UPRIGHT


def test_arrays_are_upright() -> None:
    sink = io.BytesIO()
    np.save(sink, picture(0))
    assert found(sink.getvalue()) == UPRIGHT


@pytest.mark.parametrize("name", ["XML:com.adobe.xmp", "Raw profile type exif"])
def test_orientations_that_other_programs_write_into_png(name: str) -> None:
    """As a text, as those from before PNG had EXIF do, and as XMP."""
    exif = held(8).tobytes().removeprefix(b"Exif\0\0")
    info = PngImagePlugin.PngInfo()
    if name.startswith("XML"):
        info.add_itxt(name, '<x tiff:Orientation="8"/>')
    else:
        info.add_text(name, f"\nexif\n{len(exif)}\n{(b'Exif' + bytes(2) + exif).hex()}\n", zip=True)
    data = encode(picture(0, 10, 20), "PNG", pnginfo=info)
    assert found(data) == 8
    assert turned_by_pillow(data).shape[:2] == (20, 10)


@pytest.mark.parametrize(
    ("damage", "orientation"),
    [(b"MM\0*\xff\xff\xff\xff", UPRIGHT), (b"MM\0*\0\0\0\x08\xff\xff", 6), (bytes(10), UPRIGHT)],
    ids=["its place", "its length", "its mark"],
)
def test_of_damaged_exif_counts_what_can_be_read_and_nobody_is_warned(damage: bytes, orientation: int) -> None:
    data = encode(picture(0), exif=held(6))
    place = data.index(b"Exif\0\0") + 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(data[:place] + damage + data[place + len(damage) :]) == orientation


def test_a_png_that_says_no_orientation_is_not_decoded_to_find_none() -> None:
    data = bytearray(encode(picture(0, 100, 100), "PNG"))
    data[len(data) // 2] ^= 0xFF
    assert found(bytes(data)) == UPRIGHT
    with pytest.raises(OSError, match="broken data stream"):
        turned_by_pillow(bytes(data))


def test_what_does_not_open_is_bad() -> None:
    data = encode(picture(0))
    header = checked_header(data)
    with pytest.raises(DecodeError):
        orientation_of(data[:20], header)
