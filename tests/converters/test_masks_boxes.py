"""Masks and boxes when their image is resized, and what is no mask and no box."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reading import converted, field_of, skipping
from source_trees import image, mask, npy, put
from trees import encoded_image

from converters import Check, Encode, FieldChoice, Resize
from converters.boxes import checked_boxes, load_boxes, parse_boxes, scale_boxes, store_boxes
from converters.masks import mask_size, resize_mask
from datapipe.errors import DecodeError

LABELS = np.random.default_rng(0).integers(0, 200, (20, 30))


def encoded(picture: Image.Image, form: str = "PNG") -> bytes:
    sink = io.BytesIO()
    picture.save(sink, form)
    return sink.getvalue()


def palette(labels: np.ndarray) -> Image.Image:
    picture = Image.fromarray(labels.astype(np.uint8)).convert("P")
    picture.putpalette([value for index in range(256) for value in (index, 255 - index, 7)])
    return picture


MASKS = {
    "L": Image.fromarray(LABELS.astype(np.uint8)),
    "P": palette(LABELS),
    "1": Image.fromarray(LABELS > 100),
    "I;16": Image.fromarray((LABELS * 300).astype(np.uint16)),
    "RGB": Image.fromarray(np.stack([LABELS, LABELS // 2, LABELS % 7], axis=2).astype(np.uint8)),
    "RGBA": Image.fromarray(np.stack([LABELS] * 4, axis=2).astype(np.uint8)),
}


@pytest.mark.parametrize("mode", MASKS)
@pytest.mark.parametrize("size", [(10, 15), (40, 61), (7, 30), (1, 1)])
def test_labels_survive_resizing(mode: str, size: tuple[int, int]) -> None:
    """Every pixel is one of the source's, that of the nearest centre; mode and palette stay."""
    encoding, data = resize_mask(encoded(MASKS[mode]), size)
    found = Image.open(io.BytesIO(data))
    assert (encoding, found.mode, found.size) == ("png", mode, (size[1], size[0]))
    rows = [(2 * row + 1) * 20 // (2 * size[0]) for row in range(size[0])]
    columns = [(2 * column + 1) * 30 // (2 * size[1]) for column in range(size[1])]
    assert np.array_equal(np.asarray(found), np.asarray(MASKS[mode])[rows][:, columns])
    if mode == "P":
        assert found.getpalette()[:600] == MASKS[mode].getpalette()[:600]  # type: ignore[index]
    array = np.load(io.BytesIO(resize_mask(npy(LABELS.astype(np.int16)), size)[1]))
    assert np.array_equal(array, LABELS[rows][:, columns])
    assert array.dtype == np.int16


def test_what_is_a_mask() -> None:
    assert mask_size(encoded(MASKS["L"])) == ("png", (20, 30))
    assert mask_size(encoded(MASKS["RGB"], "BMP")) == ("bmp", (20, 30))
    assert mask_size(npy(LABELS > 3)) == ("npy", (20, 30))
    for data, said in (
        (npy(LABELS[0]), "is no mask, expected"), (npy(LABELS * 0.5), "is no mask"), (b"x", "not an image"),
        (encoded(MASKS["L"])[:-12], "cut off"), (npy(LABELS)[:-1], "cut off"),
    ):  # fmt: skip
        with pytest.raises(DecodeError, match=said):
            mask_size(data)
    with pytest.raises(DecodeError, match="of mode CMYK cannot be stored as PNG"):
        resize_mask(encoded_image(0, mode="CMYK"), (3, 3))


def paired(root: Path, *, num: int = 3) -> Path:
    for number in range(num):
        put(root / "imgs" / f"{number}.jpg", image(number))
        put(root / "masks" / f"{number}.png", mask(number))
    return root


def sizes_of(out: Path, field: str) -> list[tuple[int, int]]:
    return [Image.open(io.BytesIO(data)).size for data in field_of(out, field)]


@pytest.mark.parametrize("resize", ["shorter:10", "longer:64", "exact:12x34"])
@pytest.mark.parametrize("encode", ["keep", "jpeg:80", "png"])
def test_masks_follow_their_image(tmp_path: Path, resize: str, encode: str) -> None:
    source = paired(tmp_path / "in")
    out = converted(source, tmp_path / "out", resize=Resize.parse(resize), encode=Encode.parse(encode))
    assert sizes_of(out, "image") == sizes_of(out, "mask")
    for number, data in enumerate(field_of(out, "mask")):
        assert Image.open(io.BytesIO(data)).mode == "P"
        width, height = Image.open(io.BytesIO(data)).size
        assert data == resize_mask(mask(number), (height, width))[1]


def test_encoding_leaves_masks_alone(tmp_path: Path) -> None:
    out = converted(paired(tmp_path / "in"), tmp_path / "out", encode=Encode.parse("raw"))
    assert field_of(out, "mask") == [mask(number) for number in range(3)]
    assert np.load(io.BytesIO(field_of(out, "image")[0])).shape == (20, 30, 3)


def test_decoding_looks_at_masks_too(tmp_path: Path) -> None:
    source = paired(tmp_path / "in")
    data = bytearray(mask(1))
    data[data.index(b"IDAT") + 8 : data.index(b"IDAT") + 20] = bytes(12)
    put(source / "masks" / "1.png", bytes(data))
    assert skipping(source, tmp_path / "header") == {}
    bad = skipping(source, tmp_path / "decode", check=Check.DECODE)
    assert list(bad) == ["imgs/1.jpg"]
    assert bad["imgs/1.jpg"].startswith("field 'mask': does not decode")


# -- boxes ----------------------------------------------------------------------------------------


def test_boxes_on_disk() -> None:
    """The form that docs/convert.md gives."""
    data = parse_boxes("[[0.1, 2, 3, 4, 5]]")
    assert data[:8] == b"\x93NUMPY\x01\x00"
    array = np.load(io.BytesIO(data))
    assert (array.dtype.str, array.shape, array.flags.c_contiguous) == ("<f4", (1, 5), True)
    assert np.load(io.BytesIO(parse_boxes("[]"))).shape == (0, 5)
    assert store_boxes(load_boxes(data)) == data
    for dtype in (">f8", "i8"):
        assert load_boxes(npy(np.array([[1, 2, 3, 4, 5]], dtype))).tolist() == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1, 2, 3, 4]], "no boxes, expected rows of"),
        ([1, 2, 3, 4, 5], "no boxes, expected rows of"),
        ([[1, 2, 3, 4, 5], [1]], "no boxes, expected rows of"),
        ([["a", 2, 3, 4, 5]], "no boxes, expected rows of"),
        ({"a": 1}, "no boxes, expected rows of"),
        (7, "no boxes, expected rows of"),
        ([[3, 2, 1, 4, 5]], r"the box \[3.0, 2.0, 1.0, 4.0\] ends before it begins"),
        ([[1, 2, 3, 4, 0.5]], "not whole numbers from 0"),
        ([[1, 2, 3, 4, -1]], "not whole numbers from 0"),
        ([[1, 2, 3, 4, 1 << 24]], "not whole numbers from 0"),
        ([[1, 2, float("nan"), 4, 5]], "no numbers"),
    ],
)
def test_what_are_no_boxes(rows: Any, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        parse_boxes(json.dumps(rows))


def test_boxes_scale_with_their_image() -> None:
    boxes = checked_boxes(np.array([[3.0, 4, 30, 20, 7]]))
    assert scale_boxes(boxes, height=0.5, width=2.0).tolist() == [[6, 2, 60, 10, 7]]


def test_boxes_follow_their_image(tmp_path: Path) -> None:
    rows = [json.dumps({"image": f"{number}.jpg", "boxes": [[0, 0, 30, 20 + number, 1]]}) for number in range(3)]
    for number in range(3):
        put(tmp_path / "in" / f"{number}.jpg", image(number))
    source = put(tmp_path / "in" / "list.jsonl", "\n".join(rows))
    options = {"fields": (FieldChoice("boxes", "boxes"),), "resize": Resize.parse("shorter:10")}
    out = converted(source, tmp_path / "out", **options)
    for (width, height), data in zip(sizes_of(out, "image"), field_of(out, "boxes"), strict=True):
        assert np.load(io.BytesIO(data)).tolist() == [[0, 0, width, height, 1]]
