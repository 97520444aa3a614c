"""What workers tell of deferral, batch by batch, and what that adds up to in the training process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.utils.data

from datapipe.adapt.deferral.blocks import Block, collate_blocks
from datapipe.loader.policy import BadSample, BadSampleLog


class Told(NamedTuple):
    """Some images or tensors of one fetch that came about in the same way."""

    what: str  # the operations, with the places of the user's calls
    reason: str | None  # why Pillow computed them; None: datapipe's engine did
    num: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch on its way from a worker, with what its fetch has to tell. Passed through by torch's pinning as it is."""

    batch: Any
    told: tuple[Told, ...]
    num_samples: int
    bad: tuple[tuple[str, str], ...] = ()  # (sample, reason) of those that raised

    def pin_memory(self, device: str | None = None) -> Delivered:
        """Return the same with the batch in pinned memory, as torch's pinning asks of objects that it does not know."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Delivered(pin_memory(self.batch, device), self.told, self.num_samples, self.bad)  # type: ignore[no-untyped-call]


class News(NamedTuple):
    """What a fetch leaves for the collation that follows in the same thread."""

    told: tuple[Told, ...] = ()
    num_samples: int = 0
    blocks: Sequence[Block] = ()
    bad: tuple[tuple[str, str], ...] = ()


class _Local(threading.local):
    news = News()


_of_last_fetch = _Local()


def tell(news: News) -> None:
    """Leave what a fetch has to tell for the collation that follows in the same thread."""
    _of_last_fetch.news = news


@dataclass(frozen=True, slots=True)
class DeliveringCollate:
    """The user's `collate_fn`, with what the fetch before it has to tell."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Delivered:
        news, _of_last_fetch.news = _of_last_fetch.news, News()
        stacks = self.collate_fn is torch.utils.data.default_collate
        batch = collate_blocks(samples, news.blocks) if stacks else self.collate_fn(samples)
        return Delivered(batch, news.told, news.num_samples, news.bad)


@dataclass(slots=True)
class Tally:
    """What all fetches of a loader told."""

    num_samples: int = 0
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    bad: BadSampleLog = field(default_factory=BadSampleLog)

    def take(self, delivered: Delivered, *, epoch: int, step: int) -> Any:
        """Add what came with a batch; return the batch."""
        for where, raised in delivered.bad:
            self.bad.add(BadSample(epoch, step, -1, where, raised))
        self.num_samples += delivered.num_samples
        for what, reason, num in delivered.told:
            self.counts[what, reason] = self.counts.get((what, reason), 0) + num
        return delivered.batch

    def lines(self, most: int = 8) -> list[str]:
        """Return a line for each way in which images came about, the most frequent first."""
        if not self.num_samples:
            return ["nothing seen yet: operations are listed once batches have come"]
        ranked = sorted(self.counts.items(), key=lambda item: -item[1])
        lines = []
        for (what, reason), count in ranked[:most]:
            share = f"{count / self.num_samples:.0%} of samples"
            lines.append(f"{share}: {what}" if reason is None else f"{share}, by Pillow: {what}: {reason}")
        if len(ranked) > most:
            lines.append(
                f"and {len(ranked) - most} more, {sum(count for _, count in ranked[most:])} of {self.num_samples} samples"
            )
        if not ranked:
            lines.append("its samples hold no JPEG images that were opened by Pillow inside __getitem__")
        return lines
