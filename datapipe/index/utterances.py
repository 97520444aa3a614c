"""Where utterances lie: stretches of recordings, with what is said in them, or a class."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.index.arrow_buffers import strings_of
from datapipe.index.entries import Description
from datapipe.index.recordings import Ints, RecordingIndex


@dataclass(frozen=True, eq=False)
class Utterances:
    """The utterances of some recordings, by their numbers, in order. Thread-safe.

    `texts`: what is said in each, as an array of strings; None if that is not known. `named`: describes the sample of shards
    whose recording has a number; None: recordings are files, which their paths describe. `unread`: by the numbers of recordings,
    why what is said there cannot be read.
    """

    recordings: RecordingIndex
    where: str  # the recordings lie, for people
    recording: Ints  # (u,) the number of each one's recording
    first: Ints  # (u,) the frame of the recording at which it begins
    num_frames: Ints  # (u,) 0 for those that have no sound; see `problem`
    labels: Ints | None = None  # (u,)
    classes: tuple[str, ...] | None = None  # by label; None: labels are not of classes
    texts: pa.Array = None
    named: Callable[[int], Description] | None = None
    unread: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        recordings: RecordingIndex,
        recording: Ints,
        *,
        where: str,
        start: NDArray[np.float64] | None = None,
        end: NDArray[np.float64] | None = None,
        **known: Any,
    ) -> Utterances:
        """Return the utterances that begin and end at these seconds of their recordings; None: with the recording."""
        whole, rates = recordings.num_frames[recording], recordings.rates[recording]
        first = np.zeros(len(recording), np.int64) if start is None else frames_at(start, rates, whole)
        last = whole if end is None else frames_at(end, rates, whole)
        is_read = ~np.isin(recording, [*known.get("unread", ())])
        return cls(recordings, where, recording, first, np.maximum(last - first, 0) * is_read, **known)

    @classmethod
    def joined(cls, parts: Sequence[Utterances]) -> Utterances:
        """Return the utterances of several datasets, one after the other; labels and texts if all of them have such."""
        first = np.cumsum([0, *(len(part.recordings) for part in parts)], dtype=np.int64)
        labels = [part.labels for part in parts if part.labels is not None]
        texts = [part.texts for part in parts if part.texts is not None]
        return cls(
            RecordingIndex.joined([part.recordings for part in parts]),
            " + ".join(part.where for part in parts),
            np.concatenate([part.recording + number for part, number in zip(parts, first, strict=False)]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.num_frames for part in parts]),
            np.concatenate(labels) if len(labels) == len(parts) else None,
            parts[0].classes if len({part.classes for part in parts}) == 1 else None,
            pa.chunked_array(texts) if len(texts) == len(parts) else None,
            functools.partial(_described, parts, first) if any(part.named for part in parts) else None,
            {number + int(begin): why for part, begin in zip(parts, first, strict=False) for number, why in part.unread.items()},
        )

    def __len__(self) -> int:
        return len(self.recording)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A name for the utterances: a state resumes on the same ones only."""
        digest = hashlib.sha256(self.recordings.fingerprint.encode())
        for column in (self.recording, self.first, self.num_frames):
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()[:16]

    @property
    def rates(self) -> Ints:
        """The (u,) rates in Hz at which they are recorded."""
        return self.recordings.rates[self.recording]

    @functools.cached_property
    def seconds(self) -> NDArray[np.float64]:
        """The (u,) seconds of each; 0 for those that have no sound."""
        lasting: NDArray[np.float64] = self.num_frames / np.maximum(1, self.rates)
        return lasting

    def stored_nbytes(self, number: int) -> int:
        """Return the bytes that hold an utterance: of a part, its share of those of the recording."""
        recording = int(self.recording[number])
        whole = int(self.recordings.num_frames[recording])
        return int(self.recordings.nbytes[recording]) * int(self.num_frames[number]) // max(1, whole)

    def select(self, keep: NDArray[np.bool_]) -> Utterances:
        """Return some of them, in order."""
        if keep.all():
            return self
        texts = None if self.texts is None else self.texts.take(np.flatnonzero(keep))
        return replace(
            self,
            recording=self.recording[keep],
            first=self.first[keep],
            num_frames=self.num_frames[keep],
            labels=None if self.labels is None else self.labels[keep],
            texts=texts,
        )

    def texts_of(self, numbers: Sequence[int]) -> list[str]:
        """Return what is said in these."""
        return [self.texts[number].as_py() for number in numbers]

    def describe(self, number: int) -> Description:
        """Return a description of an utterance, for messages."""
        recording = int(self.recording[number])
        if self.named is not None:
            return replace(self.named(recording), id=number)
        rate = int(self.recordings.rates[recording]) or 1
        first, num = int(self.first[number]), int(self.num_frames[number])
        shown = f"{first / rate:.3f} to {(first + num) / rate:.3f} s"
        return Description(number, self.recordings.path(recording), shown.encode(), "")

    def problem(self, number: int) -> str:
        """Return why an utterance has no sound, and where it lies."""
        recording = int(self.recording[number])
        where = self.recordings.path(recording) if self.named is None else str(self.describe(number))
        found = self.unread.get(recording) or self.recordings.entry(recording).problem
        if not found:
            end = self.recordings.num_frames[recording]
            what = "has no sound, 0 samples"
            if self.first[number] >= end:
                what = f"begins after its end, at {end / self.recordings.rates[recording]:.3f} s"
            found = f"sample {number} {what}; repair the list"
        return f"{where}: {found}"


def _described(parts: Sequence[Utterances], begins: Ints, recording: int) -> Description:
    """Return the description of a recording of several datasets, of which each has its recordings from a number on."""
    part = int(np.searchsorted(begins, recording, side="right")) - 1
    one, number = parts[part], recording - int(begins[part])
    return Description(recording, one.recordings.path(number), b"", "") if one.named is None else one.named(number)


def frames_at(seconds: NDArray[np.float64], rates: Ints, whole: Ints) -> Ints:
    """Return the frames at these seconds, those after the end being the end."""
    found: Ints = np.minimum(np.where(np.isfinite(seconds), seconds, 1e9) * rates + 0.5, whole).astype(np.int64)
    return found


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an array that takes a few bytes besides theirs."""
    return strings_of([text.encode(errors="replace") for text in texts], pa.large_string())
