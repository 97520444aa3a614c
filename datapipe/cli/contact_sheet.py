"""Draw a contact sheet of a dataset: thumbnails of samples spread over it, with their labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from datapipe.backends.images_cpu import checked_header
from datapipe.codecs.decode import open_decoder
from datapipe.core.atomic import atomic_writer
from datapipe.core.errors import DecodeError, IntegrityError, StorageError
from datapipe.core.printable import printable
from datapipe.fetch.files import open_files
from datapipe.index.sample_index import SampleIndex

_CELL, _CAPTION, _GAP = 160, 16, 8  # pixels
_PAPER, _INK, _BAD = (250, 250, 248), (40, 40, 40), (190, 40, 30)


def draw_sheet(index: SampleIndex, path: Path, *, num_images: int) -> None:
    """Write a PNG of `num_images` samples, evenly spread over the dataset. Raises StorageError if it cannot be written."""
    positions = np.unique(np.linspace(0, len(index) - 1, min(len(index), num_images)).astype(np.int64))
    ids = index.ids(positions)
    entries = index.look_up(ids, "image")
    columns = max(1, round(math.sqrt(len(ids) * 1.5)))
    rows = -(-len(ids) // columns)
    step_x, step_y = _CELL + _GAP, _CELL + _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    files, decode, classes = open_files(index), open_decoder(), index.manifest.classes
    for place, sample in enumerate(ids.tolist()):
        x, y = _GAP + place % columns * step_x, _GAP + place // columns * step_y
        label = int(entries.labels[place])
        caption = "" if label < 0 else classes[label] if classes and label < len(classes) else str(label)
        try:
            data = files.read(entries.extents, place)
            thumbnail = Image.fromarray(decode(data, checked_header(data)))
            thumbnail.thumbnail((_CELL, _CELL))
            sheet.paste(thumbnail, (x + (_CELL - thumbnail.width) // 2, y + (_CELL - thumbnail.height) // 2))
        except (DecodeError, IntegrityError):
            draw.rectangle((x, y, x + _CELL - 1, y + _CELL - 1), outline=_BAD)
            draw.text((x + 6, y + 6), "bad", fill=_BAD, font=font)
        draw.text((x, y + _CELL + 1), _shorten(printable(f"{sample}  {caption}"), draw, font), fill=_INK, font=font)
    try:
        with atomic_writer(path) as file:
            sheet.save(file, "PNG")
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be written ({exc.strerror}); choose another place") from exc


def _shorten(text: str, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    while len(text) > 4 and draw.textlength(text, font=font) > _CELL:
        text = text[:-2] + "…"
    return text
