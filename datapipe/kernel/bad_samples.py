"""Bad samples: what is kept of them, how they are named, and what replaces them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.core.printable import get_logger, printable
from datapipe.errors import DecodeError, IntegrityError
from datapipe.index.entries import Description
from datapipe.order.draws import key64

MAX_ATTEMPTS = 16  # replacements tried for one bad sample before the data as a whole counts as bad
_KEPT = 1000  # reports kept for the user
_LOGGED = 20  # reports logged

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BadSample:
    """One sample that was skipped or replaced.

    >>> for bad in loader.bad_samples:              # of a loader with on_error="skip" or "replace"
    ...     print(bad.id, bad.reason)
    """

    epoch: int
    step: int
    id: int
    where: str  # file and sample
    reason: str


class BadSampleLog:
    """The bad samples found so far. Thread-safe; logs the first ones, counts and keeps the later ones."""

    def __init__(self) -> None:
        self.count = 0
        self.latest: deque[BadSample] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def add(self, bad: BadSample) -> None:
        with self._lock:
            self.count += 1
            self.latest.append(bad)
            count = self.count
        if count <= _LOGGED:
            logger.warning("bad sample in epoch %d, step %d: %s: %s", bad.epoch, bad.step, bad.where, bad.reason)
        if count == _LOGGED:
            logger.warning("further bad samples are not logged; see DataLoader.bad_samples")


def located(reason: DecodeError | IntegrityError, sample: Description) -> DecodeError | IntegrityError:
    """Return the same error, saying which sample of which file."""
    finding = ", or find all of them with `datapipe convert --check decode`" if sample.is_convertible else ""
    remedy = f"pass on_error='skip' or 'replace'{finding}"
    if isinstance(reason, IntegrityError):
        return type(reason)(f"{sample}: {str(reason).removeprefix(f'{printable(sample.path)}: ')}")
    return DecodeError(f"{sample}: {reason}; {remedy}")


def replacement(num_samples: int, *, seed: int, epoch: int, id: int, attempt: int) -> int:
    """Return the position of the sample that replaces a bad one: a function of these values alone."""
    return int(key64(seed, epoch, id, attempt)) % num_samples


def good_rows(num_rows: int, left_out: Collection[int]) -> slice | NDArray[np.bool_]:
    """Return, as an index, the rows of a batch that are not left out."""
    if not left_out:
        return slice(None)
    good = np.ones(num_rows, np.bool_)
    good[list(left_out)] = False
    return good
