"""Headers and pixels of whatever passes for an image: what Pillow gives, or DecodeError."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures import encode, jpeg, picture, pillow_rgb, quick
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from datapipe.codecs.decode import Decoder, _ReusedImage, default_decoder_name, open_decoder
from datapipe.codecs.probe import MAX_PIXELS, ImageHeader, encoding_of, probe
from datapipe.errors import DecodeError, DependencyError, OptionError

HEIGHT, WIDTH = 37, 53
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow's remarks on damaged files


def npy(pixels: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, pixels, version=(1, 0), allow_pickle=False)
    return sink.getvalue()


def with_exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(3, HEIGHT, WIDTH, exif=exif.tobytes())


def ycck() -> bytes:
    """A CMYK JPEG as Adobe writes it: an APP14 segment with transform 2, values inverted."""
    data = encode(picture(4, HEIGHT, WIDTH), mode="CMYK", quality=90)
    at = data.find(b"Adobe")
    assert at > 0
    return data[: at + 11] + b"\x02" + data[at + 12 :]


def animation(form: str) -> bytes:
    frames = [Image.fromarray(picture(n, HEIGHT, WIDTH)) for n in range(3)]
    sink = io.BytesIO()
    frames[0].save(sink, form, save_all=True, append_images=frames[1:], duration=40)
    return sink.getvalue()


def sixteen_bits() -> bytes:
    return encode((picture(5, HEIGHT, WIDTH)[:, :, 0].astype(np.uint16) << 6) + 9, "PNG")


def palette_with_transparency() -> bytes:
    image = Image.fromarray(picture(6, HEIGHT, WIDTH)).quantize(16)
    sink = io.BytesIO()
    image.save(sink, "PNG", transparency=bytes(range(0, 256, 16)))
    return sink.getvalue()


def rgba(form: str) -> bytes:
    pixels = picture(7, HEIGHT, WIDTH)
    alpha = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH, 1)
    return encode(np.concatenate([pixels, alpha], axis=2), form, **({"lossless": True} if form == "WEBP" else {}))


def fill_bytes() -> bytes:
    """0xFF before a marker, any number of times, is allowed (T.81, B.1.1.2)."""
    data = jpeg(8, HEIGHT, WIDTH)
    return data[:2] + b"\xff" * 5 + data[2:]


GOOD: dict[str, Callable[[], bytes]] = {
    "jpeg 4:2:0": lambda: jpeg(0, HEIGHT, WIDTH, subsampling=2),
    "jpeg 4:4:4": lambda: jpeg(0, HEIGHT, WIDTH, subsampling=0),
    "jpeg 4:2:2": lambda: jpeg(0, HEIGHT, WIDTH, subsampling=1),
    "jpeg progressive": lambda: jpeg(1, HEIGHT, WIDTH, progressive=True),
    "jpeg optimised, restart markers": lambda: jpeg(1, HEIGHT, WIDTH, optimize=True, restart_marker_rows=1),
    "jpeg grey": lambda: encode(picture(2, HEIGHT, WIDTH), mode="L"),
    "jpeg rgb": lambda: jpeg(2, HEIGHT, WIDTH, keep_rgb=True),
    "jpeg cmyk": lambda: encode(picture(4, HEIGHT, WIDTH), mode="CMYK"),
    "jpeg ycck": ycck,
    "jpeg one pixel": lambda: jpeg(2, 1, 1),
    "jpeg one row": lambda: jpeg(2, 1, 99),
    "jpeg with EXIF orientation 6": lambda: with_exif(6),
    "jpeg with EXIF orientation 3": lambda: with_exif(3),
    "jpeg with fill bytes": fill_bytes,
    "jpeg with garbage behind": lambda: jpeg(9, HEIGHT, WIDTH) + b"garbage" * 40,
    "jpeg with much garbage behind": lambda: jpeg(9, HEIGHT, WIDTH) + bytes(200_000),
    "jpeg with an icc profile": lambda: jpeg(9, HEIGHT, WIDTH, icc_profile=bytes(70_000)),
    "jpeg with a comment that looks like an end": lambda: jpeg(9, HEIGHT, WIDTH, comment=b"\xff\xd9\xff\xd9"),
    "png": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG"),
    "png grey": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG", mode="L"),
    "png one bit": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG", mode="1"),
    "png with grey and alpha": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG", mode="LA"),
    "png 16 bit": sixteen_bits,
    "png with palette and transparency": palette_with_transparency,
    "png with alpha": lambda: rgba("PNG"),
    "png with garbage behind": lambda: encode(picture(5, HEIGHT, WIDTH), "PNG") + bytes(100_000),
    "webp": lambda: encode(picture(5, HEIGHT, WIDTH), "WEBP", quality=80),
    "webp lossless": lambda: encode(picture(5, HEIGHT, WIDTH), "WEBP", lossless=True),
    "webp with alpha": lambda: rgba("WEBP"),
    "webp animated": lambda: animation("WEBP"),
    "gif": lambda: encode(picture(5, HEIGHT, WIDTH), "GIF"),
    "gif animated": lambda: animation("GIF"),
    "tiff": lambda: encode(picture(5, HEIGHT, WIDTH), "TIFF"),
    "tiff deflate": lambda: encode(picture(5, HEIGHT, WIDTH), "TIFF", compression="tiff_deflate"),
    "tiff cmyk": lambda: encode(picture(5, HEIGHT, WIDTH), "TIFF", mode="CMYK"),
    "bmp": lambda: encode(picture(5, HEIGHT, WIDTH), "BMP"),
    "bmp palette": lambda: encode(picture(5, HEIGHT, WIDTH), "BMP", mode="P"),
    "ppm": lambda: encode(picture(5, HEIGHT, WIDTH), "PPM"),
    "pgm": lambda: encode(picture(5, HEIGHT, WIDTH), "PPM", mode="L"),
    "pbm": lambda: encode(picture(5, HEIGHT, WIDTH), "PPM", mode="1"),
    "ppm with comments": lambda: b"P6 # made by hand\n#again\n 2\t3 #size\n255\n" + bytes(range(18)),
}  # fmt: skip
ONE_PER_ENCODING = (
    "jpeg 4:2:0", "jpeg progressive", "jpeg cmyk", "png", "png with palette and transparency", "webp", "webp lossless",
    "gif animated", "webp animated", "tiff", "tiff deflate", "bmp", "ppm",
)  # fmt: skip


# -- good images --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOOD)
def test_header_is_what_pillow_says(case: str) -> None:
    data = GOOD[case]()
    header = probe(data)
    with Image.open(io.BytesIO(data)) as image:
        assert (header.width, header.height) == image.size
        assert header.animated == (getattr(image, "n_frames", 1) > 1)
    assert header.encoding == case.split()[0].replace("ppm", "pnm").replace("pgm", "pnm").replace("pbm", "pnm")
    assert header.encoding == encoding_of(data)
    assert header.complete


@pytest.mark.parametrize(("case", "num_channels", "bit_depth"), [
    ("jpeg 4:2:0", 3, 8), ("jpeg grey", 1, 8), ("jpeg cmyk", 4, 8), ("png", 3, 8), ("png 16 bit", 1, 16),
    ("png with alpha", 4, 8), ("png one bit", 1, 1), ("webp with alpha", 4, 8),
])  # fmt: skip
def test_header_tells_channels_and_depth(case: str, num_channels: int, bit_depth: int) -> None:
    header = probe(GOOD[case]())
    assert (header.num_channels, header.bit_depth) == (num_channels, bit_depth)


@pytest.mark.parametrize("case", GOOD)
def test_pixels_are_pillows(case: str, decoder: Decoder) -> None:
    data = GOOD[case]()
    header, expected = probe(data), pillow_rgb(data)
    pixels = decoder(data, header)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, expected)
    height, width = expected.shape[:2]
    top, left = height // 3, width // 4
    for region in (
        (0, 0, height, width),
        (top, left, height - top, width - left),
        (height - 1, width - 1, 1, 1),
    ):
        there = expected[region[0] : region[0] + region[2], region[1] : region[1] + region[3]]
        assert np.array_equal(decoder(data, header, region), there), region


@quick
@given(data=st.data(), case=st.sampled_from(["jpeg 4:2:0", "jpeg 4:2:2", "jpeg 4:4:4", "jpeg grey", "jpeg progressive"]))
def test_any_region_is_that_part_of_the_whole(data: st.DataObject, case: str) -> None:
    encoded = GOOD[case]()
    header, whole = probe(encoded), pillow_rgb(encoded)
    top, left = data.draw(st.integers(0, HEIGHT - 1)), data.draw(st.integers(0, WIDTH - 1))
    region = (top, left, data.draw(st.integers(1, HEIGHT - top)), data.draw(st.integers(1, WIDTH - left)))
    part = whole[top : top + region[2], left : left + region[3]]
    for decoder in (open_decoder("auto"), open_decoder("simplejpeg")):
        assert np.array_equal(decoder(encoded, header, region), part)


def test_a_png_named_jpeg_is_a_png() -> None:
    """Content decides; names are not even passed."""
    data = GOOD["png"]()
    assert probe(data).encoding == "png"
    assert probe(data).encoding == "png"


def test_raw_pixels_come_back() -> None:
    pixels = picture(1, HEIGHT, WIDTH)
    data = npy(pixels)
    header = probe(data)
    assert (header.encoding, header.height, header.width, header.complete) == ("npy", HEIGHT, WIDTH, True)
    assert np.array_equal(open_decoder("auto")(data, header), pixels)
    assert np.array_equal(open_decoder("auto")(data, header, (2, 3, 4, 5)), pixels[2:6, 3:8])
    assert not probe(data[:-1]).complete


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (HEIGHT, WIDTH, 1)])
def test_grey_pixels_come_back_in_three_channels(shape: tuple[int, ...]) -> None:
    pixels = picture(1, HEIGHT, WIDTH)[:, :, 0]
    data = npy(pixels.reshape(shape))
    header = probe(data)
    assert (header.height, header.width, header.num_channels, header.complete) == (HEIGHT, WIDTH, 1, True)
    expected = np.stack([pixels] * 3, axis=2)
    assert np.array_equal(open_decoder("auto")(data, header), expected)
    assert np.array_equal(open_decoder("auto")(data, header, (2, 3, 4, 5)), expected[2:6, 3:8])
    assert not probe(data[:-1]).complete


@pytest.mark.parametrize("pixels", [
    np.zeros(16, np.uint8), np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((1, 4, 4, 3), np.uint8),
    np.zeros((4, 4, 3), np.int8), np.zeros((4, 4, 3), np.float32),
    np.asfortranarray(np.zeros((4, 5, 3), np.uint8)), np.zeros((0, 4, 3), np.uint8),
])  # fmt: skip
def test_other_arrays_are_no_images(pixels: np.ndarray) -> None:
    with pytest.raises(DecodeError):
        probe(npy(pixels))


def test_pickled_arrays_are_not_opened() -> None:
    sink = io.BytesIO()
    np.save(sink, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DecodeError, match="npy header"):
        probe(sink.getvalue())


# -- bad ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [
    b"", b"\0" * 900, b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xd9", b"GIF89a", b"BM", b"RIFF1234WEBP", b"P6",
    b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*\0\0\0\x08", b"\x93NUMPY", b"\x93NUMPY\x01\0", b"<html>404</html>",
    b"\xff\xd8\xff\xda\0\x02",
    b"\x93NUMPY\x01\x00\xff\xff{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 6000 + b", 1, 3), }",
])  # fmt: skip
def test_what_is_no_image_is_bad(data: bytes) -> None:
    with pytest.raises(DecodeError):
        probe(data)


@pytest.mark.parametrize(("data", "said"), [(b"", "empty file"), (b"\0" * 70, "70 zero bytes"), (b"hello world", "hello wo")])
def test_the_reason_says_what_was_found(data: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        probe(data)


def bomb_png(height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IEND\xaeB`\x82"
    )


def bomb_jpeg(height: int, width: int) -> bytes:
    data = bytearray(jpeg(0, 16, 16))
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("data", [
    bomb_png(1, MAX_PIXELS + 1), bomb_png(100_000, 100_000), bomb_png(2**31 - 1, 2**31 - 1), bomb_jpeg(65_000, 65_000),
    b"P6 99999 99999 255\n",
    b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + bytes(3) + b"," + bytes(16) + b";",
    b"BM" + struct.pack("<IIIIiiHH", 100, 0, 54, 40, 2**31 - 1, -(2**31), 1, 24) + bytes(60),
    b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999, 99999, 3), }",
], ids=["png, one pixel more", "png", "png, largest", "jpeg", "ppm", "gif", "bmp", "npy"])  # fmt: skip
def test_bombs_are_refused_by_their_headers(data: bytes) -> None:
    with pytest.raises(DecodeError, match="pixels exceeds the limit"):
        probe(data)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_sizes_of_nothing_are_refused(size: tuple[int, int]) -> None:
    for data in (bomb_png(*size), bomb_jpeg(*size), b"P6 %d %d 255\n" % size):
        with pytest.raises(DecodeError, match=r"size \d+x\d+"):
            probe(data)


def test_the_limit_is_pillows() -> None:
    assert 2 * (Image.MAX_IMAGE_PIXELS or 0) == MAX_PIXELS


@pytest.mark.parametrize("encoding", ["jpeg 4:2:0", "jpeg progressive", "png", "webp", "webp lossless", "bmp"])
def test_a_cut_file_has_no_end(encoding: str) -> None:
    """At any place: the header does not parse, or says that the end is missing."""
    data = GOOD[encoding]()
    behind_pixels = {"png": 4, "webp": 1}.get(encoding.split()[0], 0)  # the end marker's checksum; a byte of padding
    for stop in sorted({*range(0, 700, 7), *range(700, len(data), 97), len(data) - 1 - behind_pixels}):
        if stop >= len(data) - behind_pixels:
            continue
        try:
            header = probe(data[:stop])
        except DecodeError:
            continue
        assert not header.complete, stop


@pytest.mark.parametrize("case", ONE_PER_ENCODING)
def test_a_cut_file_decodes_as_pillow_does_or_is_bad(case: str, decoder: Decoder) -> None:
    data = GOOD[case]()
    for stop in np.linspace(1, len(data) - 1, 12).astype(int).tolist():
        check_like_pillow(data[:stop], decoder)


def check_like_pillow(data: bytes, decoder: Decoder) -> None:
    """The pixels that Pillow gives, or DecodeError where it gives none; nothing else, and not for long."""
    started = time.monotonic()
    try:
        pixels = decoder(data, probe(data))
    except DecodeError:
        pixels = None
    assert time.monotonic() - started < 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = pillow_rgb(data)
        except Exception:
            expected = None
    assert (pixels is None) == (expected is None)
    assert expected is None or np.array_equal(pixels, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("case", ONE_PER_ENCODING)
@quick
@given(data=st.data())
def test_damaged_files_raise_nothing_but_decode_errors(case: str, data: st.DataObject) -> None:
    """Bytes changed, cut out or put in, mostly in the header."""
    encoded = bytearray(GOOD[case]())
    for _ in range(data.draw(st.integers(1, 4))):
        near = data.draw(st.sampled_from([40, 200, len(encoded)]))
        at = data.draw(st.integers(0, max(0, min(near, len(encoded)) - 1)))
        change = data.draw(st.sampled_from(["set", "cut", "put"]))
        if change == "set":
            encoded[at : at + 1] = bytes([data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255))])
        elif change == "cut":
            del encoded[at : at + data.draw(st.integers(1, 60))]
        else:
            encoded[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_like_pillow(bytes(encoded), _shared_decoder())


@quick
@given(
    st.binary(max_size=400),
    st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"GIF89a", b"II*\0", b"BM", b"P6 ", b""]),
)
def test_headers_of_noise_raise_nothing_but_decode_errors(noise: bytes, magic: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert probe(magic + noise).width > 0


@pytest.mark.parametrize("data", [
    b"P6" + b" " * 1000, b"P6" + b"#\n" * 500, b"P6 1" + b"#" * 1000, b"\xff\xd8" + b"\xff" * 300_000,
    b"\xff\xd8\xff" + b"\xfe\0\x02\xff" * 70_000,
])  # fmt: skip
def test_hostile_headers_take_no_time(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(DecodeError):
        probe(data)
    assert time.monotonic() - started < 1


_DECODERS: list[Decoder] = []


def _shared_decoder() -> Decoder:
    if not _DECODERS:
        _DECODERS.append(open_decoder())
    return _DECODERS[0]


# -- choosing a decoder --------------------------------------------------------------------------


def test_unknown_decoders_are_refused_naming_the_known() -> None:
    with pytest.raises(OptionError, match="auto, nvimgcodec, simplejpeg, pillow"):
        open_decoder("turbo")


def test_auto_is_the_fastest_installed() -> None:
    assert open_decoder("auto").name == default_decoder_name()
    assert default_decoder_name() in ("nvimgcodec", "simplejpeg")


def test_pixels_asked_for_last_are_not_disturbed_by_the_header() -> None:
    """A damaged image in between leaves the decoder usable."""
    decoder, good = _shared_decoder(), jpeg(0, HEIGHT, WIDTH)
    header = probe(good)
    for damage in (b"", good[:200], good[: len(good) // 2]):
        with pytest.raises(DecodeError):
            decoder(damage, header)
        assert np.array_equal(decoder(good, header), pillow_rgb(good))


@pytest.mark.nightly
def test_no_decode_leaves_memory_behind() -> None:
    """nvImageCodec leaks 32 bytes whenever it says where the memory of an image lies."""
    decoder, data = _shared_decoder(), jpeg(0, 16, 16)
    header, num_decodes = probe(data), 100_000
    before = _resident_nbytes(decoder, data, header, 5_000)
    assert _resident_nbytes(decoder, data, header, num_decodes) - before < 4 * num_decodes


def _resident_nbytes(decoder: Decoder, data: bytes, header: ImageHeader, num_decodes: int) -> int:
    """What the process has in memory after so many more decodes."""
    for _ in range(num_decodes):
        decoder(data, header, (1, 1, 9, 9))
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pixels_are_right_whatever_was_decoded_before() -> None:
    """The memory of an image serves the next one, and moves when that one needs more."""
    decoder, encoded = open_decoder("auto"), jpeg(0, 400, 300)
    header, whole = probe(encoded), pillow_rgb(encoded)
    for height, width in ((3, 5), (400, 300), (1, 1), (250, 40), (20, 300), (399, 300), (7, 7)):
        part = decoder(encoded, header, (400 - height, 300 - width, height, width))
        assert np.array_equal(part, whole[400 - height :, 300 - width :])
    small = decode_and_forget(encoded)
    assert np.array_equal(small, whole)  # its memory outlives its decoder


def decode_and_forget(data: bytes) -> np.ndarray:
    return open_decoder("auto")(data, probe(data))


def test_memory_with_padded_rows_is_refused() -> None:
    image = SimpleNamespace(capacity=64, shape=(2, 9, 3), __array_interface__={"strides": (32, 3, 1), "data": (0, False)})
    with pytest.raises(DependencyError, match=r"pads the rows .*\(32, 3, 1\)"):
        _ReusedImage().pixels_of(image)


def test_an_nvimgcodec_that_cannot_decode_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI 2.0 brings one."""
    nvimgcodec = pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed")
    monkeypatch.delattr(nvimgcodec, "NVIMGCODEC_DEVICE_CPU_ONLY")
    with pytest.raises(DependencyError, match="too old; pip install"):
        open_decoder("nvimgcodec")
    assert default_decoder_name.__wrapped__() == "simplejpeg"


def test_threads_may_open_their_decoders_all_at_once() -> None:
    """As a loader's threads do. In a process of its own, where nothing is imported yet."""
    code = """
import sys, threading
sys.setswitchinterval(1e-6)
from datapipe.codecs import decode
wrong = []
for turn in range(60):
    decode.import_nvimgcodec.cache_clear()
    barrier = threading.Barrier(8)
    def run():
        try:
            barrier.wait()
            decode.open_decoder()
        except BaseException as exc:
            wrong.append(repr(exc))
    threads = [threading.Thread(target=run) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert not wrong, wrong
import os
assert "PYNVIMGCODEC_VERBOSITY" not in os.environ
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
