"""Draw a contact sheet of a dataset: thumbnails of samples spread over it, with their labels, masks and boxes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from datapipe.codecs.decode import open_decoder
from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.masks import mask_labels, nearest_sources
from datapipe.codecs.npy import read_npy_array
from datapipe.codecs.probe import probe
from datapipe.core import atomic
from datapipe.core.printable import printable
from datapipe.core.ranges import spread
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import open_files
from datapipe.index.sample_index import SampleIndex

_CELL, _CAPTION, _GAP = 160, 16, 8  # pixels
# Okabe and Ito's palette, which colour-blind readers can tell apart; of masks, label 0 is the background and not drawn.
_COLOURS = np.array(
    [(0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (86, 180, 233), (204, 121, 167), (240, 228, 66)], np.uint8
)
_BACKGROUND, _OPACITY = 0, 0.55
_PAPER, _INK, _BAD = (250, 250, 248), (40, 40, 40), (190, 40, 30)


def draw_sheet(index: SampleIndex, path: Path, *, num_images: int) -> None:
    """Write a PNG of `num_images` samples, evenly spread over the dataset, their masks and boxes drawn in the labels' colours.

    Raises StorageError if it cannot be written.
    """
    ids = spread_ids(index, num_images)
    entries = index.look_up(ids, "image")
    columns = max(1, round(math.sqrt(len(ids) * 1.5)))
    rows = -(-len(ids) // columns)
    step_x, step_y = _CELL + _GAP, _CELL + _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    files, decode, classes = open_files(index), open_decoder(), index.manifest.classes
    drawn = [field for field in index.manifest.fields if field.kind in (FieldKind.MASK, FieldKind.BOXES)]
    others = [(field.kind, index.look_up(ids, field.name)) for field in drawn]
    for place, sample in enumerate(ids.tolist()):
        x, y = _GAP + place % columns * step_x, _GAP + place // columns * step_y
        labels = [int(entries.labels[place])]
        try:
            data = files.read(entries.extents, place)
            image = Image.fromarray(decode(data, probe(data)))
            values = [(kind, _value(kind, files.read(found.extents, place))) for kind, found in others]
            labels += [int(label) for kind, value in values if kind is FieldKind.BOXES for label in np.unique(value[:, 4])]
            thumbnail = _thumbnail(image, values)
            sheet.paste(thumbnail, (x + (_CELL - thumbnail.width) // 2, y + (_CELL - thumbnail.height) // 2))
        except (DecodeError, IntegrityError):
            draw.rectangle((x, y, x + _CELL - 1, y + _CELL - 1), outline=_BAD)
            draw.text((x + 6, y + 6), "bad", fill=_BAD, font=font)
        names = [classes[label] if classes and label < len(classes) else str(label) for label in labels if label >= 0]
        caption = _shorten(printable(f"{sample}  {', '.join(names)}"), draw, font)
        draw.text((x, y + _CELL + 1), caption, fill=_INK, font=font)
    atomic.save(path, lambda file: sheet.save(file, "PNG"))


def spread_ids(index: SampleIndex, most: int) -> NDArray[np.int64]:
    """Return the ids of up to so many samples, evenly spread over the dataset."""
    return index.ids(np.array(spread(len(index), most), np.int64))


def _value(kind: FieldKind, data: bytes) -> NDArray[Any]:
    """Return the labels (h, w) of a mask, or the (k, 5) rows of boxes. Raises DecodeError."""
    if kind is FieldKind.MASK:
        return mask_labels(data)
    boxes = read_npy_array(data)
    if boxes.ndim != 2 or boxes.shape[1] != 5 or boxes.dtype.kind != "f" or not np.isfinite(boxes).all():
        raise DecodeError(f"boxes are an array of shape {boxes.shape} and dtype {boxes.dtype}; expected finite (k, 5) floats")
    return boxes


def _thumbnail(image: Image.Image, values: list[tuple[FieldKind, NDArray[Any]]]) -> Image.Image:
    """Return the image fitted into a cell, masks laid over it and boxes around. Raises DecodeError for a mask of another size."""
    scale = _CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    thumbnail = image.resize(size, Image.Resampling.BILINEAR if scale < 1 else Image.Resampling.NEAREST)
    for kind, value in values:
        if kind is FieldKind.MASK:
            if value.shape[:2] != (image.height, image.width):
                raise DecodeError(f"a mask of shape {value.shape} for an image of {image.height} x {image.width}")
            rows, columns = (nearest_sources(*pair) for pair in zip(value.shape[:2], size[::-1], strict=True))
            labels = value.reshape(*value.shape[:2], -1)[rows[:, None], columns, 0].astype(np.int64)
            pixels = np.asarray(thumbnail, np.float32)
            blend = np.where((labels != _BACKGROUND)[:, :, None], _COLOURS[labels % len(_COLOURS)], pixels)
            thumbnail = Image.fromarray((pixels * (1 - _OPACITY) + blend * _OPACITY).round().astype(np.uint8))
    canvas = ImageDraw.Draw(thumbnail)
    for kind, value in values:
        for left, top, right, bottom, label in value.tolist() if kind is FieldKind.BOXES else ():
            corners = [round(corner * scale) for corner in (left, top, max(right, left + 1) - 1, max(bottom, top + 1) - 1)]
            canvas.rectangle(corners, outline=tuple(_COLOURS[int(label) % len(_COLOURS)].tolist()), width=2)
    return thumbnail


def _shorten(text: str, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    while len(text) > 4 and draw.textlength(text, font=font) > _CELL:
        text = text[:-2] + "…"
    return text
