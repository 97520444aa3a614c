"""Decode an image, or a region of it, to HWC uint8 RGB pixels on the CPU.

There are three decoders: nvImageCodec if it is installed (decodes only the region of a
JPEG), `simplejpeg` otherwise, Pillow for images that neither decodes. All three give what
`PIL.Image.open(...).convert("RGB")` gives, and refuse what it refuses; EXIF orientation is not applied, as in torchvision's
loaders.
Does not depend on torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from datapipe.codecs.jpeg import is_whole
from datapipe.codecs.pillow import accepts_cut_files, opened
from datapipe.codecs.probe import ImageHeader, npy_pixels_offset, probe
from datapipe.core.environment import install_command
from datapipe.errors import DecodeError, DependencyError, OptionError

Decode = Literal["exact", "scaled"]  # in full, or, where that saves time, at a scale at which libjpeg makes JPEGs smaller
Region = Sequence[int]  # top, left, height, width of a box of an image, in pixels


class Decoder(Protocol):
    """A decoder for one thread; do not share it between threads."""

    @property
    def name(self) -> str: ...

    def __call__(self, data: bytes, header: ImageHeader, region: Region | None = None, /) -> NDArray[np.uint8]:
        """Return (h, w, 3) uint8 RGB of the whole image or of the region.

        The array may be a view of memory that the decoder reuses at its next call.
        Raises DecodeError, with the reason, if there are no pixels.
        """


def checked_header(data: bytes) -> ImageHeader:
    """Return the header of an image, which is decoded if only that tells whether it is whole. Raises DecodeError if it is bad."""
    header = probe(data)
    if not header.complete:
        PillowDecoder()(data, header)
    return header


def open_decoder(name: str = "auto") -> Decoder:
    """Return a decoder for the calling thread.

    `name`: "auto" (the fastest installed), or one of DECODER_NAMES. Raises DependencyError if that one
    is not installed or too old, OptionError for an unknown name.
    """
    if name == "auto":
        name = default_decoder_name()
    if name not in _DECODERS:
        raise OptionError(f"decoder {name!r} is unknown; choose one of: auto, {', '.join(DECODER_NAMES)}")
    return _DECODERS[name]()


@functools.cache
def default_decoder_name() -> str:
    """Return the name of the fastest decoder that is installed and works."""
    try:
        NvImageCodecDecoder()
    except DependencyError:
        return "simplejpeg"
    return "nvimgcodec"


class PillowDecoder:
    """Decodes everything that Pillow reads, and decides what is bad when a faster decoder fails."""

    name = "pillow"

    def __call__(self, data: bytes, header: ImageHeader, region: Region | None = None, /) -> NDArray[np.uint8]:
        if header.encoding == "npy":
            return _as_rgb(_crop(_view_npy(data, header), region))
        if not header.complete and accepts_cut_files():
            raise DecodeError(f"{header.encoding} may be truncated, which Pillow does not tell: its LOAD_TRUNCATED_IMAGES is set")
        try:
            with opened(data) as image:
                pixels = np.asarray(image.convert("RGB"))
        except DecodeError as exc:
            is_cut = header.scan is not None and not header.complete
            reason = f"of {len(data)} bytes is truncated: its end marker is missing" if is_cut else f"does not decode: {exc}"
            raise DecodeError(f"{header.encoding} {reason}") from exc
        if pixels.shape[:2] != (header.height, header.width):
            raise DecodeError(f"{header.encoding} decodes to {pixels.shape[:2]}, its header says {(header.height, header.width)}")
        return _crop(pixels, region)


class SimpleJpegDecoder:
    """libjpeg-turbo without the interpreter lock; decodes whole images."""

    name = "simplejpeg"

    def __init__(self) -> None:
        self._pillow = PillowDecoder()

    def __call__(self, data: bytes, header: ImageHeader, region: Region | None = None, /) -> NDArray[np.uint8]:
        if not _is_common_jpeg(header):
            return self._pillow(data, header, region)
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
        except ValueError:
            return self._pillow(data, header, region)
        return _crop(pixels, region)

    def reduced(self, data: bytes, header: ImageHeader, least: tuple[int, int]) -> NDArray[np.uint8]:
        """Return a whole image at the smallest scale that libjpeg decodes to, down to an eighth, of at least (height, width).

        Other files than common JPEGs are decoded in full. Raises DecodeError.
        """
        if _is_common_jpeg(header):
            height, width = least
            with contextlib.suppress(ValueError):
                pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                    data, colorspace="RGB", strict=True, min_height=height, min_width=width, min_factor=1
                )
                return pixels
        return self(data, header)


class NvImageCodecDecoder:
    """nvImageCodec on the CPU: decodes only the region. The next call overwrites the arrays that it returned."""

    name = "nvimgcodec"

    def __init__(self) -> None:
        nvimgcodec = import_nvimgcodec()
        if not hasattr(nvimgcodec, "NVIMGCODEC_DEVICE_CPU_ONLY"):  # 0.7 and 0.8, which some releases of DALI bring
            raise DependencyError(f"nvImageCodec {nvimgcodec.__version__} is too old; {install_command('nvimgcodec')}")
        self._pillow = PillowDecoder()
        self._codec = nvimgcodec
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False)
        self._decoder = nvimgcodec.Decoder(
            device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)],
        )
        self._reused = _ReusedImage()

    def __call__(self, data: bytes, header: ImageHeader, region: Region | None = None, /) -> NDArray[np.uint8]:
        if not _is_common_jpeg(header) or header.scan is None or not is_whole(data, header.scan):
            return self._pillow(data, header, region)
        try:
            stream = self._codec.CodeStream(data)
            if region is not None and (region[2] != header.height or region[3] != header.width):
                top, left, height, width = region
                stream = stream.get_sub_code_stream(0, self._codec.Region(top, left, top + height, left + width))
            image = self._decoder.decode(stream, image=self._reused.image, params=self._params)
        except RuntimeError:
            image = None
        if image is None:
            return self._pillow(data, header, region)
        return self._reused.pixels_of(image)


class _ReusedImage:
    """An image of nvImageCodec's whose memory is reused by one decode after another.

    nvImageCodec leaks 32 bytes whenever it reports where the memory of an image lies. So it is asked only when the image
    has other memory than before, which happens only when it grows.
    """

    def __init__(self) -> None:
        self.image: Any = None  # passed to the next decode
        self._capacity = -1
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def pixels_of(self, image: Any) -> NDArray[np.uint8]:
        """Return a (h, w, 3) view of what was decoded into `image`, valid until the next decode."""
        if image is not self.image or image.capacity != self._capacity:
            self._memory = np.asarray(_Memory(image))
            self.image, self._capacity = image, image.capacity
        return np.ndarray(image.shape, np.uint8, self._memory)


class _Memory:
    """All of an image's memory, for numpy; keeps the image alive."""

    def __init__(self, image: Any) -> None:
        self._image = image
        there = image.__array_interface__
        if there["strides"] is not None:
            raise DependencyError(
                f"nvImageCodec pads the rows of its images (strides {there['strides']}), which datapipe does not read; "
                "install another version of it, or uninstall it"
            )
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (image.capacity,), "data": there["data"]}


