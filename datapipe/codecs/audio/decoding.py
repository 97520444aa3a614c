"""Sound files to samples by libsndfile, which lets go of the interpreter's lock: FLAC, WAV, Ogg Vorbis and Opus, MP3, AIFF.

A *frame* is one sample of each channel.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.audio.library import import_soundfile
from datapipe.errors import DecodeError

Floats = NDArray[np.float32]

_UNKNOWN_FRAMES = 1 << 50  # and more are what libsndfile says of a file whose header has no number
# After a seek libsndfile 1.2 lacks frames of MP3 that the next depend on, and in some files of Vorbis it is at another place.
# These are decoded from their beginning.
_WITHOUT_SEEKING = (("MP3", None), ("OGG", "VORBIS"))
_FLOATING = ("FLOAT", "DOUBLE")
# Samples of a channel that a byte can hold, at most: of MP3, a frame of 1,152 has 24 bytes; of FLAC, one of 65,535 has 11.
_MOST_OF_MP3, _MOST, _SHORTEST_FRAMES = 48, 6000, 1 << 16
_PASSED_FRAMES = 1 << 16  # at once
_PREROLL_FRAMES = 24_000  # that are decoded before a stretch of Opus, which depends on what came before it, less and less


class AudioFacts(NamedTuple):
    """What a sound file says of itself."""

    num_frames: int
    rate: int  # Hz
    channels: int
    coding: str  # such as "FLAC PCM_16"


def audio_facts(file: int | BinaryIO) -> AudioFacts:
    """Return the facts of a file. `file`: a descriptor, which stays open, or a file that can be sought in.

    Raises DecodeError for what is no sound, or does not say how long it is.
    """
    with _opened(file) as sound:
        if not 0 <= sound.frames < _UNKNOWN_FRAMES:
            raise DecodeError("does not say how long it is, as streams do not; encode it again: ffmpeg -i IN OUT")
        return AudioFacts(sound.frames, sound.samplerate, sound.channels, f"{sound.format} {sound.subtype}")


def checked_facts(file: int | BinaryIO, nbytes: int) -> AudioFacts:
    """Return the facts of a file of `nbytes` that can be decoded. `file`, and what it raises: as `audio_facts`.

    Also raises DecodeError for a file without samples, or one that claims more of them than its bytes can hold.
    """
    facts = audio_facts(file)
    if not facts.num_frames:
        raise DecodeError("holds no sound, 0 samples")
    if facts.num_frames > _SHORTEST_FRAMES + nbytes * (_MOST_OF_MP3 if facts.coding.startswith("MP3") else _MOST):
        claim = f"says that it has {facts.num_frames:,} samples, more than {nbytes:,} bytes can hold"
        raise DecodeError(f"{claim}; encode it again: ffmpeg -i IN OUT")
    return facts


def read_frames(file: int | BinaryIO, first: int, out: Floats, *, rate: int) -> None:
    """Write the frames of a file from `first` on into `out`, (n, channels) or, of one channel, (n,); full scale is 1.

    `file`: as for `audio_facts`. `rate`: as it says. Raises DecodeError for a file that is damaged there, ends before, has
    samples that are no numbers, or has another rate or other channels by now.
    """
    channels = out.shape[1] if out.ndim > 1 else 1
    with _opened(file) as sound:
        if (sound.samplerate, sound.channels) != (rate, channels):
            found, known = f"{sound.samplerate:,} Hz, {sound.channels} channels", f"{rate:,} Hz, {channels}"
            raise DecodeError(f"has {found}, and {known} when it was indexed: changed; open the data again")
        _seek(sound, first)
        num = len(sound.read(out=out))
        can_be_odd = sound.subtype in _FLOATING
    if num < len(out):
        raise DecodeError(f"ends {len(out) - num:,} samples early, of {first + len(out):,}: damaged, or cut off")
    if can_be_odd and not np.isfinite(out).all():
        raise DecodeError("has samples that are no numbers, or infinite; encode it again")


def _seek(sound: Any, first: int) -> None:
    """Go to a frame, whose samples are then those of a file that is decoded as a whole."""
    passed = 0
    if any(sound.format == name and subtype in (None, sound.subtype) for name, subtype in _WITHOUT_SEEKING):
        passed = first
    elif sound.subtype == "OPUS":
        passed = min(first, _PREROLL_FRAMES)
    if first > passed:
        sound.seek(first - passed)
    if passed:
        scratch = np.empty((min(passed, _PASSED_FRAMES), sound.channels), np.float32)
        while passed:
            num = len(sound.read(min(passed, len(scratch)), out=scratch))
            if not num:
                raise DecodeError(f"ends {passed:,} samples before the place that is wanted: damaged, or cut off")
            passed -= num


@functools.cache
def _reader() -> Any:
    """Return soundfile's class without the seek that it makes after each read, which in FLAC costs as much as the first.

    Its finaliser is one written in C that does nothing: in one written in Python a Ctrl-C would be lost. The lock that
    soundfile holds while it opens a file is free in a forked child, whatever threads of the parent held.
    """
    theirs = import_soundfile().SoundFile
    lock = getattr(theirs, "_sf_error_lock", None)  # since soundfile 0.14
    if lock is not None:
        os.register_at_fork(after_in_child=lock._at_fork_reinit)

    class Reader(theirs):  # type: ignore[misc, valid-type]
        __del__ = staticmethod(int)

        def seekable(self) -> bool:
            return False

    return Reader


@contextlib.contextmanager
def _opened(file: int | BinaryIO) -> Iterator[Any]:
    soundfile = import_soundfile()
    if isinstance(file, int):
        os.lseek(file, 0, os.SEEK_SET)
    else:
        file.seek(0)
    try:
        with _reader()(file, closefd=False) as sound:
            yield sound
    except soundfile.LibsndfileError as exc:
        raise DecodeError(f"cannot be decoded ({exc.error_string.rstrip('.')})") from exc
