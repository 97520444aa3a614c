"""Treat bad samples: raise, skip or replace them; and check that labels are within the classes."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import DecodeError, IntegrityError, OptionError
from datapipe.core.printable import get_logger, printable
from datapipe.index.concat import AnyIndex
from datapipe.order.draws import key64
from datapipe.transforms import CutMix, MixUp, Recipe

MAX_ATTEMPTS = 16  # replacements tried for one bad sample before the data as a whole counts as bad
_KEPT = 1000  # reports kept for the user
_LOGGED = 20  # reports logged

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BadSample:
    """One sample that was skipped or replaced."""

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


def located(reason: DecodeError | IntegrityError, index: AnyIndex, id: int) -> DecodeError | IntegrityError:
    """Return the same error, saying which sample of which file."""
    where = index.describe(id)
    remedy = "pass on_error='skip' or 'replace', or find all of them with `datapipe convert --check decode`"
    if isinstance(reason, IntegrityError):
        return type(reason)(f"{where}: {str(reason).removeprefix(f'{printable(where.path)}: ')}")
    return DecodeError(f"{where}: {reason}; {remedy}")


def replacement_id(index: AnyIndex, *, seed: int, epoch: int, id: int, attempt: int) -> int:
    """Return the id of the sample that replaces a bad one: a function of these values alone."""
    position = int(key64(seed, epoch, id, attempt)) % len(index)
    return int(index.ids(np.array([position], np.int64))[0])


def check_classes(recipe: Recipe, labels: NDArray[np.int64], ids: NDArray[np.int64], index: AnyIndex) -> None:
    """Raise OptionError, naming a sample, if MixUp or CutMix would be given a label outside of the classes.

    On a GPU such a label would fail an assertion and end the process. `labels` and `ids`: (b,) of a batch.
    """
    for _, op in recipe.batch:
        if isinstance(op, (MixUp, CutMix)) and op.num_classes is not None:
            outside = np.flatnonzero((labels < 0) | (labels >= op.num_classes))
            if len(outside):
                row = outside[0]
                raise OptionError(
                    f"{index.describe(int(ids[row]))}: its label is {labels[row]}, and {op!r} takes 0 to {op.num_classes - 1}; "
                    "pass the dataset's number of classes"
                )
