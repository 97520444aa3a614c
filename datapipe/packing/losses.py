"""How many labels carry loss: of parts of documents, of packs, and of whole optimizer steps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from datapipe.order.draws import Ints
from datapipe.order.plan import Plan, Tail
from datapipe.packing.documents import Documents
from datapipe.packing.packs import Packs, Segments
from datapipe.packing.settings import Labels

_MAX_KNOWN = 64  # steps whose labels with loss are kept


def loss_of(index: Documents, segments: Segments, labels: Labels) -> Ints:
    """Return (s,) how many labels of each part carry loss.

    A token that follows another one of its part is a label; if labels are shifted, so is the one after the part, where the
    document goes on. If they are whole, each token is one.
    """
    goes_on = (segments.first + segments.num < segments.total) if labels == "shifted" else np.zeros(len(segments.num), np.bool_)
    begins = int(labels != "whole")  # the first token of a part that is a label
    found = segments.num - begins + goes_on
    for number, here in segments.by_shard():
        shard = index.shard(number)
        if shard.loss is None:
            continue
        begin = segments.first[here] + begins
        found[here] = shard.loss.covered(segments.document[here], begin, begin + found[here])
    return found


def losses_of(index: Documents, segments: Segments, labels: Labels, num_packs: int) -> Ints:
    """Return (num_packs,) how many labels of each pack carry loss."""
    losses = loss_of(index, segments, labels)
    return np.bincount(segments.row, weights=losses, minlength=num_packs).astype(np.int64)


@dataclass(slots=True)
class StepLosses:
    """Counts the labels with loss of the optimizer steps of one pass. Thread-safe."""

    plan: Plan
    accumulate: int  # micro-batches of an optimizer step
    packs: Sequence[Packs]  # of each field
    drawn: int | None  # the seed by which packs are drawn; None if nothing is drawn
    _known: OrderedDict[tuple[int, int], list[int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of_step(self, step: int, *, epoch: int) -> list[int]:
        """Return how many labels carry loss in all batches of the optimizer step of this one, on all ranks, bad samples included.

        There is a number for each field.
        """
        plan, number = self.plan, step // self.accumulate
        with self._lock:
            if (epoch, number) in self._known:
                return self._known[epoch, number]
        first = number * self.accumulate
        positions: list[Ints] = []
        for one in range(first, min(first + self.accumulate, plan.num_steps)):
            span = plan.span(epoch, one)
            begin = span.start - plan.rank.rank * len(span)
            here = np.arange(begin, begin + len(span) * plan.rank.world_size, dtype=np.int64)
            positions.append(here[here < span.num_samples] if plan.tail is Tail.MASK else here % span.num_samples)
        numbers = plan.order(epoch, np.concatenate(positions))
        found = [int(packs.loss(numbers, seed=self.drawn, epoch=epoch).sum()) for packs in self.packs]
        with self._lock:
            self._known[epoch, number] = found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found
