"""Sound at another rate, and with other channels. A stretch of a recording has the samples of the whole, resampled at once."""

from __future__ import annotations

import math
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.audio.decoding import Floats, read_frames
from datapipe.codecs.audio.library import import_soxr
from datapipe.errors import DecodeError

Ints = NDArray[np.int64]

_MARGIN = 512  # samples of the lower rate around a stretch that its ends depend on, to within 1e-5


class Stretch(NamedTuple):
    """The frames to read for some samples at another rate."""

    first: int  # frame
    num: int
    skip: int  # samples at the other rate that come before the wanted ones


class Span(NamedTuple):
    """An utterance: some frames of a recording."""

    first: int
    num_frames: int
    rate: int  # Hz
    channels: int
    has_streams: bool = False  # of the recording; see `AudioFacts`


def read_samples(file: int | BinaryIO, span: Span, first: int, out: Floats, *, rate: int) -> None:
    """Write samples of an utterance, from `first` on, into `out`, (channels, n) at the wanted `rate`.

    `file`: the recording, as for `read_frames`. Raises DecodeError as `read_frames` and `with_channels` do.
    """
    num = out.shape[1]
    stretch = stretch_of(first, num, num_frames=span.num_frames, rate=span.rate, wanted=rate)
    is_plain = span.rate == rate and span.channels == len(out) == 1
    sound = out[0] if is_plain else np.empty((stretch.num, span.channels), np.float32)
    read_frames(file, span.first + stretch.first, sound, rate=span.rate, has_streams=span.has_streams)
    if not is_plain:
        made = resampled(with_channels(sound, len(out)), span.rate, rate)
        out[:] = made[stretch.skip : stretch.skip + num].T


def num_resampled(num_frames: Ints, rates: Ints, wanted: int) -> Ints:
    """Return (n,) the samples that so many frames, at their rates, are at the wanted one."""
    return num_frames * wanted // rates


def stretch_of(first: int, num: int, *, num_frames: int, rate: int, wanted: int) -> Stretch:
    """Return the frames to read, of `num_frames` at `rate`, for `num` samples from `first` on at the `wanted` rate.

    The stretch begins where a frame and a sample coincide.
    """
    if rate == wanted:
        return Stretch(first, num, 0)
    common = math.gcd(rate, wanted)
    margin = max(_MARGIN, -(-_MARGIN * wanted // rate))
    period = max(0, (first - margin) // (wanted // common))
    begin = period * (rate // common)
    end = min(num_frames, -(-(first + num + margin) * rate // wanted))
    return Stretch(begin, end - begin, first - period * (wanted // common))


def with_channels(sound: Floats, channels: int) -> Floats:
    """Return (n, channels) of (n, c): the mean of all for one channel, one channel repeated; else they must be as many.

    Raises DecodeError if they are not.
    """
    found = sound.shape[1]
    if found == channels:
        return sound
    if channels == 1:
        mean: Floats = sound.mean(axis=1, keepdims=True, dtype=np.float32)
        return mean
    if found == 1:
        return sound.repeat(channels, axis=1)
    raise DecodeError(f"has {found} channels, which are not made {channels}; pass channels=1, or {found}")


def resampled(sound: Floats, rate: int, wanted: int) -> Floats:
    """Return (m, c) float32 of (n, c) at the wanted rate, by soxr at its quality "HQ"."""
    if rate == wanted:
        return sound
    found: Floats = import_soxr().resample(sound, rate, wanted, quality="HQ")
    return found
