"""Turn the bytes read for a sample into its stored fields: check, resize, encode.

A field's bytes are interpreted by its kind and their contents, never by a file's name. Masks and boxes are resized with their
image; labels of masks are never mixed, and their storage is lossless.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from converters.options import Check, ConvertOptions, Encode, ResizeRule
from converters.samples.images import decoder, transcode, without_metadata
from converters.tokenizer import Tokenizing
from converters.writers import StoredField
from datapipe.codecs.boxes import load_boxes, store_boxes
from datapipe.codecs.decode import checked_header
from datapipe.codecs.field_values import IMAGE_FIELD, FieldKind, FieldSpec
from datapipe.codecs.masks import mask_labels, nearest_sources, open_mask
from datapipe.codecs.npy import check_npy, read_npy_array
from datapipe.codecs.probe import STORED_SUFFIXES, ImageHeader, encoding_of
from datapipe.containers.field_names import is_video
from datapipe.errors import DecodeError, OptionError

_ENCODINGS = {
    FieldKind.TEXT: "text", FieldKind.JSON: "json", FieldKind.ARRAY: "npy", FieldKind.BYTES: "bytes", FieldKind.TOKENS: "tokens",
}  # fmt: skip
_MASK_MODES = ("1", "L", "P", "I;16", "LA", "RGB", "RGBA")  # supported by PNG and numpy


@dataclass(frozen=True, slots=True)
class VideoTreatment:
    """How videos are stored."""

    size: int | None = None  # pixels of the shorter side at most; None: as it is
    key_every: int | None = None  # frames from one key frame to the next; None: 16 where they are encoded again

    @property
    def encodes(self) -> bool:
        """True if videos are encoded again, rather than kept as they are."""
        return self.size is not None or self.key_every is not None


@dataclass(frozen=True, slots=True)
class AudioTreatment:
    """How sound is stored."""

    rate: int | None = None  # Hz; None: as it is
    channels: int | None = None  # None: as it has
    format: str | None = None  # "flac" or "wav"; None: bytes stay as they are, or become FLAC where they cannot
    silence: float | None = None  # dBFS: what is nowhere louder is left out; None: nothing is


@dataclass(frozen=True, slots=True)
class Treatment:
    """The checks and the storage format of a conversion's samples."""

    check: Check
    resize: ResizeRule | None
    encode: Encode
    strips_exif: bool = False
    tokenizing: Tokenizing | None = None  # of texts that become ids
    video: VideoTreatment | None = None  # of videos, if they are looked at
    audio: AudioTreatment | None = None  # of sound, if it is looked at

    @property
    def keeps_images(self) -> bool:
        """True if images stay as they are, but for those that only Pillow reads."""
        return self.resize is None and self.encode.form == "keep"


@dataclass(frozen=True, slots=True)
class Examined:
    """The stored form of a sample."""

    fields: dict[str, StoredField]
    size: tuple[int, int]  # (height, width) of the image as stored; (0, 0) without an image


def refuse_treatment(options: ConvertOptions, fields: tuple[FieldSpec, ...]) -> None:
    """Raise OptionError for resizing, encoding or tokenising that these kinds of fields do not allow."""
    if options.tokens is not None:
        _refuse_tokenising(options.tokens, str(options.source), fields)
        has_images = options.tokens.images is not None
        if not has_images and (options.transcodes or options.strip_exif):
            raise OptionError(f"--to tokens: the documents of {options.source} have no images to resize, encode or strip")
        if has_images and options.resize is not None and options.resize.mode == "exact":
            raise OptionError(f"--resize {options.resize}: images in conversations keep their aspect; pass longer:N or shorter:N")
        return
    if options.encodes_videos:
        _refuse_encoding_videos(options, fields)
    asks_for_images = options.resize is not None or options.encode.form != "keep" or options.strip_exif
    if not asks_for_images or any(field.kind is FieldKind.IMAGE for field in fields):
        return
    asked = f"--resize {options.resize}" if options.resize else f"--encode {options.encode}"
    asked = asked if options.resize or options.encode.form != "keep" else "--strip-exif"
    raise OptionError(f"{asked}: the samples of {options.source} have no images; leave it out")


