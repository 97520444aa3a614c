"""One source file to one sample: read, looked at, stored as asked; or found bad, with a reason."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from converters.options import Check, Encode, Resize
from converters.planning import PlannedSample
from converters.transcode import decoder, transcode
from converters.writers import IMAGE_FIELD, StoredField, StoredSample
from datapipe.errors import DecodeError, IntegrityError
from datapipe.probe import ImageHeader, probe

MAX_FILE_NBYTES = 1 << 30  # a sample is held in memory; above it a file is bad, not read
_OPEN_AHEAD = 16  # files opened before their turn, so that the disk reads them meanwhile
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe put in a file's place must not block


@dataclass(frozen=True, slots=True)
class Treatment:
    """How every sample of a conversion is looked at and stored."""

    check: Check
    resize: Resize | None
    encode: Encode


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that is left out."""

    planned: PlannedSample
    reason: str
    data: bytes | None  # None where the file could not be read


def read_samples(
    root: bytes, planned: Iterable[PlannedSample], treatment: Treatment
) -> Iterator[tuple[PlannedSample, StoredSample | BadSample]]:
    """The samples of a shard, in order, each with what was planned for it.

    Raises IntegrityError if a file is no longer what the plan saw.
    """
    for sample, opened in _open_ahead(root, planned):
        if isinstance(opened, str):
            yield sample, BadSample(sample, opened, None)
            continue
        try:
            data = _read(opened, sample, root)
        except OSError as exc:
            yield sample, BadSample(sample, f"cannot be read: {exc.strerror}", None)
            continue
        finally:
            os.close(opened)
        if data is None:
            yield sample, BadSample(sample, f"{sample.nbytes} bytes exceed the limit of {MAX_FILE_NBYTES} for one sample", None)
            continue
        try:
            stored, header = _examine(data, treatment)
        except DecodeError as exc:
            yield sample, BadSample(sample, str(exc), data)
        else:
            fields = {IMAGE_FIELD.name: StoredField(header.encoding, stored)}
            yield sample, StoredSample(sample.id, sample.source, sample.label, (header.height, header.width), fields)


def _open_ahead(root: bytes, planned: Iterable[PlannedSample]) -> Iterator[tuple[PlannedSample, int | str]]:
    """Each sample with its open file, or the reason why there is none. The receiver closes."""
    waiting: deque[tuple[PlannedSample, int | str]] = deque()
    try:
        for sample in planned:
            waiting.append((sample, sample.problem or _open(root, sample)))
            if len(waiting) > _OPEN_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, opened in waiting:
            if isinstance(opened, int):
                os.close(opened)


def _open(root: bytes, sample: PlannedSample) -> int | str:
    path = root + b"/" + sample.source
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError as exc:
        raise IntegrityError(f"{os.fsdecode(path)}: is gone since the source was listed; {_CHANGED}") from exc
    except OSError as exc:
        return f"cannot be opened: {exc.strerror}"
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    return descriptor


_CHANGED = "restore it, or delete the destination's .building folder and convert again"


def _read(descriptor: int, sample: PlannedSample, root: bytes) -> bytes | None:
    """The whole file; None if it is too large. Raises IntegrityError if it is not as planned."""
    status = os.fstat(descriptor)
    if (status.st_size, status.st_mtime_ns) != (sample.nbytes, sample.mtime_ns) or not stat.S_ISREG(status.st_mode):
        raise IntegrityError(f"{os.fsdecode(root + b'/' + sample.source)}: changed since the source was listed; {_CHANGED}")
    if sample.nbytes > MAX_FILE_NBYTES:
        return None
    data = os.read(descriptor, sample.nbytes)
    while len(data) < sample.nbytes:  # network file systems may hand out less at a time
        more = os.read(descriptor, sample.nbytes - len(data))
        if not more:
            raise IntegrityError(f"{os.fsdecode(root + b'/' + sample.source)}: became shorter while it was read; {_CHANGED}")
        data += more
    return data


def _examine(data: bytes, treatment: Treatment) -> tuple[bytes, ImageHeader]:
    header = probe(data)
    if not header.complete:
        raise DecodeError(f"{header.encoding} of {len(data)} bytes is cut off: its end marker is missing")
    stored, stored_header = transcode(data, header, resize=treatment.resize, encode=treatment.encode)
    if treatment.check is Check.DECODE and stored is data:
        decoder("pillow")(data, header)  # the strictest: what passes here passes wherever it is loaded
    return stored, stored_header
