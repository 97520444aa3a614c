"""Pillow decides what is bad, whatever else is installed: what it reads is read, with its pixels, and nothing else is."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from encoded_images import FOR_DALI, png_block
from fixtures import encode, jpeg, picture, pillow_rgb
from fuzz import random_change
from PIL import Image, ImageFile

import datapipe as dp
from datapipe.codecs import pillow
from datapipe.codecs.decode import Decoder, checked_header
from datapipe.codecs.jpeg import _PIECE_NBYTES, is_whole
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError

HEIGHT, WIDTH = 40, 48
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow's remarks on damaged files


def put(data: bytes, marker: bytes, *, before: bytes = b"", behind: bytes = b"") -> bytes:
    """The data with bytes in front of the first such marker, or behind it."""
    at = data.find(marker)
    return data[:at] + before + marker + behind + data[at + len(marker) :]


def in_scan(data: bytes, what: bytes, share: float = 0.6) -> bytes:
    """The JPEG with bytes in its scan replaced."""
    start = data.find(b"\xff\xda") + 14
    at = start + int(share * (len(data) - start))
    return data[:at] + what + data[at + len(what) :]


def gif(height: int, width: int) -> bytes:
    """A GIF whose screen has that size."""
    data = encode(picture(5, HEIGHT, WIDTH), "GIF")
    return data[:6] + struct.pack("<HH", width, height) + data[10:]


def bmp(nbytes: int) -> bytes:
    """A BMP that claims that size."""
    data = encode(picture(5, HEIGHT, WIDTH), "BMP")
    return data[:2] + struct.pack("<I", nbytes) + data[6:]


def mpo(num_cut: int) -> bytes:
    """Two JPEGs in one file, the first of them without its last bytes."""
    sink = io.BytesIO()
    first, second = (Image.fromarray(picture(number, HEIGHT, WIDTH)) for number in (1, 2))
    first.save(sink, "MPO", save_all=True, append_images=[second])
    data = sink.getvalue()
    at = data.rfind(b"\xff\xd8")
    return data[: at - num_cut] + data[at:]


def png_with_wrong_gamma() -> bytes:
    """A PNG that libpng decodes, without the gamma of which the checksum is wrong."""
    data, end_of_header = FOR_DALI["png"], 33
    return data[:end_of_header] + png_block(b"gAMA", b"\0\0\xb1\x8f")[:-1] + b"!" + data[end_of_header:]


JPEG = jpeg(1, HEIGHT, WIDTH)
READ: dict[str, Callable[[], bytes]] = {
    "jpeg with a byte between segments": lambda: put(JPEG, b"\xff\xdb", before=b"\0"),
    "jpeg with bytes in front of its frame": lambda: put(JPEG, b"\xff\xc0", before=b"junkjnk"),
    "jpeg with FF00 in its header": lambda: put(JPEG, b"\xff\xdb", before=b"\xff\0\xff\0"),
    "jpeg without an end": lambda: jpeg(3, HEIGHT, WIDTH)[:-2],  # Pillow has all bits of the last block already
    "jpeg with a trailer in place of its end": lambda: JPEG[:-2] + b"SEFHe\0\0\0trailer" * 4,
    "jpeg with an end in its scan": lambda: in_scan(JPEG, b"\xff\xd9"),
    "jpeg with a restart where none belongs": lambda: in_scan(JPEG, b"\xff\xd3"),
    "jpeg whose scan is cut, and that has a trailer": lambda: JPEG[:-60] + b"\xff\xe1\0\x08\xff\xd9abcd",
    "mpo": lambda: mpo(0),
    "png without an end": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG")[:-12],
    "bmp of a larger size": lambda: bmp(1 << 30),
    "bmp of size 0": lambda: bmp(0),
    "gif beyond its screen": lambda: gif(HEIGHT // 2, WIDTH // 3),
    "gif of an empty screen": lambda: gif(0, 0),
    "gif on a larger screen": lambda: gif(2 * HEIGHT, 3 * WIDTH),
    "gif without an end": lambda: gif(HEIGHT, WIDTH)[:-1],
    "tiff of 64 bits": lambda: encode(picture(5, HEIGHT, WIDTH), "TIFF", big_tiff=True),
    **{form: lambda form=form: encode(picture(5, 32, 32), form) for form in ("AVIF", "JPEG2000", "TGA", "ICO", "PCX", "DDS")},
}  # fmt: skip
REFUSED: dict[str, Callable[[], bytes]] = {
    "jpeg with an unknown marker in its scan": lambda: in_scan(JPEG, b"\xff\x3a"),
    "jpeg with a second image in its scan": lambda: in_scan(JPEG, b"\xff\xd8"),
    "jpeg with a second scan": lambda: in_scan(JPEG, JPEG[JPEG.find(b"\xff\xda") :][:14]),
    "jpeg with tables in its scan": lambda: in_scan(JPEG, b"\xff\xc4\0\x20"),
    "jpeg with a marker that is none in its header": lambda: put(JPEG, b"\xff\xc4", before=b"\xff\x01"),
    "jpeg whose scan is cut": lambda: JPEG[:-60],
    "mpo whose first image lacks its end": lambda: mpo(100),
    "jpeg, progressive, without its last scans": lambda: jpeg(1, HEIGHT, WIDTH, progressive=True)[:-60],
    "png with a wrong checksum in front of its pixels": png_with_wrong_gamma,
    "eps": lambda: encode(picture(5, 8, 8), "EPS"),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_pillow_reads_is_read(case: str, decoder: Decoder) -> None:
    data = READ[case]()
    expected, header = pillow_rgb(data), checked_header(data)
    assert (header.height, header.width) == expected.shape[:2]
    assert np.array_equal(decoder(data, header), expected)
    assert np.array_equal(decoder(data, header, (3, 5, 9, 7)), expected[3:12, 5:12])


@pytest.mark.parametrize("case", REFUSED)
def test_what_pillow_refuses_is_bad(case: str, decoder: Decoder) -> None:
    data = REFUSED[case]()
    for region in (None, (0, 0, 4, 4)):
        with pytest.raises(DecodeError):
            decoder(data, probe(data), region)


def test_an_eps_is_not_run() -> None:
    with pytest.raises(DecodeError, match="EPS is a program"):
        probe(encode(picture(5, 8, 8), "EPS"))


class _Foreign(ImageFile.ImageFile):
    format = "FOREIGN"

    def _open(self) -> None:
        self._size, self._mode = (4, 4), "RGB"


def test_plugins_that_worker_processes_may_lack_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Image.OPEN, "FOREIGN", (_Foreign, lambda prefix: prefix.startswith(b"FOREIGN")))
    monkeypatch.setattr(Image, "ID", [*Image.ID, "FOREIGN"])
    with pytest.raises(DecodeError, match="FOREIGN is read by a plugin"):
        probe(b"FOREIGN and more")


def test_whatever_a_plugin_raises_makes_a_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setitem(Image.OPEN, "PNG", (fail, None))
    with pytest.raises(DecodeError, match="NotImplementedError"), pillow.opened(encode(picture(5, 8, 8), "PNG")):
        pass


@pytest.mark.parametrize("limit", [None, HEIGHT * WIDTH, HEIGHT * WIDTH // 2 - 1])
def test_the_users_limit_of_pixels_counts(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    if limit is None or 2 * limit >= HEIGHT * WIDTH:
        assert probe(JPEG).width == WIDTH
    else:
        with pytest.raises(DecodeError, match=f"exceeds the limit of {2 * limit}.* PIL.Image.MAX_IMAGE_PIXELS"):
            probe(JPEG)


def test_an_image_beyond_pillows_limit_is_read_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 1, 0, 0, 0, 0)
    assert probe(b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + header + b"\0\0\0\0").height == 100_000


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loaders_threads_obey_the_limit(num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they have processes, which do not know of it."""
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(jpeg(number, HEIGHT, WIDTH if number else 4))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH // 2 - 1)
    loader = dp.DataLoader(str(tmp_path), 3, num_workers=num_workers, on_error="skip", transform=[dp.transforms.Resize((8, 8))])
    assert [len(batch[0]) for batch in loader] == [1]