def _refuse_encoding_videos(options: ConvertOptions, fields: tuple[FieldSpec, ...]) -> None:
    asked = f"--video-keyframes {options.video_keyframes}" if options.video_size is None else f"--video-size {options.video_size}"
    if not any(map(is_video, fields)):
        remedy = "pass --resize" if any(field.kind is FieldKind.IMAGE for field in fields) else "leave it out"
        raise OptionError(f"{asked}: the samples of {options.source} have no videos; {remedy}")
    other = next((field.name for field in fields if is_video(field) and not field.name.endswith(("mp4", "m4v", "mov"))), None)
    if other is not None:
        raise OptionError(f"{asked}: the field {other!r} would become an mp4 of another name; convert the files, --from videos")


def _refuse_tokenising(tokenizing: Tokenizing, source: str, fields: tuple[FieldSpec, ...]) -> None:
    kinds = {field.name: field.kind for field in fields if field.kind not in (FieldKind.LABEL, FieldKind.IMAGES)}
    wanted = FieldKind.TEXT if tokenizing.template is None and tokenizing.images is None else FieldKind.JSON
    other = next((name for name, kind in kinds.items() if kind is not wanted), None)
    if other is not None or not kinds:
        what = "has no texts" if other is None else f"{other!r} is no text; leave it out with --field {other}=none"
        if other is not None and {kinds[other], wanted} == {FieldKind.TEXT, FieldKind.JSON}:
            what = f"{other!r} is {'JSON' if wanted is FieldKind.TEXT else 'text'}, and a chat is JSON"
            what += "; pass --chat-template" if wanted is FieldKind.TEXT else f": say --field {other}=json"
        raise OptionError(f"--to tokens: {source}: {what}")
    if tokenizing.template is not None:
        from converters.samples.templates import refuse_template

        refuse_template(tokenizing)


def examine(
    contents: Mapping[str, bytes], fields: tuple[FieldSpec, ...], treatment: Treatment, *, size: tuple[int, int] | None = None
) -> Examined:
    """Return the stored fields of a sample. `contents`: bytes by field; `size`: required size of its image, if known.

    Masks must have the size of the image. With `treatment.resize`, masks and boxes follow the image; texts, arrays and other
    fields do not change. Raises DecodeError for a bad sample, naming the field unless it is the image.
    """
    image = main_image(fields)
    stored: dict[str, StoredField] = {}
    before = after = (0, 0)
    if image is not None:
        with _naming(image):
            header = checked_header(contents[image])
            before = (header.height, header.width)
            if size is not None and before != size:
                raise DecodeError(_of_other_size(before, size))
            data, header = stored_image(contents[image], header, treatment)
            after = (header.height, header.width)
        stored[image] = StoredField(header.encoding, data)
    for field in fields:
        if field.name != image and field.kind is not FieldKind.LABEL:
            with _naming(field.name):
                stored[field.name] = _examined(field.kind, contents[field.name], treatment, before, after)
    return Examined(stored, after)


def main_image(fields: tuple[FieldSpec, ...]) -> str | None:
    """Return the field whose size is the sample's: `image`, or the first that is an image."""
    images = [field.name for field in fields if field.kind is FieldKind.IMAGE]
    return IMAGE_FIELD.name if IMAGE_FIELD.name in images else next(iter(images), None)


def _examined(kind: FieldKind, data: bytes, treatment: Treatment, before: tuple[int, int], after: tuple[int, int]) -> StoredField:
    """Return the stored form of a field other than the main image, whose size was `before` and is `after`."""
    if kind is FieldKind.IMAGE:
        data, header = stored_image(data, checked_header(data), treatment)
        return StoredField(header.encoding, data)
    if kind is FieldKind.MASK:
        return _examined_mask(data, treatment, before, after)
    if kind is FieldKind.BOXES:
        boxes = load_boxes(data)
        if after != before:
            boxes = scale_boxes(boxes, height=after[0] / before[0], width=after[1] / before[1])
        return StoredField("npy", store_boxes(boxes))
    if kind is FieldKind.TEXT:
        _check_text(data)
    elif kind is FieldKind.JSON:
        _check_json(data)
    elif kind is FieldKind.ARRAY:
        check_npy(data)
    return StoredField(_ENCODINGS[kind], data)


