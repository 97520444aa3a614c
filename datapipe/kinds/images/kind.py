"""Samples, mostly images, as a kind of data: their order, and who makes their batches."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from datapipe.errors import OptionError
from datapipe.fetch.files import Files
from datapipe.fetch.remote import RemoteFiles, StoreFacts
from datapipe.fetch.row_groups import max_lanes
from datapipe.fetch.shard_cache.schedule import Schedule, ShardUse
from datapipe.kernel.accelerators import runtime_of
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Source
from datapipe.kernel.mixing import mixed_order
from datapipe.kernel.options import LoaderOptions, Shuffle
from datapipe.kernel.samplers import WeightedSampler
from datapipe.kinds.images.assembly import assemble
from datapipe.kinds.images.batches import SampleBatchMaker
from datapipe.kinds.images.buckets import BucketPlan
from datapipe.kinds.images.choice import BackendRequest, Choice, asks_for_dali
from datapipe.kinds.images.device_images import DeviceImages, check_recipe
from datapipe.kinds.images.evidence import DataEvidence, check_sizes
from datapipe.kinds.images.explanation import explain
from datapipe.kinds.images.kept_images import CacheStats, KeptImages
from datapipe.kinds.images.remote_blocks import looked_at, refuse_unserved
from datapipe.kinds.images.samples import BatchSamples
from datapipe.order.plan import Plan
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder, StoredWindowsOrder, WindowedOrder
from datapipe.remote_workers.elsewhere import Elsewhere
from datapipe.remote_workers.settings import workers_or_none
from datapipe.transforms import Recipe

_NUM_SHARDS = 5  # of each lane, that are needed at about the same time: a window is two long, and takes part in three
_SHARDS_NBYTES = 8 << 30  # of all lanes: on a disk, or in the memory that the kernel keeps of one


class ImageKind(Kind):
    """Samples under a recipe. What its passes share is made when the first one needs it. See `Kind`.

    `open_measured`: opens a loader of their images and labels, by its options, to measure backends.
    """

    def __init__(
        self,
        samples: BatchSamples,
        *,
        files: Files,
        recipe: Recipe,
        device: Callable[[], torch.device],
        open_measured: Callable[..., Any],
        plan: BucketPlan | None,
    ) -> None:
        self.samples, self.files, self.recipe, self.plan = samples, files, recipe, plan
        self.fingerprint, self.num_samples = samples.index.fingerprint, len(samples)
        self.former_fingerprint = samples.index.former_fingerprint
        self.num_in_epoch = len(samples) if samples.mixture is None else sum(samples.mixture.counts)
        if plan is not None:
            self.identity = Identity("buckets", hashlib.sha256(plan.buckets.name.encode()).hexdigest()[:16], "buckets")
            self.num_in_epoch = int(plan.counts.sum())
        self._cache = samples.settings.cache
        self._device = device
        self._open_measured = open_measured
        self.elsewhere = Elsewhere(functools.partial(looked_at, samples))
        self._followed_seed: int | None = None  # of the order by which a cache of shards fetches and evicts

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError, and changes nothing, if they do not fit."""
        recipe, has_image, has_collate_fn = self.recipe, self.samples.fields.has_image, options.collate_fn is not None
        self.samples.fields.check_rename(options.rename)
        sampler, mixture = arguments["sampler"], self.samples.mixture
        if isinstance(sampler, WeightedSampler):
            if mixture is not None:
                raise OptionError("a WeightedSampler and a dataset of mix() or repeat() both say how often samples come; use one")
            sampler.check_fits(self.num_samples, self.samples.index.where)
        stored_size = self.samples.index.manifest.image_size
        makes_batches = not has_collate_fn and (options.batch_size > 1 or arguments["batch_sampler"] is not None)
        if self.plan is not None and isinstance(sampler, WeightedSampler):
            raise OptionError("a WeightedSampler draws images of all buckets, and a batch has those of one; leave one out")
        if has_image and makes_batches and not recipe.rest and self.plan is None:
            check_sizes(recipe, stored_size, index=self.samples.index, files=self.files)
        if recipe.batch and has_collate_fn:
            raise OptionError(f"{recipe.batch[0][1]!r} mixes finished batches, and collate_fn would have to make them")
        if self._cache is not None and self.samples.settings.decode == "scaled" and not recipe.split_front()[0].geometry:
            raise OptionError(
                "cache would keep whole images, as the transforms begin with what draws, and decode='scaled' decodes none of "
                "them in full; begin with a Resize, or leave out cache or decode"
            )
        if self._is_cached_on_device:
            check_recipe(recipe, stored_size)
            if has_collate_fn:
                raise OptionError("cache='gpu': collate_fn takes samples in host memory; pass a batch_transform, or cache='ram'")
        workers = workers_or_none(arguments.get("workers"))
        if workers is not None:
            refuse_unserved(self.samples, recipe)
            if asks_for_dali(arguments["backend"]):
                raise OptionError("backend='dali' decodes here, and workers= elsewhere; leave one of them out")
        request = BackendRequest(
            arguments["backend"],
            recipe.split_front()[0] if self._is_cached_on_device else recipe,
            stored_size,
            has_collate_fn=has_collate_fn,
            has_image=has_image,
            has_cache=self._cache is not None and not self._is_cached_on_device,
            decode=self.samples.settings.decode,
        )
        self.elsewhere.use(workers)
        self._arguments, self._options, self._request = arguments, options, request
        self._choice: Choice | None = None
        self._maker: SampleBatchMaker | None = None

    def check_unchanged(self) -> None:
        self.samples.samples.check_unchanged()

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        samples, plan = self.samples, self.plan
        if plan is not None:
            batch_size, tail = self._options.batch_size, self._options.tail
            num_ranks = global_batch // batch_size
            return plan.order(seed, batch_size=batch_size, num_ranks=num_ranks, tail=tail, shuffle=shuffle is not False)
        if samples.mixture is not None:
            return mixed_order(samples.mixture, seed=seed, shuffle=shuffle)
        if not shuffle:
            return SequentialOrder(len(samples))
        if shuffle == "windows":
            stored = samples.stored_order
            # The same on every machine, as orders depend on it.
            lanes = max(1, _SHARDS_NBYTES // (_NUM_SHARDS * max(1, stored.nbytes)))
            return StoredWindowsOrder(WindowedOrder(stored.starts, seed, global_batch, max_lanes=lanes), stored.positions_of)
        grouping = samples.index.row_grouping([spec.name for spec in samples.fields.stored])
        if grouping is None:
            return ShuffledOrder(len(samples), seed)
        return WindowedOrder(grouping.starts, seed, global_batch, max_lanes=max_lanes(grouping.nbytes))

    def open_pass(self, settings: Pass) -> SampleBatchMaker:
        maker = self.batch_maker(settings)
        if isinstance(self.files, RemoteFiles) and self._followed_seed != settings.seed:
            uses_of = shard_uses(settings.source, self.samples)
            if uses_of is not None:
                self.files.follow(Schedule(uses_of, num_ahead=maker.resources.options.depth))
                self._followed_seed = settings.seed
        return maker

    def batch_maker(self, settings: Pass) -> SampleBatchMaker:
        """Return the maker of such a pass; decoders and memory are shared by all passes of one observer."""
        if self._maker is None or self._maker.settings.observer is not settings.observer:
            self._maker = assemble(
                self.choice,
                settings,
                samples=self.samples,
                recipe=self.recipe,
                files=self.files,
                kept=self.kept_images,
                device_images=self.device_images,
                fleet=self.elsewhere.fleet,
                plan=self.plan,
            )
        self._maker = self._maker.with_settings(settings)
        return self._maker

    def decoder_device(self, settings: Pass) -> str:
        """Return where images are decoded, according to DALI's graph: "gpu" or "cpu". Builds the graph if necessary.

        Raises BackendError if DALI cannot build it.
        """
        stage = self.batch_maker(settings).dali
        return "cpu" if stage is None else stage.decoder_device()

    def store_facts(self) -> StoreFacts | None:
        """Return how samples are read from an object store at this moment; None for other data."""
        return self.files.facts() if isinstance(self.files, RemoteFiles) else None

    def explain(self, facts: PassFacts) -> list[str]:
        return explain(
            facts,
            choice=self.choice,
            samples=self.samples,
            recipe=self.recipe,
            files=self.files,
            cache=self.cache,
            elsewhere=self.elsewhere,
            plan=self.plan,
            decodes_on=lambda: self.decoder_device(facts.settings),
        )

    @property
    def choice(self) -> Choice:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring."""
        if self._choice is None:
            if self.elsewhere.is_asked_for:
                self._choice = Choice(self._device(), None, "workers on other machines decode with this one")
            else:
                self._choice = self._request.choose(self._device(), self.evidence())
        return self._choice

    def evidence(self) -> DataEvidence:
        """Return the facts on which a choice under "auto" is based: the data, and the rates of the backends here."""
        # On the device the backend makes what is kept.
        recipe = self.recipe.split_front()[0] if self._is_cached_on_device else self.recipe
        return DataEvidence(self.samples, self.files, recipe, self._arguments, self._options, self._device(), self._open_measured)

    @functools.cached_property
    def kept_images(self) -> KeptImages | None:
        """The cache in memory or on a disk, opened here; None: there is none. Raises StorageError if it cannot be opened."""
        if self._cache is None or self._is_cached_on_device:
            return None
        return KeptImages.of(self._cache, self.samples.index, self.recipe, self.samples.settings.decode)

    @functools.cached_property
    def device_images(self) -> DeviceImages | None:
        """The cache on the device, opened here; None: there is none. Raises OptionError for one that is too small."""
        if self._cache is None or not self._is_cached_on_device:
            return None
        runtime = runtime_of(self._device())
        return DeviceImages(
            self.recipe,
            check_recipe(self.recipe, self.samples.index.manifest.image_size),
            num_samples=len(self.samples),
            nbytes=self._cache.nbytes,
            runtime=runtime,
            stream=runtime.new_stream(),
        )

    @property
    def cache(self) -> KeptImages | DeviceImages | None:
        """The cache, wherever it is; None: there is none."""
        return self.device_images if self._is_cached_on_device else self.kept_images

    @property
    def cache_stats(self) -> CacheStats | None:
        return None if self.cache is None else self.cache.stats()

    @property
    def _is_cached_on_device(self) -> bool:
        return self._cache is not None and self._cache.where == "gpu"


def shard_uses(source: Source, samples: BatchSamples) -> Callable[[int], list[ShardUse]] | None:
    """Return what says when this rank needs which shard in an epoch; None where that is not known beforehand."""
    if not isinstance(source, Plan) or not isinstance(source.order, StoredWindowsOrder):
        return None
    windows, stored = source.order.windows, samples.stored_order
    lanes = {*windows.lanes_of(source.rank.rank, source.rank.world_size), windows.num_lanes}

    def uses_of(epoch: int) -> list[ShardUse]:
        uses = [use for use in windows.uses(epoch) if use.lane in lanes]
        urls = stored.shard_of(np.array([use.group for use in uses], np.int64))
        return [ShardUse(url, use.first_step, use.last_step) for url, use in zip(urls, uses, strict=True)]

    return uses_of
