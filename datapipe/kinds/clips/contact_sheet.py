"""Draw a contact sheet of videos: a row of frames of each, spread over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from datapipe.codecs.field_values import NO_LABEL
from datapipe.codecs.video.conversion import FrameConverter, fill_frames
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.core import atomic
from datapipe.core.printable import printable
from datapipe.core.ranges import spread
from datapipe.fetch.files import Files, open_object_files
from datapipe.index.clips import VideoParts
from datapipe.stores.settings import Remote

_FRAMES = 8  # of a row
_HEIGHT, _CAPTION, _GAP = 90, 16, 8  # pixels
_PAPER, _INK, _BAD = (250, 250, 248), (40, 40, 40), (190, 40, 30)


def draw_sheet(parts: VideoParts, path: Path, *, num_videos: int) -> None:
    """Write a PNG of `num_videos` videos, evenly spread over all. Raises StorageError if it cannot be written."""
    some = spread(len(parts), num_videos)
    files = open_object_files(parts.videos.urls(), remote=Remote())
    rows = [(_frames_of(parts, part, files), _caption(parts, part)) for part in some]
    width = max([_FRAMES * (frames.shape[2] + 2) for frames, _ in rows], default=0)
    sheet = Image.new("RGB", (width + 2 * _GAP, len(rows) * (_HEIGHT + _CAPTION + _GAP) + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number, (frames, caption) in enumerate(rows):
        y = _GAP + number * (_HEIGHT + _CAPTION + _GAP)
        for place, frame in enumerate(frames):
            sheet.paste(Image.fromarray(frame), (_GAP + place * (frame.shape[1] + 2), y))
        draw.text((_GAP, y + _HEIGHT + 1), caption, fill=_INK if len(frames) else _BAD, font=font)
    atomic.save(path, lambda file: sheet.save(file, "PNG"))


def _frames_of(parts: VideoParts, part: int, files: Files) -> NDArray[np.uint8]:
    """Return (k, h, w, 3) frames of a video, grey where one does not decode; k is 0 for a video that cannot be decoded."""
    video = int(parts.video[part])
    if not parts.videos.num_frames[video]:
        return np.zeros((0, _HEIGHT, _HEIGHT, 3), np.uint8)
    track, source = parts.videos.track(video), parts.videos.source(video)
    height, width = track.coding.shown_size
    out = np.full((_FRAMES, _HEIGHT, max(1, round(width * _HEIGHT / height)), 3), 128, np.uint8)
    frames = np.linspace(0, len(track) - 1, _FRAMES).astype(np.int64)
    fill_frames(VideoDecoder(), FrameConverter(), track, files.reader(source.path, source.start), frames, out)
    return out


def _caption(parts: VideoParts, part: int) -> str:
    video, label = int(parts.video[part]), int(parts.labels[part])
    name = Path(parts.videos.source(video).path).name
    known = parts.classes is not None and 0 <= label < len(parts.classes)
    shown = parts.classes[label] if known and parts.classes is not None else str(label) if label != NO_LABEL else ""
    problem = "" if parts.videos.num_frames[video] else "  bad"
    return printable(f"{part}  {name}  {shown}{problem}")