_import_lock = threading.Lock()


@functools.cache
def import_nvimgcodec() -> Any:
    """Import nvImageCodec, set not to print a line for every image that does not decode: Pillow gives the reason.

    Raises DependencyError if it is not installed.
    """
    with _import_lock:  # decode threads start together, and all share the environment
        unset = "PYNVIMGCODEC_VERBOSITY" not in os.environ
        if unset:
            os.environ["PYNVIMGCODEC_VERBOSITY"] = "0"
        try:
            from nvidia import nvimgcodec
        except ImportError as exc:
            raise DependencyError(f"nvImageCodec is not installed ({exc}); {install_command('nvimgcodec')}") from exc
        finally:
            if unset:
                del os.environ["PYNVIMGCODEC_VERBOSITY"]
    return nvimgcodec


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "nvimgcodec": NvImageCodecDecoder,
    "simplejpeg": SimpleJpegDecoder,
    "pillow": PillowDecoder,
}
DECODER_NAMES = tuple(_DECODERS)


def _is_common_jpeg(header: ImageHeader) -> bool:
    """Return True for a JPEG that all three decoders turn into the same RGB; CMYK, 12-bit and rare ones are left to Pillow."""
    return header.encoding == "jpeg" and header.complete and header.num_channels in (1, 3) and header.bit_depth == 8


def _view_npy(data: bytes, header: ImageHeader) -> NDArray[np.uint8]:
    nbytes, start = header.height * header.width * header.num_channels, npy_pixels_offset(data)
    if len(data) - start < nbytes:
        raise DecodeError(f"npy image is cut off: {len(data) - start} bytes of pixels, its header says {nbytes}")
    return np.frombuffer(data, np.uint8, nbytes, start).reshape(header.height, header.width, header.num_channels)


def _as_rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)


def _crop(pixels: NDArray[np.uint8], region: Region | None) -> NDArray[np.uint8]:
    if region is None:
        return pixels
    top, left, height, width = region
    return pixels[top : top + height, left : left + width]
