"""Sound that a worker on another machine decodes: what it is asked, and how it does so, as `SoundReader` does here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from datapipe.codecs.audio.resampling import Span, stretch_of
from datapipe.errors import FormatError
from datapipe.index.media import MediaSource
from datapipe.kinds.audio.reading import SoundReader, Stretch
from datapipe.kinds.audio.settings import MAX_CHANNELS, MAX_RATE
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.wire import (
    MAX_NBYTES,
    MAX_ROWS,
    Bad,
    array_of,
    bytes_of,
    packed,
    packed_request,
    place_of,
    placed,
    unpacked,
)

_MAX_FRAMES = 1 << 40  # of a recording
_NUMBERS = 9  # of a stretch: where its recording lies, the span, and what of it is wanted


class SoundRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stretches of sound to be read."""

    rate: int
    channels: int
    num: int  # samples of a row
    paths: list[bytes]
    numbers: bytes  # (k, 9) start, nbytes; first, frames, rate, channels, has_streams; first, num


def asked(rate: int, out: torch.Tensor, stretches: Sequence[Stretch]) -> bytes:
    """Return the request for the rows of `out`, (k, channels, samples)."""
    numbers = [(*one.source[1:], *one.span, one.first, one.num) for one in stretches]
    paths = [place_of(one.source.path) for one in stretches]
    body = SoundRequest(rate, out.shape[1], out.shape[2], paths, bytes_of(np.array(numbers, np.int64)))
    return packed_request("audio", body)


def serve(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Read the stretches of a request; return them, and the answer. Raises FormatError, OptionError and what reading raises."""
    request = unpacked(body, SoundRequest)
    num = len(request.paths)
    if num > MAX_ROWS or not (0 < request.rate <= MAX_RATE and 0 < request.channels <= MAX_CHANNELS):
        raise FormatError(f"{num} stretches of {request.channels} channels at {request.rate} Hz are asked for")
    paths = [placed(path) for path in request.paths]
    files = desk.files(paths)
    numbers = array_of(request.numbers, np.int64, num * _NUMBERS).reshape(num, _NUMBERS).tolist()
    stretches = [_stretch(path, one, request) for path, one in zip(paths, numbers, strict=True)]
    out = desk.rows((num, request.channels, request.num), torch.float32)
    reader = desk.opened(("audio", request.rate, files), lambda: SoundReader(request.rate, files))
    return out, packed(Bad(sorted(reader.read(out, stretches))))


def _stretch(path: str, numbers: list[int], request: SoundRequest) -> Stretch:
    """Return a stretch that was sent. Raises FormatError for numbers that do not fit together."""
    start, nbytes, begin, num_frames, rate, channels, has_streams, first, num = numbers
    span = Span(begin, num_frames, rate, channels, bool(has_streams))
    fits = (
        start >= 0
        and -1 <= nbytes <= MAX_NBYTES
        and begin >= 0
        and 0 < num_frames <= _MAX_FRAMES
        and begin <= _MAX_FRAMES
        and 0 < rate <= MAX_RATE
        and 0 < channels <= MAX_CHANNELS
        and first >= 0
        and 0 <= num <= request.num
        and first + num <= num_frames * request.rate // rate
    )
    if fits:
        read = stretch_of(first, num, num_frames=num_frames, rate=rate, wanted=request.rate)
        fits = read.num * channels * 4 <= MAX_NBYTES
    if not fits:
        raise FormatError(f"{path}: a stretch of it is asked for that it cannot have, or that is too long")
    return Stretch(MediaSource(path, start, nbytes), span, first, num)
