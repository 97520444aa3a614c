"""The streams of an MP3 or Ogg file, of which libsndfile knows the first alone, or guesses how long it is.

MP3 has no header of the file: encoders put one, "Xing" or "Info", into a first frame without sound, which says how many frames
follow. Without it, libsndfile guesses the length by the first bit rate. Files of both formats can be joined by `cat`: libsndfile
ends with the first. What is found here are ranges of the file that it reads to their ends, each as a file.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from datapipe.errors import DecodeError

ReadAt = Callable[[int, int], bytes]  # returns the bytes from a place on, so many at most

_READ_NBYTES = 1 << 20  # at once
_BACK_NBYTES = 2048  # before a place that is looked at: how far one goes back, by a frame

# Frames of MP3, layer III: bit rates in kbit/s, rates in Hz by the bits of the version (3: MPEG 1).
_BIT_RATES = {
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8000)}
_SYNC = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")
_MOST_TRIED = 10_000  # places that look like a frame: as many as 100 MB of noise have
_MONO = 0xC0  # and more: the byte of a header that says so
_INFO, _INFO_NUMBERS = (b"Xing", b"Info"), struct.Struct(">III")
_HEAD_NBYTES = 4 + 32 + 16  # of a frame, up to the end of what is read of that
_TAGS = (b"ID3", b"APETAGEX", b"TAG")
_SILENT_BIT_RATE = 8 << 4  # of frames that are made here: the bits of a middle one
_DECODER_DELAY = 529  # samples that are left out at the beginning of a stream that has a header

_FIRST_PAGE = b"OggS\0\2"  # of a stream of Ogg: magic number, version, flags
_PAGE_HEAD_NBYTES, _MOST_SEGMENTS = 27, 255


class Stream(NamedTuple):
    """A range of a file that libsndfile reads as a file, if `head` goes before it."""

    start: int
    nbytes: int
    head: bytes = b""  # says how long it is
    skip: int = 0  # frames of sound that the head adds
    num_frames: int = -1  # of sound; -1: as many as libsndfile says


def mp3_streams(read: ReadAt, nbytes: int) -> list[Stream]:
    """Return the streams of an MP3 file; none where a header says how many frames there are, up to the end of the file.

    A header that says more than there is is left alone: its file is cut off, which reading it shows. Raises DecodeError for what
    only looks like frames.
    """
    first, head = 0, read(0, _HEAD_NBYTES)
    if head.startswith(_TAGS):
        first = _after_tags(read, 0)
        head = read(first, _HEAD_NBYTES)
    info = _info(head)
    if info is not None and info.num_frames and info.nbytes:
        end = first + info.nbytes
        if end >= nbytes or _after_tags(read, end) >= nbytes:
            return []
    return list(_each_mp3_stream(_File(read, nbytes), first))


def ogg_streams(read: ReadAt, nbytes: int) -> list[Stream]:
    """Return the streams of an Ogg file that follow each other; none where there is only one, as in most."""
    file = _File(read, nbytes)
    starts: list[int] = []
    place, end_of_page = -1, -1
    while (place := file.find(_FIRST_PAGE, place + 1)) >= 0:
        if place != end_of_page:  # those that begin together are one
            starts.append(place)
        head = file.at(place, _PAGE_HEAD_NBYTES + _MOST_SEGMENTS).ljust(_PAGE_HEAD_NBYTES, b"\0")
        num_segments = head[_PAGE_HEAD_NBYTES - 1]
        end_of_page = place + _PAGE_HEAD_NBYTES + num_segments + sum(head[_PAGE_HEAD_NBYTES:][:num_segments])
    if len(starts) < 2:
        return []
    return [Stream(start, end - start) for start, end in zip(starts, [*starts[1:], nbytes], strict=True)]


class _File:
    """A file that is read in large pieces, mostly forwards."""

    def __init__(self, read: ReadAt, nbytes: int) -> None:
        self.nbytes = nbytes
        self._read = read
        self._start, self._data = 0, b""

    def at(self, place: int, num: int) -> bytes:
        """Return so many bytes from a place on; fewer at the end of the file."""
        num = min(num, self.nbytes - place)
        begin = place - self._start
        if num > 0 and not 0 <= begin <= len(self._data) - num:
            self._start = max(0, place - _BACK_NBYTES)
            self._data = self._read(self._start, min(_BACK_NBYTES + max(num, _READ_NBYTES), self.nbytes - self._start))
            begin = place - self._start
        return self._data[begin : begin + num] if num > 0 else b""

    def find(self, wanted: bytes | re.Pattern[bytes], place: int) -> int:
        """Return the first place at which something is, from a place on; -1 if it is nowhere. It has 8 bytes at most."""
        while self.at(place, 8):
            begin = place - self._start
            if isinstance(wanted, bytes):
                found = self._data.find(wanted, begin)
            else:
                match = wanted.search(self._data, begin)
                found = -1 if match is None else match.start()
            if found >= 0:
                return self._start + found
            if self._start + len(self._data) >= self.nbytes:
                break
            place = max(place + 1, self._start + len(self._data) - 7)
        return -1


class _Mp3Frame(NamedTuple):
    """A frame of MP3, by its header."""

    nbytes: int
    num_frames: int  # of sound
    kind: tuple[int, int, bool]  # what all frames of a stream have: the bits of version and rate, and whether it is mono
    info_at: int  # where in it there can be a header of the stream


class _Info(NamedTuple):
    """How long a stream is, by its Xing or Info header; 0: not said."""

    num_frames: int  # of MP3, after that of the header
    nbytes: int  # with that frame


def _mp3_frame(head: bytes) -> _Mp3Frame | None:
    """Return what 4 bytes say; None if they are no header of a frame."""
    return _parsed(head[1], head[2], head[3] >= _MONO) if len(head) >= 4 and head[0] == 0xFF else None


@functools.cache  # of as many as there are headers
def _parsed(second: int, third: int, is_mono: bool) -> _Mp3Frame | None:
    version, bits = second >> 3 & 3, third >> 2 & 3
    if second & 0xE6 != 0xE2 or version == 1 or bits == 3 or not 1 <= third >> 4 <= 14:
        return None
    is_first = version == 3
    bit_rate, rate = 1000 * _BIT_RATES[is_first][(third >> 4) - 1], _RATES[version][bits]
    info_at = 4 + ((17 if is_mono else 32) if is_first else (9 if is_mono else 17))
    num_frames = 1152 if is_first else 576
    return _Mp3Frame(num_frames // 8 * bit_rate // rate + (third >> 1 & 1), num_frames, (version, bits, is_mono), info_at)


def _info(data: bytes) -> _Info | None:
    """Return what a frame says of the stream that it begins; None if it is one of sound, or no frame."""
    frame = _mp3_frame(data[:4])
    if frame is None or data[frame.info_at : frame.info_at + 4] not in _INFO:
        return None
    flags, one, two = _INFO_NUMBERS.unpack_from(data.ljust(_HEAD_NBYTES, b"\0"), frame.info_at + 4)
    if flags & 1:
        return _Info(one, two if flags & 2 else 0)
    return _Info(0, one if flags & 2 else 0)


def _each_mp3_stream(file: _File, place: int) -> Iterator[Stream]:
    """Yield the streams from a place on. One ends where its header says, or where no frame of the same kind follows."""
    while (start := _next_mp3_frame(file, place)) >= 0:
        first = _mp3_frame(file.at(start, 4))
        assert first is not None
        info = _info(file.at(start, first.info_at + 16))
        begin = place = start + (0 if info is None else first.nbytes)
        num, most = 0, math.inf if info is None or not info.num_frames else info.num_frames
        while num < most:
            data = file.at(place, first.info_at + 4)
            frame = _mp3_frame(data)
            if frame is None or frame.kind != first.kind or place + frame.nbytes > file.nbytes or data[-4:] in _INFO:
                break
            place, num = place + frame.nbytes, num + 1
        if num == most:
            yield Stream(start, place - start)
        elif num:
            header = file.at(begin, 4)
            yield Stream(begin, place - begin, _head(header, num), first.num_frames - _DECODER_DELAY, num * first.num_frames)


def _next_mp3_frame(file: _File, place: int) -> int:
    """Return where the next frame begins after which another one follows, a tag, or the end of the file; -1 if none does.

    Raises DecodeError where too much looks like one.
    """
    place = _after_tags(file.at, place)
    for _ in range(_MOST_TRIED):
        place = file.find(_SYNC, place)
        if place < 0:
            return -1
        frame = _mp3_frame(file.at(place, 4))
        if frame is not None and (end := place + frame.nbytes) <= file.nbytes:
            after = _mp3_frame(file.at(end, 4))
            if end == file.nbytes or (after is not None and after.kind == frame.kind) or _after_tags(file.at, end) > end:
                return place
        place += 1
    raise DecodeError(f"has no frame of MP3 near byte {place:,}: damaged; encode it again: ffmpeg -i IN OUT")


def _after_tags(read: ReadAt, place: int) -> int:
    """Return where the tags end, ID3 and APE, that begin at a place."""
    while True:
        head = read(place, 32)
        if head.startswith(b"ID3") and len(head) >= 10:
            size = functools.reduce(lambda found, byte: found << 7 | byte & 0x7F, head[6:10], 0)
            place += 10 + size + (10 if head[5] & 0x10 else 0)
        elif head.startswith(b"APETAGEX") and len(head) == 32:
            place += 32 + int.from_bytes(head[12:16], "little")
        elif head.startswith(b"TAG"):
            place += 128
        else:
            return place


def _head(header: bytes, num: int) -> bytes:
    """Return what says that a stream has so many frames: a header of it, and a frame of silence. `header`: of its first frame.

    mpg123 leaves out the decoder's delay after a header. The silence is so long that no sound is lost.
    """
    made = bytes([0xFF, header[1] | 1, _SILENT_BIT_RATE | header[2] & 0x0C, header[3] & 0xC0])
    frame = _mp3_frame(made)
    assert frame is not None
    info = made.ljust(frame.info_at, b"\0") + b"Xing" + struct.pack(">II", 1, num + 1)
    return info.ljust(frame.nbytes, b"\0") + made.ljust(frame.nbytes, b"\0")
