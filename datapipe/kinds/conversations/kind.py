"""Packs of conversations as a kind of data: their order, and who makes their batches."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.printable import counted
from datapipe.core.ranges import spread
from datapipe.fetch.files import Files, open_files
from datapipe.fetch.local import LocalFiles
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.explanation import TRANSFER, device_line, steps_line, threads_text
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Resources
from datapipe.kernel.mixing import Mixture
from datapipe.kernel.options import LoaderOptions, Shuffle, refuse_backend, refuse_not_served, refuse_unknown_names
from datapipe.kernel.own_process import can_be_sent
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.processes import launcher, wanted
from datapipe.kernel.row_data import order_of_rows
from datapipe.kinds.conversations.batches import ConversationMaker
from datapipe.kinds.conversations.documents import Conversations
from datapipe.kinds.conversations.placing import IMPORTS, Placer, ProcessPlacer
from datapipe.kinds.conversations.remote_placing import RemotePlacer
from datapipe.kinds.conversations.served import packed_recipe
from datapipe.kinds.conversations.settings import ConversationSettings
from datapipe.order.draws import Ints
from datapipe.order.plan import Plan
from datapipe.order.sample_order import Order
from datapipe.packing.losses import StepLosses
from datapipe.packing.packs import Packs
from datapipe.remote_workers.elsewhere import LOOKED_AT, Elsewhere
from datapipe.remote_workers.settings import workers_or_none
from datapipe.stores.settings import Remote

# Arguments of a loader that conversations do not serve, and what to do instead.
_NOT_SERVED = {
    "transform": "leave it out: the model's processor says what becomes of an image; batch_transform gets each batch",
    "sampler": "leave it out, and mix sets by weight: datapipe.mix([...], weights=[...])",
    "batch_sampler": "leave it out, and mix sets by weight: datapipe.mix([...], weights=[...])",
    "collate_fn": "leave it out: rows are packed already; batch_transform gets each batch",
}
_PACKING = {
    "best-fit": "conversations are kept whole and fitted into rows, in windows of 65,536",
    "pad": "a conversation a row, padded to the longest of its batch",
}
_LONG = {"drop": "longer ones are left out", "error": "longer ones are an error"}


class ConversationKind(Kind):
    """The packs of conversations. See `Kind`."""

    def __init__(
        self,
        documents: Conversations,
        packs: Packs,
        settings: ConversationSettings,
        *,
        mixture: Mixture | None,
        remote: Remote,
        device: Callable[[], torch.device],
    ) -> None:
        self.documents, self.packs, self.settings, self.mixture = documents, packs, settings, mixture
        self.fingerprint = documents.index.fingerprint
        self.num_samples = len(packs)
        self.num_in_epoch = len(packs) if mixture is None else sum(mixture.counts)
        what = f"{packs.kind} of {documents.digest}"
        self.identity = Identity("packs", what, "processor, length, packing, long, max_documents, labels or repack")
        self._remote = remote
        self._workers: ObjectPool[Placer] | None = None
        self.elsewhere = Elsewhere(functools.partial(_looked_at, documents))
        self.device = device  # says where batches are delivered

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        refuse_not_served(arguments, _NOT_SERVED, "conversations")
        refuse_backend(arguments, "conversations are read")
        refuse_unknown_names(options.rename, self.settings.fields)
        workers = workers_or_none(arguments.get("workers"))
        if workers is not None:
            packed_recipe(self.documents.processor, scales=False)
        if workers is not None or self.elsewhere.is_asked_for:
            self._workers = None  # how many of them decode here depends on num_workers
        self.elsewhere.use(workers)

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        settings = self.settings
        lengths = self._lengths if settings.packs.packing == "pad" else None
        cost = functools.partial(self._cost, seed if shuffle else None)
        return order_of_rows(
            self.num_samples, self.mixture, settings, seed=seed, shuffle=shuffle, global_batch=global_batch, lengths=lengths,
            cost=cost,
        )  # fmt: skip

    def _lengths(self, packs: Ints) -> Ints:
        """Return (m,) the tokens of packs."""
        return self.packs.segments(packs, seed=None, epoch=0).num

    def _cost(self, seed: int | None, epoch: int, packs: Ints) -> NDArray[np.float64]:
        """Return (m,) the work of packs, in the tower of the model that has more of it than usual."""
        costs = self.documents.costs(self.packs.segments(packs, seed=seed, epoch=epoch), len(packs))
        shares = costs / np.maximum(costs.mean(axis=1, keepdims=True), 1e-9)
        return np.asarray(shares.max(axis=0))

    @functools.cached_property
    def _files(self) -> Files:
        return open_files(self.documents.index.samples, remote=self._remote)

    def open_pass(self, settings: Pass) -> ConversationMaker:
        delivery = Delivery.to(self.device(), settings.options, settings.observer)
        processor, options = self.documents.processor, self.elsewhere.making(settings.options)
        if self._workers is None:  # for all passes: processes are costly to begin, and so is memory for pixels
            self._workers = self._open_workers(settings.options)
            self._memory = delivery.memory(processor.value if delivery.runtime is None else processor.unit, room=1)
        plan, drawn = settings.source, settings.seed if settings.options.shuffle else None
        assert isinstance(plan, Plan)
        return ConversationMaker(
            self.documents,
            self.packs,
            self.settings,
            settings,
            self._files,
            self._memory,
            delivery,
            Resources(options, self._workers, delivery.runtime),
            StepLosses(plan, self.settings.accumulate, [self.packs], drawn),
            drawn,
        )

    def _open_workers(self, options: LoaderOptions) -> ObjectPool[Placer]:
        """Return what places images, for each thread. Call it in the consumer's thread."""
        processor, files = self.documents.processor, self._files
        can_be = wanted(options.num_workers) and isinstance(files, LocalFiles) and can_be_sent(processor)
        begun = launcher(IMPORTS) if can_be else None
        scales, fleet, opened = self.settings.decode == "scaled", self.elsewhere.fleet, itertools.count()

        def make() -> Placer:
            if fleet is not None and next(opened) >= options.num_workers:  # threads beyond those that decode here
                return RemotePlacer(processor, files, fleet, scales=scales)
            if begun is None:
                return Placer(processor, files, scales=scales)
            return ProcessPlacer(processor, files, begun, scales=scales)

        return ObjectPool(make)

    def explain(self, facts: PassFacts) -> list[str]:
        settings, options, plan = self.settings, self.elsewhere.making(facts.settings.options), facts.settings.source
        assert isinstance(plan, Plan)
        packs, documents = settings.packs, self.documents
        order = "in stored order" if not options.shuffle else "shuffled in full: any row is as near as any other"
        if options.shuffle and packs.packing == "pad":
            order = "shuffled, steps of like lengths"
        if settings.balance:
            order += f"; dealt so that ranks cost alike, over {counted(settings.accumulate, 'micro-batch')}"
        lines = [
            f"data      {counted(len(documents.index), 'conversation')} in {counted(documents.num_shards, 'shard')}",
            f"rows      {counted(self.num_samples, 'row')} of {packs.length:,} tokens: {_PACKING[packs.packing]};"
            f" {_LONG[packs.long]}",
            f"images    {type(documents.processor).__name__}: units of {' x '.join(map(str, documents.processor.unit))},"
            f" decoded {'in full' if settings.decode == 'exact' else 'at twice the size that they are resized to'}",
            f"order     {order}",
            *([] if self.mixture is None else [f"mix       {self.mixture.described()}"]),
            f"seed      {facts.seed}",
            f"batch     {', '.join(settings.fields)}; labels are {packs.labels}, layout {settings.layout}",
            device_line(self.device()),
            f"backend   images decoded and placed on {threads_text(options)}; normalised where the batch is delivered",
        ]
        lines += self.elsewhere.explain("piece")
        if self.device().type != "cpu":
            lines.append(TRANSFER)
        return [*lines, steps_line(plan, "row")]


def _looked_at(documents: Conversations) -> list[str]:
    """Return some of the shards, which are compared when a loader begins."""
    return [documents.shard(number).stored.path for number in spread(documents.num_shards, LOOKED_AT)]
