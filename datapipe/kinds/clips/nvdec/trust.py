"""Which codings the GPU's video engines may decode: those whose frames were the CPU's, so far as that was tried."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from datapipe.codecs.video.nal_units import parameter_sets
from datapipe.codecs.video.track import VideoCoding
from datapipe.core.printable import get_logger

CODECS = {"h264": "H264", "hevc": "HEVC", "av1": "AV1"}  # PyNvVideoCodec's names
_MIN_EQUAL = 8  # frames, all different, that must have come out equal
_MAX_FAILURES = 3  # in a row: one may be a file's, or the moment's
_AV1_HEADER_NBYTES = 4  # of av1C, before the sequence header

logger = get_logger(__name__)


class Colours(NamedTuple):
    """How the colours of frames are meant, which an engine does not say: FFmpeg's numbers."""

    space: int
    range: int

    @classmethod
    def of(cls, frame: Any) -> Self:
        return cls(frame.colorspace, frame.color_range)


class Trust:
    """The codings that engines were tried on, and how they did. The threads of a loader share it; what is refused stays so."""

    def __init__(self) -> None:
        self.num_frames = 0  # that engines gave, about: threads may miss each other's
        self._refused: set[VideoCoding] = set()
        self._colours: dict[VideoCoding, Colours] = {}
        self._equal: defaultdict[VideoCoding, set[int]] = defaultdict(set)  # checksums of frames that came out equal
        self._num_failures: Counter[VideoCoding] = Counter()

    def may_serve(self, coding: VideoCoding) -> bool:
        """Return False for a coding that was refused, or of which the header of the file does not say all."""
        return coding not in self._refused and _is_of_header(coding)

    def colours(self, coding: VideoCoding) -> Colours | None:
        """Return the colours of a coding that is trusted; None if it is not, or not yet."""
        if coding in self._refused or len(self._equal[coding]) < _MIN_EQUAL:
            return None
        return self._colours[coding]

    def note_equal(self, coding: VideoCoding, colours: Colours, checksums: Iterable[int]) -> None:
        """Note that frames came out as the CPU has them."""
        if self._colours.setdefault(coding, colours) != colours:
            self.refuse(coding, "files of it differ in their colours")
            return
        self._equal[coding].update(checksums)
        self._num_failures[coding] = 0

    def note_failure(self, coding: VideoCoding, why: object) -> None:
        """Refuse a coding after some failures in a row."""
        self._num_failures[coding] += 1
        if self._num_failures[coding] == _MAX_FAILURES:
            self.refuse(coding, f"an engine failed on it again and again ({why})")

    def note_served(self, coding: VideoCoding, num_frames: int) -> None:
        """Note frames that an engine gave for a run, all of those that were wanted."""
        self.num_frames += num_frames
        self._num_failures[coding] = 0

    def refuse(self, coding: VideoCoding, why: str) -> None:
        """Leave a coding to the CPU from here on, and say so once."""
        if coding not in self._refused:
            self._refused.add(coding)
            logger.warning("%s is decoded by the CPU, not by the GPU's video engines: %s", shown(coding), why)


def shown(coding: VideoCoding) -> str:
    """Return a coding for people."""
    return f"{coding.codec} of {coding.width} x {coding.height} pixels"


@functools.lru_cache(maxsize=1024)  # asked for each visit
def _is_of_header(coding: VideoCoding) -> bool:
    """Return True for a coding that the header of a file, `extradata`, says in full: frames then differ in their pixels alone."""
    if coding.codec not in CODECS or coding.changes_parameters or coding.width % 2 or coding.height % 2:
        return False
    if coding.codec == "av1":
        return len(coding.extradata) > _AV1_HEADER_NBYTES
    return bool(parameter_sets(coding.codec, coding.extradata))
