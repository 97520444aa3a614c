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

from converters import Check, Encode, Resize
from converters.samples.examine import mask_size, resize_mask, scale_boxes
from datapipe.codecs.boxes import checked_boxes, load_boxes, parse_boxes, store_boxes
from datapipe.codecs.masks import mask_labels, nearest_sources
from datapipe.containers.form import FieldChoice
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
    """Every pixel is one of the source's, that which torch's "nearest" takes; mode and palette stay."""
    encoding, data = resize_mask(encoded(MASKS[mode]), size)
    found = Image.open(io.BytesIO(data))
    assert (encoding, found.mode, found.size) == ("png", mode, (size[1], size[0]))
    rows = [row * 20 // size[0] for row in range(size[0])]
    columns = [column * 30 // size[1] for column in range(size[1])]
    assert np.array_equal(np.asarray(found), np.asarray(MASKS[mode])[rows][:, columns])
    if mode == "P":
        assert found.getpalette()[:600] == MASKS[mode].getpalette()[:600]  # type: ignore[index]
    array = np.load(io.BytesIO(resize_mask(npy(LABELS.astype(np.int16)), size)[1]))
    assert np.array_equal(array, LABELS[rows][:, columns])
    assert array.dtype == np.int16


@pytest.mark.parametrize(("have", "want"), [(500, 224), (1023, 224), (333, 256), (224, 500), (7, 7), (1, 5), (16_777, 11)])
def test_resizing_is_torchs_nearest(have: int, want: int) -> None:
    torch = pytest.importorskip("torch")
    places = torch.arange(have, dtype=torch.float64)[None, None]
    assert (
        torch.nn.functional.interpolate(places, size=want, mode="nearest")[0, 0].tolist() == nearest_sources(have, want).tolist()
    )


@pytest.mark.parametrize("size", [(13, 17), (40, 61)])
def test_converting_resizes_masks_as_the_loader_does(tmp_path: Path, size: tuple[int, int]) -> None:
    from datapipe.order.draws import Draws
    from datapipe.transforms import Recipe
    from datapipe.transforms import Resize as ResizeWhenLoaded
    from datapipe.transforms.execute import cut_mask, row_cuts

    source = paired(tmp_path / "in", num=1)
    found = converted(source, tmp_path / "out", resize=Resize.parse(f"exact:{size[0]}x{size[1]}"))
    chain = Recipe.of([ResizeWhenLoaded(size)]).draw_cuts(Draws(0, 0, np.array([0])), np.array([[20, 30]], np.int64))
    expected = cut_mask(mask_labels(mask(0)), [row_cuts(cuts)[0] for cuts in chain])
    assert np.array_equal(mask_labels(field_of(found, "mask")[0]), expected)


def test_what_is_a_mask() -> None:
    assert mask_size(encoded(MASKS["L"])) == ("png", (20, 30))
    assert mask_size(encoded(MASKS["RGB"], "BMP")) == ("bmp", (20, 30))
    assert mask_size(npy(LABELS > 3)) == ("npy", (20, 30))
    for data, said in (
        (npy(LABELS[0]), "is not a mask, expected"), (npy(LABELS * 0.5), "is not a mask"), (b"x", "not an image"),
        (encoded(MASKS["L"])[:-60], "does not decode"), (npy(LABELS)[:-1], "cut off"),
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
    assert bad["imgs/1.jpg"].startswith("field 'mask': mask does not decode")


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
        ([[1, 2, 3, 4]], "not a list of boxes, expected rows of"),
        ([1, 2, 3, 4, 5], "not a list of boxes, expected rows of"),
        ([[1, 2, 3, 4, 5], [1]], "not a list of boxes, expected rows of"),
        ([["a", 2, 3, 4, 5]], "not a list of boxes, expected rows of"),
        ({"a": 1}, "not a list of boxes, expected rows of"),
        (7, "not a list of boxes, expected rows of"),
        ([[3, 2, 1, 4, 5]], r"the box \[3.0, 2.0, 1.0, 4.0\] ends before it begins"),
        ([[1, 2, 3, 4, 0.5]], "not whole numbers from 0"),
        ([[1, 2, 3, 4, -1]], "not whole numbers from 0"),
        ([[1, 2, 3, 4, 1 << 24]], "not whole numbers from 0"),
        ([[1, 2, float("nan"), 4, 5]], "not finite numbers"),
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


# -- all three together ------------------------------------------------------------------------------


def scene(root: Path, *, num: int = 3) -> Path:
    """A bright rectangle, its mask and its box, listed."""
    rows = []
    for number in range(num):
        height, width, (left, top, right, bottom) = 90 + 7 * number, 120, (24 + number, 15, 96, 63 + number)
        labels = np.zeros((height, width), np.uint8)
        labels[top:bottom, left:right] = 1
        put(root / f"{number}.png", encoded(Image.fromarray(np.stack([labels * 200] * 3, axis=2))))
        put(root / f"{number}_mask.png", encoded(Image.fromarray(labels)))
        put(root / f"{number}.npy", npy(labels))
        rows.append(
            {
                "image": f"{number}.png",
                "mask": f"{number}_mask.png",
                "seg": f"{number}.npy",
                "boxes": [[left, top, right, bottom, 1]],
            }
        )
    return put(root / "list.jsonl", "\n".join(map(json.dumps, rows)))


def span_of(labels: np.ndarray) -> list[int]:
    rows, columns = np.nonzero(labels)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("resize", ["shorter:40", "exact:33x200", "longer:300"])
def test_image_mask_and_box_agree_after_resizing(tmp_path: Path, to: str, resize: str) -> None:
    """In every format: all of one size, and each of the rectangle's edges within a pixel of where the image has it."""
    fields = (FieldChoice("boxes", "boxes"), FieldChoice("seg", "mask"))
    options = {"to": to, "resize": Resize.parse(resize), "encode": Encode.parse("png"), "fields": fields}
    out = converted(scene(tmp_path / "in"), tmp_path / "out", **options)
    scale = np.array(
        [[width / 120, height / (90 + 7 * number)] * 2 for number, (width, height) in enumerate(sizes_of(out, "image"))]
    )
    for number, data in enumerate(field_of(out, "image")):
        pixels = np.asarray(Image.open(io.BytesIO(data)))[:, :, 0]
        mask_there, array_there = (mask_labels(field_of(out, name)[number]) for name in ("mask", "seg"))
        assert pixels.shape == mask_there.shape == array_there.shape
        assert np.array_equal(mask_there, array_there)
        (box,) = np.load(io.BytesIO(field_of(out, "boxes")[number]))
        assert np.allclose(box[:4], np.array([24 + number, 15, 96, 63 + number]) * scale[number], atol=1e-3)
        in_image = np.array(span_of(pixels > 100))
        assert np.abs(in_image - box[:4]).max() <= 0.5001
        assert np.abs(np.array(span_of(mask_there)) - box[:4]).max() <= 1.0001
        assert np.abs(np.array(span_of(mask_there)) - in_image).max() <= 1
