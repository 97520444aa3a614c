"""Carry what workers report about deferral, batch by batch, and add it up in the training process."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.utils.data

from datapipe.adapt.deferral.blocks import Block, collate_blocks
from datapipe.adapt.deferral.paying import Cost, Paying
from datapipe.loader.policy import BadSample, BadSampleLog


class OperationCount(NamedTuple):
    """Some images or tensors of one fetch that were made in the same way."""

    what: str  # the operations, with the places of the user's calls
    reason: str | None  # why Pillow computed them; None: datapipe's engine did
    num: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch in transit from a worker, with the report of its fetch. torch's pinning passes it through."""

    batch: Any
    operations: tuple[OperationCount, ...]
    num_samples: int
    bad: tuple[tuple[str, str], ...] = ()  # (sample, reason) of those that raised
    cost: Cost | None = None

    def pin_memory(self, device: str | None = None) -> Delivered:
        """Return the same with the batch in pinned memory; torch's pinning calls this on objects of unknown types."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


class Stopwatch(NamedTuple):
    """The CPU time of the thread that makes a batch, from the beginning of its fetch."""

    began: float
    is_plain: bool
    is_exact: bool
    is_warm: bool

    def stop(self, num_samples: int) -> Cost:
        """Return the cost until now."""
        seconds = time.thread_time() - self.began if self.is_warm else None
        return Cost(self.is_plain, self.is_exact, num_samples, seconds)


class FetchReport(NamedTuple):
    """The outcome of a fetch, for the collation that follows in the same thread."""

    operations: tuple[OperationCount, ...] = ()
    num_samples: int = 0
    blocks: Sequence[Block] = ()
    bad: tuple[tuple[str, str], ...] = ()
    make_again: Callable[[], Any] | None = None  # returns the samples with values, if some have none because blocks need none
    stopwatch: Stopwatch | None = None


class _LocalReport(threading.local):
    report = FetchReport()


_of_last_fetch = _LocalReport()


def leave_report(report: FetchReport) -> None:
    """Leave the report of a fetch for the collation that follows in the same thread."""
    _of_last_fetch.report = report


@dataclass(frozen=True, slots=True)
class DeliveringCollate:
    """The user's `collate_fn`, with the report of the fetch before it."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Delivered:
        report, _of_last_fetch.report = _of_last_fetch.report, FetchReport()
        if self.collate_fn is not torch.utils.data.default_collate:
            batch = self.collate_fn(samples)
        elif report.make_again is None:
            batch = collate_blocks(samples, report.blocks)
        else:
            try:
                batch = collate_blocks(samples, report.blocks)
                is_made = all(block.is_taken for block in report.blocks)
            except Exception:  # something read values that are not there, or raises again below
                is_made = False
            if not is_made:
                return self(report.make_again())
        cost = None if report.stopwatch is None else report.stopwatch.stop(report.num_samples)
        return Delivered(batch, report.operations, report.num_samples, report.bad, cost)


@dataclass(slots=True)
class Tally:
    """The sum of the reports of all fetches of a loader."""

    num_samples: int = 0
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    bad: BadSampleLog = field(default_factory=BadSampleLog)
    paying: Paying = field(default_factory=Paying)

    def take(self, delivered: Delivered, *, epoch: int, step: int) -> Any:
        """Add the report that came with a batch, and return the batch."""
        for where, raised in delivered.bad:
            self.bad.add(BadSample(epoch, step, -1, where, raised))
        if delivered.cost is not None:
            self.paying.take(delivered.cost)
        if delivered.cost is None or not delivered.cost.is_plain:
            self.num_samples += delivered.num_samples
        for what, reason, num in delivered.operations:
            self.counts[what, reason] = self.counts.get((what, reason), 0) + num
        return delivered.batch

    def lines(self, most: int = 8) -> list[str]:
        """Return a line for each way in which images were made, the most frequent first."""
        if not self.num_samples:
            return ["nothing seen yet: operations are listed once batches have come"]
        ranked = sorted(self.counts.items(), key=lambda item: -item[1])
        lines = []
        for (what, reason), count in ranked[:most]:
            per_sample = count / self.num_samples
            share = f"{per_sample:.0%} of samples" if per_sample <= 1 else f"{per_sample:.3g} per sample"
            lines.append(f"{share}: {what}" if reason is None else f"{share}, by Pillow: {what} ({reason})")
        if len(ranked) > most:
            lines.append(
                f"and {len(ranked) - most} more, {sum(count for _, count in ranked[most:])} of {self.num_samples} samples"
            )
        if not ranked:
            lines.append("its samples hold no JPEG images that Pillow opened inside __getitem__")
        return [*self.paying.lines(), *lines]
