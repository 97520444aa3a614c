"""Make the stored form of recordings: whole ones or parts, their bytes kept as they are, or encoded again."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from converters.options import Check
from converters.samples.examine import AudioTreatment
from converters.samples.reading import HeldField, UnwantedError
from converters.writers import StoredField
from datapipe.codecs.audio.decoding import AudioFacts, Floats, checked_facts
from datapipe.codecs.audio.library import import_soundfile
from datapipe.codecs.audio.resampling import Span, num_resampled, read_samples
from datapipe.containers.mapped import is_bomb
from datapipe.errors import DecodeError
from datapipe.index.utterances import frames_at
from datapipe.sources.lists.parts_source import part_of

# Formats of files by libsndfile's names, with the suffix of each.
_FORMATS = {
    "FLAC": "flac", "WAV": "wav", "WAVEX": "wav", "MP3": "mp3", "OGG": "ogg", "AIFF": "aiff", "AU": "au", "CAF": "caf",
    "W64": "w64", "RF64": "rf64",
}  # fmt: skip
_MAX_NBYTES = 1 << 33  # that are in memory at once: 12 hours at 48 kHz
_PLAIN_NBYTES = 1 << 30  # that any few bytes may become: silence of 90 minutes at 48 kHz
_FINE = ("_20", "_24", "_32", "FLOAT", "DOUBLE")  # codings of more than 16 bits, which are written with 24


class SoundMaker:
    """Makes the stored bytes of recordings; see `reading.made_samples`."""

    def __init__(self, treatment: AudioTreatment, check: Check) -> None:
        self._treatment, self._check = treatment, check

    def made(self, held: HeldField, values: Mapping[str, str]) -> StoredField:
        """Return a recording, or the part of one that `values` name.

        Raises DecodeError for a bad one, UnwantedError for one that is silent if such are left out.
        """
        part = part_of(values)
        if part is not None:  # only the part of the file is read
            file = held.open_whole()
            facts = checked_facts(file, held.origin.file_nbytes)
            return self._encoded(self._read(file, facts, _span(facts, *part), held.origin.file_nbytes), facts)
        data = held.value()
        facts = checked_facts(io.BytesIO(data), len(data))
        is_kept = self._is_as_wanted(facts)
        if not is_kept or self._treatment.silence is not None or self._check is Check.DECODE:
            sound = self._read(io.BytesIO(data), facts, _span(facts, 0, math.inf), len(data))
            if not is_kept:
                return self._encoded(sound, facts)
        return StoredField(_format_of(facts), data)

    def _is_as_wanted(self, facts: AudioFacts) -> bool:
        """Return True for a file whose bytes can stay."""
        wanted = self._treatment
        return (
            wanted.rate in (None, facts.rate)
            and wanted.channels in (None, facts.channels)
            and wanted.format in (None, _format_of(facts))
        )

    def _read(self, file: int | BinaryIO, facts: AudioFacts, span: Span, stored_nbytes: int) -> Floats:
        """Return the samples of an utterance, (channels, n) at the wanted rate, as a loader has them. Raises as `made`.

        `stored_nbytes`: of the file.
        """
        rate = self._treatment.rate or facts.rate
        num = int(num_resampled(np.array([span.num_frames]), np.array([span.rate]), rate)[0])
        channels = self._treatment.channels or facts.channels
        if not num:
            raise DecodeError(f"is shorter than a sample at {rate:,} Hz")
        nbytes = 4 * max(num * channels, span.num_frames * span.channels)
        if nbytes > _MAX_NBYTES or is_bomb(nbytes, stored_nbytes, plain_nbytes=_PLAIN_NBYTES):
            too_many = f"{span.num_frames:,} samples at {span.rate:,} Hz, {nbytes >> 20:,} MiB decoded"
            raise DecodeError(f"has {too_many}, too many at once for {stored_nbytes:,} bytes; cut it into parts, by a list")
        sound = np.empty((channels, num), np.float32)
        read_samples(file, span, 0, sound, rate=rate)
        least = self._treatment.silence
        peak = float(np.abs(sound).max())
        if least is not None and peak <= 10 ** (least / 20):
            loudest = f"its loudest sample is at {20 * math.log10(peak):.1f} dBFS" if peak else "all samples are 0"
            raise UnwantedError(f"silence: {loudest} (--audio-silence drop:{least:g})")
        return sound

    def _encoded(self, sound: Floats, facts: AudioFacts) -> StoredField:
        """Return samples as FLAC or WAV of 16 bits, or of 24 where the recording has more than 16."""
        name, bits = self._treatment.format or "flac", 24 if facts.coding.endswith(_FINE) else 16
        most = 1 << (bits - 1)
        whole = np.rint(sound.T * most).clip(-most, most - 1)
        samples = whole.astype(np.int16) if bits == 16 else whole.astype(np.int32) << 8
        soundfile, sink = import_soundfile(), io.BytesIO()
        try:
            rate = self._treatment.rate or facts.rate
            soundfile.write(sink, np.ascontiguousarray(samples), rate, format=name.upper(), subtype=f"PCM_{bits}")
        except soundfile.LibsndfileError as exc:
            what = f"{len(sound)} channels at {rate:,} Hz"
            raise DecodeError(
                f"{what} are not written as {name} ({exc.error_string.rstrip('.')}); pass --audio-channels 1"
            ) from exc
        return StoredField(name, sink.getvalue())


def _span(facts: AudioFacts, start: float, end: float) -> Span:
    """Return the frames of a recording between two times in seconds."""
    rate, num = np.array([facts.rate]), np.array([facts.num_frames])
    first, after = (int(frames_at(np.array([one]), rate, num)[0]) for one in (start, end))
    return Span(first, after - first, facts.rate, facts.channels, facts.has_streams)


def _format_of(facts: AudioFacts) -> str:
    """Return the suffix of files of the format. Raises DecodeError for one that is not kept."""
    name, coding = facts.coding.split()
    if name not in _FORMATS:
        raise DecodeError(f"is {name}, which is not kept; encode it again: --audio-format flac")
    return "opus" if coding == "OPUS" else _FORMATS[name]
