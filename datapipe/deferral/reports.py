"""Carry what workers report about deferral, batch by batch, and add it up in the training process."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.utils.data

from datapipe.core.printable import counted
from datapipe.deferral.blocks import Block, collate_blocks
from datapipe.deferral.paying import Cost, Paying
from datapipe.deferral.preparing import Trial, learn, taken_news
from datapipe.deferral.processor_seams import replaced_in_collation
from datapipe.deferral.requests import CollationKey, SeedNeed, SeedsSeen
from datapipe.kernel.bad_samples import BadSample, BadSampleLog
from datapipe.kernel.drawing import may_draw
from datapipe.kernel.random_state import random_state_kept, reseed


class OperationCount(NamedTuple):
    """Some images or tensors of one fetch, or of a pass, that were made in the same way."""

    what: str  # the operations, with the places of the user's calls
    reason: str | None  # why Pillow computed them; None: datapipe's engine did
    num: int
    num_samples: int  # that they belong to
    has_failed: bool = False  # whether Pillow computed them as a trial of the engine failed
    needed_by: str | None = None  # the operation for which they were made at once, with the place of the user's call

    @property
    def is_deferred(self) -> bool:
        """Whether datapipe's engine or DALI made them, when the fetch ended."""
        return self.reason is None and self.needed_by is None


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch in transit from a worker, with the report of its fetch. torch's pinning passes it through."""

    batch: Any
    operations: tuple[OperationCount, ...]
    num_samples: int
    bad: tuple[tuple[str, str], ...] = ()  # (sample, reason) of those that raised
    cost: Cost | None = None
    seeds: SeedsSeen | None = None  # what its process has seen of draws, if that is new
    trials: Mapping[Trial, str | None] | None = None  # what its process has found by trials, if that is new

    def __reduce__(self) -> tuple[Any, ...]:
        about = self.batch, self.operations, self.num_samples, self.bad, self.cost, self.seeds, self.trials
        return Delivered, about  # in a quarter of the time that dataclasses take

    def pin_memory(self, device: str | None = None) -> Delivered:
        """Return the same with the batch in pinned memory; torch's pinning calls this on objects of unknown types."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


class FetchReport(NamedTuple):
    """The outcome of a fetch, for the collation that follows in the same thread."""

    operations: tuple[OperationCount, ...] = ()
    num_samples: int = 0
    blocks: Sequence[Block] = ()
    bad: tuple[tuple[str, str], ...] = ()
    make_again: Callable[[], Any] | None = None  # returns the samples with values, if some have none because blocks need none
    cost: Cost | None = None  # its seconds are counted until the collation ends
    began: float | None = None  # the CPU time of the thread when the fetch began; None: the process was warming up
    collation: CollationKey | None = None  # for the user's collate_fn; None: leave the random state alone
    seeds: SeedsSeen | None = None


class _LocalReport(threading.local):
    report = FetchReport()


_of_last_fetch = _LocalReport()


def leave_report(report: FetchReport) -> None:
    """Leave the report of a fetch for the collation that follows in the same thread."""
    _of_last_fetch.report = report


@dataclass(frozen=True, slots=True)
class DeliveringCollate:
    """The user's `collate_fn`, with the report of the fetch before it. `draws`: whether it may draw random numbers."""

    collate_fn: Callable[[Any], Any]
    draws: bool = True

    @classmethod
    def of(cls, collate_fn: Callable[[Any], Any]) -> DeliveringCollate:
        """Return what calls `collate_fn`, in a random state of its own unless it certainly draws nothing."""
        return cls(collate_fn, may_draw(collate_fn) is not None)

    def __call__(self, samples: Any) -> Delivered:
        report, _of_last_fetch.report = _of_last_fetch.report, FetchReport()
        operations, cost = report.operations, report.cost
        if self.collate_fn is not torch.utils.data.default_collate:
            with replaced_in_collation(cost is not None and not cost.is_plain) as counts:
                batch = self._collated(samples, report.collation)
            operations += tuple(OperationCount(what, None, num, report.num_samples) for what, num in counts.items())
            if counts and cost is not None:
                cost = cost._replace(has_images=True)
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
        if cost is not None and report.began is not None:
            cost = cost._replace(seconds=time.thread_time() - report.began - cost.setup)
        return Delivered(batch, operations, report.num_samples, report.bad, cost, report.seeds, taken_news())

    def _collated(self, samples: Any, key: CollationKey | None) -> Any:
        """Call the user's function in the random state of its batch; in the training process that is restored afterwards."""
        if key is None or not self.draws:
            return self.collate_fn(samples)
        is_in_worker = torch.utils.data.get_worker_info() is not None
        with contextlib.nullcontext() if is_in_worker else random_state_kept():
            reseed(key.value)
            return self.collate_fn(samples)


