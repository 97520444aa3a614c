"""Read stretches of sound as rows of samples, at one rate and with so many channels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from datapipe.codecs.audio.decoding import Floats
from datapipe.codecs.audio.resampling import Span, read_samples
from datapipe.core.regular_files import bytes_in_memory, range_in_memory
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.fetch.local import open_sample
from datapipe.index.media import MediaSource, extents_of_sources
from datapipe.kernel.kind import Reason
from datapipe.stores.location import is_url


class Stretch(NamedTuple):
    """A stretch of an utterance."""

    source: MediaSource  # the recording
    span: Span  # the utterance
    first: int  # sample of it, at the wanted rate
    num: int


class SoundReader:
    """Reads for one thread. `rate`: of samples, in Hz. `files`: read recordings in stores."""

    def __init__(self, rate: int, files: Files) -> None:
        self._rate, self._files = rate, files

    def read(self, out: torch.Tensor, stretches: Sequence[Stretch]) -> dict[int, Reason]:
        """Write stretches into the rows of `out`, float32 (k, channels, samples), and zeros after them.

        Returns why rows are bad, by their numbers. Raises MissingDataError and StorageError.
        """
        bad: dict[int, Reason] = {}
        for row, stretch in enumerate(stretches):
            target = out[row].numpy()
            try:
                self._read(stretch, target[:, : stretch.num])
            except (DecodeError, IntegrityError) as exc:
                bad[row] = exc
            target[:, stretch.num :] = 0
        return bad

    def _read(self, stretch: Stretch, out: Floats) -> None:
        descriptor = self._opened(stretch.source)
        try:
            read_samples(descriptor, stretch.span, stretch.first, out, rate=self._rate)
        finally:
            os.close(descriptor)

    def _opened(self, source: MediaSource) -> int:
        """Return a descriptor of a recording, or of a copy in memory where it lies in a store or is part of a file."""
        if is_url(source.path):
            return bytes_in_memory(self._files.read(extents_of_sources([source]), 0))
        descriptor, _ = open_sample(source.path)
        if not source.start:
            return descriptor
        try:
            return range_in_memory(descriptor, source.start, source.nbytes)
        finally:
            os.close(descriptor)
