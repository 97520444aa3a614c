"""The samples of `Audio`: utterances, how long each is at the rate that is wanted, and the sound of one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.audio.resampling import Span, num_resampled
from datapipe.containers.mapped import PLAIN_NBYTES, is_bomb
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.media import left_out_line, refuse_bad
from datapipe.index.utterances import Utterances
from datapipe.kinds.audio.reading import Stretch
from datapipe.kinds.audio.settings import AudioSettings
from datapipe.order.draws import Ints
from datapipe.order.length_batches import LengthBatches


@dataclass(frozen=True, eq=False)
class AudioSamples:
    """Utterances at one rate, by their numbers. Thread-safe."""

    utterances: Utterances
    settings: AudioSettings
    rate: int  # Hz
    left_out: str | None = None  # the utterances that cannot be decoded, and the first problem

    @classmethod
    def of(cls, found: Utterances, settings: AudioSettings, *, skip_bad: bool) -> AudioSamples:
        """Return the samples that the settings leave. Raises FormatError for a bad recording, unless it is skipped."""
        found, bad = _without(found, found.num_frames == 0, found.problem, skip_bad=skip_bad)
        if settings.between is not None:
            found = found.select((found.seconds >= settings.between[0]) & (found.seconds <= settings.between[1]))
        is_short = found.seconds < (settings.seconds or 0)
        if settings.short == "error" and is_short.any():
            one = found.describe(int(np.flatnonzero(is_short)[0]))
            raise OptionError(f"{one}: is shorter than {settings.seconds:g} s; pass short='pad' or 'drop', or fewer seconds")
        if settings.short == "drop":
            found = found.select(~is_short)
        rate = _rate(found, settings) if len(found) else 0
        nbytes = _decoded_nbytes(found, settings, rate)
        found, bombs = _without(found, _are_bombs(found, nbytes), functools.partial(_claim, found, nbytes), skip_bad=skip_bad)
        left_out = "; ".join(bad + bombs)
        if not len(found):
            why = f" ({left_out})" if left_out else ""
            raise MissingDataError(f"{found.where}: no samples are left{why}; check the path, `seconds`, `short` and `between`")
        if settings.max_seconds is not None and found.seconds.max() > settings.max_seconds:
            one = found.describe(int(found.seconds.argmax()))
            raise OptionError(
                f"{one}: is longer than max_seconds={settings.max_seconds:g}; pass more, or between=(0, {settings.max_seconds:g})"
                " to leave out what is longer"
            )
        return cls(found, settings, rate, left_out or None)

    def __len__(self) -> int:
        return len(self.utterances)

    def differing(self, other: AudioSamples) -> list[str]:
        """Return in which settings samples differ, by name: those that say which utterances there are do not matter."""
        names = ("seconds", "channels", "crop", "max_seconds", "fields")
        found = [name for name in names if getattr(self.settings, name) != getattr(other.settings, name)]
        return found + ["rate"] * (self.rate != other.rate)

    @functools.cached_property
    def lengths(self) -> Ints:
        """The (n,) samples of each at the rate."""
        return num_resampled(self.utterances.num_frames, self.utterances.rates, self.rate)

    @property
    def crop(self) -> int | None:
        """The samples of a crop; None if samples are whole utterances."""
        return None if self.settings.seconds is None else max(1, round(self.settings.seconds * self.rate))

    @functools.cached_property
    def batches(self) -> LengthBatches | None:
        """The batches of `max_seconds`; None if a batch has a number of samples."""
        most = self.settings.max_seconds
        return None if most is None else LengthBatches.of(self.lengths, int(most * self.rate))

    @functools.cached_property
    def by_length(self) -> Ints:
        """The (n,) samples from the shortest to the longest."""
        return np.argsort(self.lengths, kind="stable")

    @property
    def possible_fields(self) -> tuple[str, ...]:
        """What a batch can have."""
        found = self.utterances
        known = {"label": found.labels, "text": found.texts}
        return ("audio", "lengths", *(name for name, values in known.items() if values is not None), "id")

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch has, in this order."""
        return self.settings.fields or self.possible_fields[:-1]

    def stretch(self, number: int, first: int, num: int) -> Stretch:
        """Return `num` samples of an utterance, from `first` on, as `SoundReader` reads them."""
        found, recording = self.utterances, int(self.utterances.recording[number])
        recordings = found.recordings
        form = int(recordings.rates[recording]), int(recordings.channels[recording]), bool(recordings.has_streams[recording])
        span = Span(int(found.first[number]), int(found.num_frames[number]), *form)
        return Stretch(recordings.source(recording), span, first, num)


def _without(
    found: Utterances, is_bad: NDArray[np.bool_], problem: Callable[[int], str], *, skip_bad: bool
) -> tuple[Utterances, list[str]]:
    """Return the utterances that are not bad, and a line on those that are, if there are any.

    Raises FormatError with the first `problem`, unless bad ones are skipped.
    """
    if not skip_bad:
        refuse_bad(is_bad, problem)
    line = left_out_line(is_bad, "utterance", problem)
    return found.select(~is_bad), [] if line is None else [line]


def _decoded_nbytes(found: Utterances, settings: AudioSettings, rate: int) -> Ints:
    """Return (u,) the bytes in memory when a sample of each is made: as it is recorded, or as it is wanted."""
    rates, num_frames = np.maximum(1, found.rates), found.num_frames
    if settings.seconds is None:
        wanted = num_resampled(num_frames, rates, rate) * settings.channels
    else:  # are as many as the user says
        wanted, num_frames = np.zeros(len(found), np.int64), np.minimum(num_frames, (settings.seconds * rates).astype(np.int64))
    nbytes: Ints = 4 * np.maximum(num_frames * found.recordings.channels[found.recording], wanted)
    return nbytes


def _are_bombs(found: Utterances, nbytes: Ints) -> NDArray[np.bool_]:
    """Return (u,) True for those that would be more bytes than those of their files can hold."""
    are_bombs = np.zeros(len(found), np.bool_)
    for number in np.flatnonzero(nbytes > PLAIN_NBYTES).tolist():
        are_bombs[number] = is_bomb(int(nbytes[number]), found.stored_nbytes(number))
    return are_bombs


def _claim(found: Utterances, nbytes: Ints, number: int) -> str:
    """Return why one of those is bad."""
    lasts = f"{found.seconds[number]:,.0f} s at {found.rates[number]:,} Hz"
    claim = f"says that it lasts {lasts}, which {found.stored_nbytes(number):,} bytes would be {nbytes[number] >> 20:,} MiB of"
    return f"{found.describe(number)}: {claim}; pass seconds=5 for crops of it, between=(0, 60) to leave it out"


def _rate(found: Utterances, settings: AudioSettings) -> int:
    """Return the rate of samples. Raises OptionError if none is given and recordings differ."""
    if settings.rate is not None:
        return settings.rate
    rates = np.unique(found.rates).tolist()
    if len(rates) > 1:
        raise OptionError(f"{found.where}: recordings have rates of {rates[0]:,} to {rates[-1]:,} Hz; pass rate={rates[0]}")
    return int(rates[0])
