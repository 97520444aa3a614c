"""WebP as an encoding, and metadata taken out of images: every reader takes the results back, with the same pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from reading import converted, field_of, skipping
from source_trees import image, npy, put
from trees import encoded_image, make_tree

from converters import Check, Encode
from converters.samples.images import without_metadata
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError, OptionError


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def with_metadata(form: str, *, progressive: bool = False) -> bytes:
    """An image with EXIF (a place), XMP, a comment and a profile."""
    picture = Image.open(io.BytesIO(encoded_image(3, size=(60, 80), form="PNG")))
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    sink = io.BytesIO()
    options: dict[str, Any] = {"exif": exif, "icc_profile": b"profile" * 20}
    if form == "JPEG":
        options |= {"comment": b"secret comment", "xmp": b"<x>secret xmp</x>", "progressive": progressive, "quality": 80}
    if form == "WEBP":
        options |= {"xmp": b"<x>secret xmp</x>", "lossless": True}
    if form == "PNG":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_text("Comment", "secret text")
        options["pnginfo"].add_itxt("XML", "secret xmp")
    picture.save(sink, form, **options)
    return sink.getvalue()


@pytest.mark.parametrize("to", ["webdataset", "hdf5", "parquet", "tfrecord"])
@pytest.mark.parametrize("form", ["webp:lossless", "webp:80"])
def test_webp(tmp_path: Path, to: str, form: str) -> None:
    source = make_tree(tmp_path / "source", num_classes=1, per_class=3)
    found = field_of(converted(source, tmp_path / "out", to=to, encode=Encode.parse(form), check=Check.DECODE), "image")
    before = [pixels(path.read_bytes()) for path in sorted(source.rglob("*.jpg"))]
    assert {probe(data).encoding for data in found} == {"webp"}
    for data, expected in zip(found, before, strict=True):
        difference = np.abs(pixels(data).astype(int) - expected)
        assert difference.max() == 0 if form == "webp:lossless" else difference.mean() < 12


def test_the_loader_takes_webp_back(tmp_path: Path) -> None:
    import datapipe as dp

    source = make_tree(tmp_path / "source", num_classes=2, per_class=4)
    out = converted(source, tmp_path / "out", encode=Encode.parse("webp:lossless"))
    for mine, theirs in zip(
        dp.DataLoader(out, batch_size=4, num_workers=1, device="cpu"),
        dp.DataLoader(source, batch_size=4, num_workers=1, device="cpu"),
        strict=True,
    ):
        assert (mine[0] == theirs[0]).all()
        assert (mine[1] == theirs[1]).all()


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_what_only_pillow_reads_becomes_png(tmp_path: Path, to: str) -> None:
    """Masks of such files, too, without a change of their labels."""
    avif, labels = image(0, form="AVIF"), np.arange(600, dtype=np.int16).reshape(20, 30).astype(np.uint8) % 5
    sink = io.BytesIO()
    Image.fromarray(labels).save(sink, "TGA")
    put(tmp_path / "in" / "images" / "a.jpg", avif)
    put(tmp_path / "in" / "masks" / "a.png", sink.getvalue())
    out = converted(tmp_path / "in", tmp_path / "out", to=to)
    (stored,), (mask,) = field_of(out, "image"), field_of(out, "mask")
    assert probe(stored).encoding == probe(mask).encoding == "png"
    assert np.array_equal(pixels(stored), pixels(avif))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask))), labels)


@pytest.mark.parametrize("text", ["avif", "avif:50", "jxl", "jxl:90"])
def test_what_not_every_reader_takes_back_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not every reader of the shards could take it back; choose webp:80"):
        Encode.parse(text)


@pytest.mark.parametrize("text", ["webp", "webp:0", "webp:101", "webp:best", "gif"])
def test_what_is_no_encoding(text: str) -> None:
    with pytest.raises(OptionError, match="is none of keep, jpeg:QUALITY"):
        Encode.parse(text)
    for form in ("webp:lossless", "webp:80", "jpeg:90", "raw"):
        assert str(Encode.parse(form)) == form


def test_an_image_that_webp_cannot_hold(tmp_path: Path) -> None:
    wide = Image.new("RGB", (16384, 1))
    sink = io.BytesIO()
    wide.save(sink, "PNG")
    put(tmp_path / "in" / "k" / "a.png", sink.getvalue())
    put(tmp_path / "in" / "k" / "b.jpg", image(0))
    bad = skipping(tmp_path / "in", tmp_path / "out", encode=Encode.parse("webp:80"))
    assert bad == {"k/a.png": "1x16384 pixels do not fit WebP, whose sides have at most 16383"}


@pytest.mark.parametrize(("form", "progressive"), [("JPEG", False), ("JPEG", True), ("PNG", False), ("WEBP", False)])
def test_metadata_goes_and_pixels_stay(form: str, progressive: bool) -> None:
    """Also what lies after the end: phones append further images, with EXIF of their own."""
    data = with_metadata(form, progressive=progressive)
    assert data.count(b"secret") >= 2
    stripped = without_metadata(data + (b"trailing secret" if form != "WEBP" else b""), form.lower())
    assert b"secret" not in stripped
    assert b"profile" in stripped or form == "PNG"
    with Image.open(io.BytesIO(stripped)) as picture:
        assert not picture.getexif()
        assert "xmp" not in picture.info
        assert picture.info["icc_profile"] == b"profile" * 20
    assert np.array_equal(pixels(stripped), pixels(data))
    assert without_metadata(stripped, form.lower()) == stripped
    assert probe(stripped).complete


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_cut_images_are_refused(form: str) -> None:
    data = with_metadata(form)
    for share in (0.05, 0.3, 0.9):
        with pytest.raises(DecodeError):
            without_metadata(data[: int(len(data) * share)], form.lower())


def test_stripping_as_an_option(tmp_path: Path) -> None:
    for name, form in (("a.jpg", "JPEG"), ("b.png", "PNG"), ("c.webp", "WEBP")):
        put(tmp_path / "in" / "k" / name, with_metadata(form))
    out = converted(tmp_path / "in", tmp_path / "out", strip_exif=True, check=Check.DECODE)
    assert all(b"secret" not in data for data in field_of(out, "image"))
    assert any(b"secret" in data for data in field_of(converted(tmp_path / "in", tmp_path / "kept"), "image"))
    put(tmp_path / "in" / "k" / "d.tif", b"")
    Image.new("RGB", (4, 4)).save(tmp_path / "in" / "k" / "d.tif")
    bad = skipping(tmp_path / "in", tmp_path / "tiff", strip_exif=True)
    assert bad == {"k/d.tif": "tiff: its metadata cannot be taken out; store it otherwise, such as with --encode png"}
    put(tmp_path / "arrays" / "k" / "x.npy", npy([1]))
    with pytest.raises(OptionError, match=r"--strip-exif: .* have no images"):
        converted(tmp_path / "arrays", tmp_path / "no", strip_exif=True)
