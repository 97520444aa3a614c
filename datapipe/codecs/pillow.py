"""Open images with Pillow, which decides about all files that are not plainly whole.

The reference for what an image is, and for its pixels, is `PIL.Image.open(...).convert("RGB")`, as in torchvision's loaders. So
whatever Pillow itself reads is read here, as far as `MAX_IMAGE_PIXELS` allows now; but truncated files are bad in any case.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from PIL import Image, ImageFile

from datapipe.errors import DecodeError

_DEFAULT_MAX_IMAGE_PIXELS = 89_478_485
_ENCODINGS = {"MPO": "jpeg", "PPM": "pnm"}  # by Pillow's name of the format, where ours is another


class RefusedError(DecodeError):
    """An image that Pillow opens, and that is not read here."""


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever Pillow raises meanwhile becomes a DecodeError, without a place.

    Raises DecodeError for what does not open, and for what only a program or a plugin besides Pillow would read.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            _refuse_others(image)
            yield image
    except DecodeError:
        raise
    except Image.DecompressionBombError as exc:
        raise RefusedError(f"{exc} If it is none, set PIL.Image.MAX_IMAGE_PIXELS before you load it") from exc
    except Exception as exc:  # plugins raise anything on damaged files
        raise DecodeError(str(exc) or type(exc).__name__) from exc


def encoding_of_image(image: Image.Image) -> str:
    """Return the name of an image's encoding: Pillow's in lower case, or that of `datapipe.codecs.probe`."""
    form = image.format or ""
    return _ENCODINGS.get(form, form.lower())


def accepts_cut_files() -> bool:
    """Return True while Pillow is set not to tell whole files from truncated ones."""
    return bool(ImageFile.LOAD_TRUNCATED_IMAGES)


def has_default_settings() -> bool:
    """Return True unless the user changed what Pillow reads: a worker process does not have such a setting."""
    return not accepts_cut_files() and Image.MAX_IMAGE_PIXELS == _DEFAULT_MAX_IMAGE_PIXELS


def _refuse_others(image: Image.Image) -> None:
    if image.format == "EPS":
        raise RefusedError("EPS is a program, which Pillow has Ghostscript run; convert it to PNG")
    if not type(image).__module__.startswith("PIL."):
        raise RefusedError(f"{image.format} is read by a plugin of Pillow's ({type(image).__module__}); convert it to PNG")
