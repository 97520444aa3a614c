"""Sound files to samples by libsndfile, which lets go of the interpreter's lock: FLAC, WAV, Ogg Vorbis and Opus, MP3, AIFF.

A *frame* is one sample of each channel.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.audio.library import import_soundfile
from datapipe.codecs.audio.streams import ReadAt, Stream, mp3_streams, ogg_streams
from datapipe.core.printable import counted
from datapipe.core.regular_files import bytes_in_memory
from datapipe.errors import DecodeError

Floats = NDArray[np.float32]

_UNKNOWN_FRAMES = 1 << 50  # and more are what libsndfile says of a file whose header has no number
# After a seek libsndfile 1.2 lacks frames of MP3 that the next depend on, and in some files of Vorbis it is at another place.
# These are decoded from their beginning.
_WITHOUT_SEEKING = (("MP3", None), ("OGG", "VORBIS"))
_OF_STREAMS = ("MP3", "OGG")
_FLOATING, _LARGEST = ("FLOAT", "DOUBLE"), 1e20  # so that sums of samples are finite
# Samples of a channel that a byte can hold, at most: of MP3, a frame of 1,152 has 24 bytes; of FLAC, one of 65,535 has 11.
_MOST_OF_MP3, _MOST, _SHORTEST_FRAMES = 48, 6000, 1 << 16
_PASSED_FRAMES = 1 << 16  # at once
_PREROLL_FRAMES = 24_000  # that are decoded before a stretch of Opus, which depends on what came before it, less and less


class AudioFacts(NamedTuple):
    """Length, rate, channels and coding of a sound file."""

    num_frames: int
    rate: int  # Hz
    channels: int
    coding: str  # such as "FLAC PCM_16"
    has_streams: bool = False  # it is read stream by stream, as libsndfile would end before the sound does


def audio_facts(file: int | BinaryIO) -> AudioFacts:
    """Return the facts of a file. `file`: a descriptor, which stays open, or a file that can be sought in.

    What MP3 and Ogg do not promise is counted. Raises DecodeError for what is no sound, or does not say how long it is.
    """
    with _opened(file) as sound:
        facts = _facts_of(sound)
    streams = _streams(file) if facts.coding.startswith(_OF_STREAMS) else []
    if len(streams) == 1 and 0 <= streams[0].num_frames <= facts.num_frames:
        return facts._replace(num_frames=streams[0].num_frames)  # libsndfile guesses too much, and so reads all of it
    if len(streams) > 1 or any(stream.num_frames >= 0 for stream in streams):
        return _joined_facts(file, streams, facts.coding)
    if not 0 <= facts.num_frames < _UNKNOWN_FRAMES:
        raise DecodeError("does not say how long it is, as streams do not; encode it again: ffmpeg -i IN OUT")
    return facts


def _facts_of(sound: Any) -> AudioFacts:
    return AudioFacts(sound.frames, sound.samplerate, sound.channels, f"{sound.format} {sound.subtype}")


def _joined_facts(file: int | BinaryIO, streams: Sequence[Stream], coding: str) -> AudioFacts:
    """Return the facts of streams that follow each other. Raises DecodeError where they have several rates, or channels."""
    found: list[AudioFacts] = []
    for stream in streams:
        with _opened_stream(file, stream) as sound:
            one = _facts_of(sound)
        if found and (one.rate, one.channels) != (found[0].rate, found[0].channels):
            before, after = (f"{facts.rate:,} Hz, {counted(facts.channels, 'channel')}" for facts in (found[0], one))
            changes = f"changes from {before} to {after} at byte {stream.start:,}, as joined files do"
            raise DecodeError(f"{changes}; encode it again: ffmpeg -i IN OUT")
        found.append(one if stream.num_frames < 0 else one._replace(num_frames=stream.num_frames))
    return AudioFacts(sum(one.num_frames for one in found), found[0].rate, found[0].channels, coding, has_streams=True)


def checked_facts(file: int | BinaryIO, nbytes: int) -> AudioFacts:
    """Return the facts of a file of `nbytes` that can be decoded. `file`, and what it raises: as `audio_facts`.

    Also raises DecodeError for a file without samples, or one that claims more of them than its bytes can hold.
    """
    if not nbytes:
        raise DecodeError("holds no sound, 0 bytes")
    facts = audio_facts(file)
    if not facts.num_frames:
        raise DecodeError("holds no sound, 0 samples")
    if facts.num_frames > _SHORTEST_FRAMES + nbytes * (_MOST_OF_MP3 if facts.coding.startswith("MP3") else _MOST):
        claim = f"says that it has {facts.num_frames:,} samples, more than {nbytes:,} bytes can hold"
        raise DecodeError(f"{claim}; encode it again: ffmpeg -i IN OUT")
    return facts


def read_frames(file: int | BinaryIO, first: int, out: Floats, *, rate: int, has_streams: bool = False) -> None:
    """Write the frames of a file from `first` on into `out`, (n, channels) or, of one channel, (n,); full scale is 1.

    `file`: as for `audio_facts`. `rate`, `has_streams`: as it says. Raises DecodeError for a file that is damaged there, ends
    before, has samples that are no numbers or huge, or has another rate or other channels by now.
    """
    if has_streams:
        _read_streams(file, first, out, rate)
        return
    with _opened(file) as sound:
        _read(sound, first, out, rate)
        can_be_odd = sound.subtype in _FLOATING
    if can_be_odd and out.size and not (out.min() > -_LARGEST and out.max() < _LARGEST):
        raise DecodeError(f"has samples that are no numbers, or beyond {_LARGEST:g} times full scale; encode it again")


def _read_streams(file: int | BinaryIO, first: int, out: Floats, rate: int) -> None:
    """Write frames as `read_frames` does, of streams that follow each other."""
    done, begin = 0, 0  # frames that are written; where in the file the stream begins
    for stream in _streams(file):
        if done == len(out):
            return
        if 0 <= stream.num_frames <= first - begin:
            begin += stream.num_frames
            continue
        with _opened_stream(file, stream) as sound:
            num_frames = sound.frames if stream.num_frames < 0 else stream.num_frames
            num = min(len(out) - done, begin + num_frames - (first + done))
            if num > 0:
                _read(sound, first + done - begin + stream.skip, out[done : done + num], rate)
                done += num
        begin += num_frames
    if done < len(out):
        raise DecodeError(f"ends {len(out) - done:,} samples early, of {first + len(out):,}: changed; open the data again")


def _read(sound: Any, first: int, out: Floats, rate: int) -> None:
    channels = out.shape[1] if out.ndim > 1 else 1
    if (sound.samplerate, sound.channels) != (rate, channels):
        found, known = f"{sound.samplerate:,} Hz, {sound.channels} channels", f"{rate:,} Hz, {channels}"
        raise DecodeError(f"has {found}, and {known} when it was indexed: changed; open the data again")
    _seek(sound, first)
    num = len(sound.read(out=out))
    if num < len(out):
        raise DecodeError(f"ends {len(out) - num:,} samples early, of {first + len(out):,}: damaged, or cut off")


def _seek(sound: Any, first: int) -> None:
    """Go to a frame, whose samples are then those of a file that is decoded as a whole."""
    passed = 0
    if not sound.can_seek() or any(
        sound.format == name and subtype in (None, sound.subtype) for name, subtype in _WITHOUT_SEEKING
    ):
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

        def can_seek(self) -> bool:
            """Return False for what libsndfile decodes in sequence alone, such as GSM 6.10."""
            return bool(super().seekable())

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


def _streams(file: int | BinaryIO) -> list[Stream]:
    """Return the streams of a file of MP3 or Ogg; none if libsndfile reads all of it."""
    read_at, nbytes = _access(file)
    return (ogg_streams if read_at(0, 4) == b"OggS" else mp3_streams)(read_at, nbytes)


def _access(file: int | BinaryIO) -> tuple[ReadAt, int]:
    """Return what reads the bytes at a place of a file, and how many it has."""
    if isinstance(file, int):
        descriptor = file
        return lambda place, num: os.pread(descriptor, num, place), os.fstat(file).st_size
    held = file

    def read_at(place: int, num: int) -> bytes:
        held.seek(place)
        return held.read(num)

    return read_at, file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _opened_stream(file: int | BinaryIO, stream: Stream) -> Iterator[Any]:
    read_at, _ = _access(file)
    descriptor = bytes_in_memory(stream.head + read_at(stream.start, stream.nbytes))
    try:
        with _opened(descriptor) as sound:
            yield sound
    finally:
        os.close(descriptor)