def stored_image(data: bytes, header: ImageHeader, treatment: Treatment) -> tuple[bytes, ImageHeader]:
    """Return the bytes to store for an image, and their header. Raises DecodeError for a bad one."""
    stored, stored_header = data, header
    if not treatment.keeps_images or header.encoding not in STORED_SUFFIXES:
        stored, stored_header = transcode(data, header, resize=treatment.resize, encode=treatment.encode)
    if treatment.strips_exif and stored is data:
        stored = without_metadata(data, header.encoding)
    if treatment.check is Check.DECODE and header is stored_header:
        decoder("pillow")(stored, header)  # the strictest decoder: what passes here loads everywhere
    return stored, stored_header


def _examined_mask(data: bytes, treatment: Treatment, before: tuple[int, int], after: tuple[int, int]) -> StoredField:
    encoding, size = mask_size(data)
    if before != (0, 0) and size != before:
        raise DecodeError(f"the mask is {_by(size)}, the image {_by(before)}")
    wanted = after if before != (0, 0) else size
    if wanted != size or encoding not in STORED_SUFFIXES:
        return StoredField(*resize_mask(data, wanted))
    if treatment.check is Check.DECODE:
        mask_labels(data)
    return StoredField(encoding, data)


def scale_boxes(boxes: NDArray[np.float64], *, height: float, width: float) -> NDArray[np.float64]:
    """Return the boxes after the image's height and width are multiplied by these factors."""
    scaled: NDArray[np.float64] = boxes * np.array([width, height, width, height, 1.0])
    return scaled


def mask_size(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return (encoding, (height, width)) of a mask: any image, or a `.npy` of (height, width) whole numbers.

    Raises DecodeError for any other or truncated data.
    """
    if encoding_of(data) == "npy":
        array = check_npy(data)
        if len(array.shape) != 2 or array.dtype.kind not in "biu":
            raise DecodeError(f"an array of {array.dtype} {array.shape} is not a mask, expected (height, width) whole numbers")
        return "npy", (array.shape[0], array.shape[1])
    header = checked_header(data)
    return header.encoding, (header.height, header.width)


def resize_mask(data: bytes, size: tuple[int, int]) -> tuple[str, bytes]:
    """Return (encoding, bytes) of the mask at (height, width); `datapipe.codecs.masks` says which source pixel each is.

    An image becomes a PNG of the same mode, palette included; an array stays an array. Raises DecodeError.
    """
    sink = io.BytesIO()
    if encoding_of(data) == "npy":
        array = read_npy_array(data)
        rows, columns = (nearest_sources(have, want) for have, want in zip(array.shape, size, strict=True))
        np.lib.format.write_array(sink, np.ascontiguousarray(array[rows][:, columns]), version=(1, 0), allow_pickle=False)
        return "npy", sink.getvalue()
    image = open_mask(data)
    if image.mode not in _MASK_MODES:
        raise DecodeError(f"a mask of mode {image.mode} cannot be stored as PNG; convert it to one of {', '.join(_MASK_MODES)}")
    _resized(image, size).save(sink, "PNG")
    return "png", sink.getvalue()


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    rows, columns = nearest_sources(image.height, size[0]), nearest_sources(image.width, size[1])
    resized = Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))
    if image.mode == "P":
        resized.putpalette(image.getpalette() or [])
    if "transparency" in image.info:
        resized.info["transparency"] = image.info["transparency"]
    return resized


def _check_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise DecodeError(f"byte 0x{data[exc.start]:02x} at {exc.start} is not UTF-8; save the text as UTF-8") from exc


def _check_json(data: bytes) -> None:
    """Check JSON. UTF-8 is required: json.loads would accept UTF-16 and lone surrogates as well, which other readers do not."""
    text = _check_text(data).removeprefix("\ufeff")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(f"not JSON: {exc}") from exc


def _of_other_size(stored: tuple[int, int], annotated: tuple[int, int]) -> str:
    """Return a message about an image whose annotations were made at another size: (height, width), pixels."""
    what = f"the image is {stored[0]}x{stored[1]} pixels (height x width), its annotations are of {_by(annotated)}"
    if stored != annotated[::-1]:
        return what
    return f"{what}: swapped, as where boxes were drawn on images turned by EXIF; store the images turned, as EXIF is not applied"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]} (height x width)"


class _naming:  # noqa: N801  # used as a function
    """Adds the field's name to a DecodeError, unless it is the image."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if isinstance(exc, DecodeError) and self._field != IMAGE_FIELD.name:
            raise DecodeError(f"field {self._field!r}: {exc}") from exc