# -- the walk over markers ---------------------------------------------------------------------------


@pytest.mark.parametrize("at", [_PIECE_NBYTES - 2, _PIECE_NBYTES - 1, _PIECE_NBYTES, _PIECE_NBYTES + 1])
@pytest.mark.parametrize(
    ("marker", "is_good"), [(b"\xff\xd9", True), (b"\xff\xd3", True), (b"\xff\x3a", False), (b"\xff\0", True)]
)
def test_markers_are_found_wherever_they_are(at: int, marker: bytes, is_good: bool) -> None:
    """At the edges of the pieces in which a long scan is searched."""
    scan = probe(JPEG).scan
    assert scan is not None
    coded = bytearray(2 * _PIECE_NBYTES)
    coded[at : at + 2] = marker
    coded[_PIECE_NBYTES - 20] = 0xFF  # before a zero
    assert is_whole(JPEG[: scan.start] + bytes(coded) + b"\xff\xd9", scan) == is_good
    assert is_whole(JPEG[: scan.start] + bytes(coded), scan) == (marker == b"\xff\xd9")


def test_an_array_is_walked_like_bytes() -> None:
    """Images that a worker sends encoded lie in memory that is lent as arrays."""
    for data in (JPEG, jpeg(1, HEIGHT, WIDTH, progressive=True), jpeg(1, 400, 500, quality=98)):
        assert is_whole(np.frombuffer(data, np.uint8), probe(data).scan)  # type: ignore[arg-type]


# -- all decoders on damage -----------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*(name for name in FOR_DALI if name.startswith("jpeg")), "large"])
def test_all_decoders_agree_on_damage(name: str, decoder: Decoder) -> None:
    intact = jpeg(1, 240, 320, quality=97) if name == "large" else FOR_DALI[name]
    for number in range(300):
        rng, data = random.Random(number), bytearray(intact)
        for _ in range(rng.randint(1, 3)):
            random_change(rng).apply(data)
        check_like_pillow(bytes(data), decoder)


def check_like_pillow(data: bytes, decoder: Decoder) -> None:
    try:
        expected = pillow_rgb(data)
    except Exception:
        expected = None
    for region in (None, (0, 0, 8, 16)):
        try:
            pixels = decoder(data, probe(data), region)
        except DecodeError:
            pixels = None
        assert (pixels is None) == (expected is None)
        if expected is not None:
            assert np.array_equal(pixels, expected if region is None else expected[:8, :16])
