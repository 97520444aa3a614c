"""Decode frames of a video into an array."""

from __future__ import annotations

import numpy as np

from datapipe.codecs.video.conversion import FrameConverter, Pixels
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.track import Ints, ReadAt, VideoTrack
from datapipe.errors import DecodeError


def fill_frames(
    decoder: VideoDecoder, converter: FrameConverter, track: VideoTrack, read: ReadAt, frames: Ints, out: Pixels
) -> list[tuple[int, DecodeError]]:
    """Write the frames of a video into `out`; return the places that have none, with the reasons.

    `frames`: (k,) numbers of presented frames in any order, also repeated, such as those of several clips: each is decoded once.
    `out`: (k, h, w, 3) uint8 or (k, h, w, 1) uint16; see `FrameConverter.convert`. The errors of `read` are raised.
    """
    order = np.argsort(frames, kind="stable")
    is_there = (frames >= 0) & (frames < len(track))
    failed = [
        (place, DecodeError(f"frame {frames[place]} does not exist: the video has {len(track)}"))
        for place in np.flatnonzero(~is_there).tolist()
    ]
    wanted = np.unique(frames[is_there])
    begin, end = (np.searchsorted(frames[order], wanted, side=side) for side in ("left", "right"))
    places = {frame: order[first:last] for frame, first, last in zip(wanted.tolist(), begin, end, strict=True)}
    for number, frame in decoder.decode(track, read, wanted):
        error = frame if isinstance(frame, DecodeError) else None
        first, *others = places[number].tolist()
        if error is None:
            try:
                converter.convert(frame, track.coding, out[first])
            except DecodeError as exc:
                error = exc
        if error is not None:
            failed += [(place, error) for place in (first, *others)]
            continue
        for place in others:
            out[place] = out[first]
    return failed
