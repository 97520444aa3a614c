"""Packs of tokens as a kind of data: their order, and who makes their batches."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.printable import counted
from datapipe.fetch.files import Files, open_files
from datapipe.index.tokens import TokenIndex
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.explanation import TRANSFER, device_line, steps_line, threads_text
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Resources
from datapipe.kernel.mixing import Mixture
from datapipe.kernel.options import LoaderOptions, Shuffle, refuse_backend, refuse_not_served, refuse_unknown_names
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.row_data import order_of_rows
from datapipe.kinds.tokens.batches import TokenMaker
from datapipe.kinds.tokens.rows import FieldReader
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.order.draws import Ints
from datapipe.order.plan import Plan
from datapipe.order.sample_order import Order
from datapipe.packing.losses import StepLosses
from datapipe.packing.packs import Packs
from datapipe.stores.settings import Remote

# Arguments of a loader that tokens do not serve, and what to do instead.
_NOT_SERVED = {
    "transform": "leave it out: texts become tokens when they are converted; batch_transform gets each batch",
    "sampler": "leave it out, and mix corpora by weight: datapipe.mix([...], weights=[...])",
    "batch_sampler": "leave it out, and mix corpora by weight: datapipe.mix([...], weights=[...])",
    "collate_fn": "leave it out: rows are packed already; batch_transform gets each batch",
    "workers": "leave it out: other machines decode images, clips, sound and conversations",
}

# How `explain` says it.
_PACKING = {
    "best-fit": "documents are kept whole and fitted into rows, in windows of 65,536 documents",
    "concat": "documents one after the other, cut every row; the first cut is drawn each epoch",
    "pad": "a document a row, padded to the longest of its batch",
}
_LONG = {
    "split": "longer ones are split", "truncate": "longer ones are cut off", "drop": "longer ones are left out",
    "error": "longer ones are an error",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The documents of one field, and their packs."""

    index: TokenIndex
    packs: Packs


class TokenKind(Kind):
    """The packs of a corpus. See `Kind`."""

    block_sizes = (64, sys.maxsize)  # filling a row takes microseconds

    def __init__(
        self,
        corpora: Sequence[Corpus],
        settings: TokenSettings,
        *,
        mixture: Mixture | None,
        remote: Remote,
        device: Callable[[], torch.device],
    ) -> None:
        self.corpora, self.settings, self.mixture = corpora, settings, mixture
        self.index, packs = corpora[0].index, corpora[0].packs
        fingerprints = [one.index.fingerprint for one in corpora]
        self.fingerprint = fingerprints[0] if len(corpora) == 1 else " ".join(fingerprints)
        self.num_samples = len(packs)
        self.num_in_epoch = len(packs) if mixture is None else sum(mixture.counts)
        kinds = " with ".join(one.packs.kind for one in corpora)
        self.identity = Identity("packs", kinds, "length, packing, long, max_documents, max_tokens, labels or repack")
        self.has_free_ranks = settings.has_documents
        self._remote = remote
        self.device = device  # says where batches are delivered

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        refuse_not_served(arguments, _NOT_SERVED, "tokens")
        refuse_backend(arguments, "tokens are read")
        refuse_unknown_names(options.rename, self.settings.fields)

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        settings = self.settings
        lengths = self._lengths if settings.packs[0].packing == "pad" and not settings.has_documents else None
        cost = functools.partial(self._cost, seed if shuffle else None)
        return order_of_rows(
            self.num_samples, self.mixture, settings, seed=seed, shuffle=shuffle, global_batch=global_batch, lengths=lengths,
            cost=cost,
        )  # fmt: skip

    def _lengths(self, packs: Ints) -> Ints:
        """Return (m,) the tokens of packs, over all fields."""
        lengths = (one.packs.segments(packs, seed=None, epoch=0).num for one in self.corpora)
        return functools.reduce(np.add, lengths)

    def _cost(self, seed: int | None, epoch: int, packs: Ints) -> NDArray[np.float64]:
        """Return (m,) the cost of the attention of packs, over all fields."""
        if self.settings.has_documents:  # of all fields already
            return self.corpora[0].packs.cost(packs, seed=seed, epoch=epoch)
        return functools.reduce(np.add, (one.packs.cost(packs, seed=seed, epoch=epoch) for one in self.corpora))

    @functools.cached_property
    def _files(self) -> Files:
        return open_files(self.index.samples, remote=self._remote)

    def open_pass(self, settings: Pass) -> TokenMaker:
        delivery = Delivery.to(self.device(), settings.options, settings.observer)
        resources = Resources(settings.options, ObjectPool(object), delivery.runtime)
        samples = self.index.samples
        maps = samples is None or not samples.is_remote
        readers = [
            FieldReader(one.index, one.packs, packs, self.settings.pad, self._files, maps)
            for one, packs in zip(self.corpora, self.settings.packs, strict=True)
        ]
        plan, drawn = settings.source, settings.seed if settings.options.shuffle else None
        assert isinstance(plan, Plan)
        losses = StepLosses(plan, self.settings.accumulate, [one.packs for one in self.corpora], drawn)
        return TokenMaker(self.settings, readers, settings, delivery, resources, losses, drawn)

    def explain(self, facts: PassFacts) -> list[str]:
        index, settings, options, plan = self.index, self.settings, facts.settings.options, facts.settings.source
        assert isinstance(plan, Plan)
        packs, is_grouped = settings.packs[0], settings.has_documents
        packing, lengths = _PACKING[packs.packing], " and ".join(f"{one.length:,}" for one in settings.packs)
        if is_grouped:
            packing = f"documents of like lengths, as many as fill {packs.max_tokens:,} tokens, padding included"
        unit = "batch" if is_grouped else "row"
        long = "" if packs.packing == "concat" else f"; {_LONG[packs.long]}"
        order = "in stored order" if not options.shuffle else f"shuffled in full: any {unit} is as near as any other"
        if options.shuffle and packs.packing == "pad" and not is_grouped:
            order = "shuffled, steps of like lengths"
        if settings.balance:
            order += f"; dealt so that ranks cost alike, over {counted(settings.accumulate, 'micro-batch')}"
        lines = [
            f"data      {counted(len(index), 'document')} in {counted(index.num_shards, 'shard')}, {index.facts.dtype} ids",
            f"rows      {counted(self.num_samples, unit)} of {'up to ' * is_grouped}{lengths} tokens: {packing}{long}",
            f"order     {order}",
            f"seed      {facts.seed}",
            f"batch     {', '.join(settings.fields)}; labels are {packs.labels}, layout {settings.layout}",
            device_line(self.device()),
            f"backend   tokens read and put together on {threads_text(options)}",
        ]
        if self.device().type != "cpu":
            lines.append(TRANSFER)
        return [*lines, steps_line(plan, unit)]