@dataclass(slots=True)
class Tally:
    """The sum of the reports of the latest pass of a loader, and the bad samples of all."""

    epoch: int = -1
    num_samples: int = 0
    counts: dict[tuple[str, str | None], OperationCount] = field(default_factory=dict)
    bad: BadSampleLog = field(default_factory=BadSampleLog)
    has_warned: bool = False
    paying: Paying = field(default_factory=Paying)
    seed_need: SeedNeed = field(default_factory=SeedNeed)

    def take(self, delivered: Delivered, *, epoch: int, step: int) -> Any:
        """Add the report that came with a batch, and return the batch. Warns once of trials of the engine that failed."""
        for where, raised in delivered.bad:
            self.bad.add(BadSample(epoch, step, -1, where, raised))
        if delivered.trials is not None:
            learn(delivered.trials)
        if delivered.seeds is not None:
            self.seed_need.learn(delivered.seeds)
        if delivered.cost is not None:
            self.paying.take(delivered.cost)
        if delivered.cost is None or not delivered.cost.is_plain:
            if epoch != self.epoch:
                self.epoch, self.num_samples, self.counts = epoch, 0, {}
            self.num_samples += delivered.num_samples
        for one in delivered.operations:
            there = self.counts.get(one[:2])
            if there is not None:
                one = one._replace(num=one.num + there.num, num_samples=one.num_samples + there.num_samples)
            self.counts[one[:2]] = one
        self._warn()
        return delivered.batch

    def _warn(self) -> None:
        failed = [one for one in self.counts.values() if one.has_failed]
        if failed and not self.has_warned:
            self.has_warned = True
            ways, them = f"{counted(len(failed), 'chain')} of operations", "them" if failed[1:] else "it"
            warnings.warn(
                f"datapipe computes {ways} with Pillow, without deferring {them}, such as {failed[0].what}: {failed[0].reason}. "
                "datapipe.explain(loader) lists all of them, with the reasons",
                stacklevel=4,
            )

    def lines(self, most: int = 8) -> list[str]:
        """Return a line for each way in which images were made, the most frequent first."""
        if not self.num_samples:
            return ["nothing seen yet: operations are listed once batches have come"]
        ranked = sorted(self.counts.values(), key=lambda one: -one.num)
        if not ranked:
            return ["its samples hold no JPEG images that Pillow opened inside __getitem__"]
        lines = [f"in {counted(self.num_samples, 'sample')} that were recorded in epoch {self.epoch}:"]
        for one in ranked[:most]:
            several = f", {one.num / one.num_samples:.3g} in each" if one.num > one.num_samples else ""
            by, why = ("", "") if one.reason is None else (", by Pillow", f" ({one.reason})")
            lines.append(f"{self._share(one)} of samples{several}{by}: {one.what}{why}")
        if len(ranked) > most:
            largest = max(ranked[most:], key=lambda one: one.num_samples)
            lines.append(f"and {len(ranked) - most} more, each of them in {self._share(largest)} of samples or less")
        return lines

    def gain(self, dataset: str) -> str:
        """Return what the user can change in a Dataset of that name, so that more of it is deferred."""
        if not self.num_samples:
            return "ask again once batches have come: what can be gained depends on what its code does with its images"
        if not self.counts:
            return f"nothing by deferral: {dataset} opens no JPEGs with Pillow. `datapipe diagnose` names its slowest stage"
        left = [one for one in self.counts.values() if not one.is_deferred]
        if not left and not self.paying.runs_alone:
            return f"nothing more in {dataset}: all of its images are deferred"
        needed = [one for one in left if one.needed_by is not None]
        if self.paying.runs_alone and not needed:
            return f"nothing by deferral in {dataset}: Pillow would do the most of the work all the same"
        if needed:
            first = max(needed, key=lambda one: one.num)
            return (
                f"in {dataset}: {first.needed_by} needs values while __getitem__ runs, {self._share(first)} of samples. Return "
                "what it is given and do it in collate_fn, or write it with operations that docs/loader.md lists as deferred"
            )
        first = max(left, key=lambda one: one.num)
        return f"in {dataset}: Pillow computes {first.what}, {self._share(first)} of samples, since {first.reason}"

    def _share(self, one: OperationCount) -> str:
        return f"{min(1.0, one.num_samples / self.num_samples):.0%}"
