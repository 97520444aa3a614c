"""Open the passes of a loader of samples: in which order, by which maker, and from which place the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from datapipe.core.errors import OptionError
from datapipe.core.observe import Observer, null_observer
from datapipe.fetch.files import Files
from datapipe.fetch.remote import RemoteFiles
from datapipe.fetch.row_groups import max_lanes
from datapipe.fetch.shard_cache.schedule import Schedule, ShardUse
from datapipe.kernel.accelerators import runtime_of
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.samplers import SampledSource, SamplerChecksum, WeightedSampler
from datapipe.kernel.state import LoaderProgress, LoaderState
from datapipe.kernel.tasks import Steps
from datapipe.kinds.images.assembly import assemble
from datapipe.kinds.images.batches import SampleBatchMaker
from datapipe.kinds.images.cache.locations import CacheOptions
from datapipe.kinds.images.choice import BackendRequest, Choice
from datapipe.kinds.images.dataset import Dataset, mixed_order
from datapipe.kinds.images.device_images import DeviceImages, check_recipe
from datapipe.kinds.images.evidence import DataEvidence, check_sizes
from datapipe.kinds.images.kept_images import KeptImages
from datapipe.order.plan import Plan, Tail
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder, StoredWindowsOrder, WindowedOrder
from datapipe.transforms import Recipe

_NUM_SHARDS = 5  # of each lane, that are needed at about the same time: a window is two long, and takes part in three
_SHARDS_NBYTES = 8 << 30  # of all lanes: on a disk, or in the memory that the kernel keeps of one


class SamplePasses:
    """The passes over `dataset`, one after the other. What they share is made when the first one needs it.

    Iterators refer to this, not to the loader. All calls come from the consumer's thread. `configure` must be called first.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        files: Files,
        recipe: Recipe,
        progress: LoaderProgress,
        cache: CacheOptions | None,
        device: Callable[[], torch.device],
        open_loader: Callable[..., Any],
    ) -> None:
        self.dataset = dataset
        self.files = files
        self.progress = progress
        self.bad_samples = BadSampleLog()
        self.observer: Observer = null_observer
        self._recipe = recipe
        self._cache = cache
        self._device = device
        self._open_loader = open_loader  # makes a loader from arguments, for measuring backends
        self._checksum = SamplerChecksum()
        self._kept: KeptImages | None = None
        self._device_images: DeviceImages | None = None
        self._followed_seed: int | None = None  # of the order by which a cache of shards fetches and evicts
        self._latest: Plan | SampledSource | None = None  # the source of the latest pass; another one may draw by other weights

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError, and changes nothing, if they do not fit."""
        recipe, has_image, has_collate_fn = self._recipe, self.dataset.fields.has_image, options.collate_fn is not None
        stored_size = self.dataset.index.manifest.image_size
        makes_batches = not has_collate_fn and (options.batch_size > 1 or arguments["batch_sampler"] is not None)
        if has_image and makes_batches and not recipe.rest:
            check_sizes(recipe, stored_size, index=self.dataset.index, files=self.files)
        if recipe.batch and has_collate_fn:
            raise OptionError(f"{recipe.batch[0][1]!r} mixes finished batches, and collate_fn would have to make them")
        if self._is_cached_on_device:
            check_recipe(recipe, stored_size)
            if has_collate_fn:
                raise OptionError("cache='gpu': collate_fn takes samples in host memory; pass a batch_transform, or cache='ram'")
        request = BackendRequest(
            arguments["backend"],
            recipe.split_front()[0] if self._is_cached_on_device else recipe,
            stored_size,
            has_collate_fn=has_collate_fn,
            has_image=has_image,
            has_cache=self._cache is not None and not self._is_cached_on_device,
        )
        self._arguments, self._options, self._request = arguments, options, request
        self._choice: Choice | None = None
        self._maker: SampleBatchMaker | None = None

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        self.observer, self._maker = observer, None

    def num_steps(self) -> int:
        """Return the steps of a whole epoch on this rank."""
        return self.source().num_steps

    def begin(self) -> tuple[SampleBatchMaker, Steps]:
        """Return the maker and the steps of a pass that begins now."""
        seed = self.progress.seed.settle(self.progress.rank, self.dataset.index.fingerprint)
        self._latest = self.source(seed)
        maker = self.batch_maker(seed)
        if isinstance(self.files, RemoteFiles) and self._followed_seed != seed:
            uses_of = shard_uses(self._latest, self.dataset)
            if uses_of is not None:
                self.files.follow(Schedule(uses_of, num_ahead=maker.options.depth))
                self._followed_seed = seed
        return maker, self._latest.steps

    def source(self, seed: int = 0) -> Plan | SampledSource:
        """Return the source of picks for a pass with that seed, beginning now; their number depends on no seed."""
        sampler, batch_sampler = self._arguments["sampler"], self._arguments["batch_sampler"]
        options, rank, num, checksum = self._options, self.progress.rank, len(self.dataset), self._checksum
        if batch_sampler is not None:
            return SampledSource(batch_sampler, None, rank, drop_last=False, num_samples=num, checksum=checksum)
        if sampler is not None and not isinstance(sampler, WeightedSampler):
            drop_last = options.tail is Tail.DROP
            return SampledSource(sampler, options.batch_size, rank, drop_last=drop_last, num_samples=num, checksum=checksum)
        order = self._order(seed, options.batch_size * rank.world_size) if sampler is None else sampler.order(seed)
        return Plan(order, options.batch_size, rank, options.tail)

    def _order(self, seed: int, global_batch: int) -> Order:
        dataset, shuffle = self.dataset, self._options.shuffle
        if dataset.mixture is not None:
            return mixed_order(dataset.mixture, seed=seed, shuffle=shuffle)
        if not shuffle:
            return SequentialOrder(len(dataset))
        if shuffle == "windows":
            stored = dataset.stored_order()
            # The same on every machine, as orders depend on it.
            lanes = max(1, _SHARDS_NBYTES // (_NUM_SHARDS * max(1, stored.nbytes)))
            return StoredWindowsOrder(WindowedOrder(stored.starts, seed, global_batch, max_lanes=lanes), stored.positions_of)
        grouping = dataset.index.row_grouping([spec.name for spec in dataset.fields.stored])
        if grouping is None:
            return ShuffledOrder(len(dataset), seed)
        return WindowedOrder(grouping.starts, seed, global_batch, max_lanes=max_lanes(grouping.nbytes))

    @property
    def choice(self) -> Choice:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring."""
        if self._choice is None:
            self._choice = self._request.choose(self._device(), self.evidence())
        return self._choice

    def evidence(self) -> DataEvidence:
        """Return the facts on which a choice under "auto" is based: the data, and the rates of the backends here."""
        arguments = self._arguments
        if self._is_cached_on_device:  # its backend makes what is kept
            arguments = {**arguments, "transform": self._recipe.split_front()[0]}
        return DataEvidence(self.dataset.index, self.files, arguments, self._options, self._device(), self._open_loader)

    def batch_maker(self, seed: int = 0) -> SampleBatchMaker:
        """Return the batch maker with that seed; decoders and memory are shared by all seeds."""
        if self._maker is None:
            self._maker = assemble(
                self.choice,
                dataset=self.dataset,
                recipe=self._recipe,
                options=self._options,
                seed=seed,
                rank=self.progress.rank,
                files=self.files,
                observer=self.observer,
                bad_samples=self.bad_samples,
                memory_format=self._arguments["memory_format"],
                kept=self.kept_images(),
                device_images=self.device_images(),
            )
        if self._maker.seed != seed:
            self._maker = self._maker.with_seed(seed)
        return self._maker

    def kept_images(self) -> KeptImages | None:
        """Return the cache in memory or on a disk, which the first call opens; None: there is none.

        Raises StorageError if it cannot be opened.
        """
        if self._kept is None and self._cache is not None and not self._is_cached_on_device:
            self._kept = KeptImages.of(self._cache, self.dataset.index, self._recipe)
        return self._kept

    def device_images(self) -> DeviceImages | None:
        """Return the cache on the device, which the first call opens; None: there is none.

        Raises OptionError for one that is too small.
        """
        if self._device_images is None and self._cache is not None and self._is_cached_on_device:
            runtime = runtime_of(self._device())
            self._device_images = DeviceImages(
                self._recipe,
                check_recipe(self._recipe, self.dataset.index.manifest.image_size),
                num_samples=len(self.dataset),
                nbytes=self._cache.nbytes,
                runtime=runtime,
                stream=runtime.new_stream(),
            )
        return self._device_images

    def cache(self) -> KeptImages | DeviceImages | None:
        """Return the cache, wherever it is, which the first call opens; None: there is none."""
        return self.device_images() if self._is_cached_on_device else self.kept_images()

    @property
    def _is_cached_on_device(self) -> bool:
        return self._cache is not None and self._cache.place == "gpu"

    def state(self) -> LoaderState:
        """Return the place after the last batch delivered."""
        source, num, tail = self._latest or self.source(), len(self.dataset), self._options.tail
        if isinstance(source, Plan):
            return self.progress.state(global_batch=source.global_batch, order=source.order.kind, num_samples=num, tail=tail)
        trail = self._checksum.at(self.progress.epochs.last)
        return self.progress.state(global_batch=source.global_batch, order="sampler", num_samples=num, tail=tail, trail=trail)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved state with the next pass. Raises StateError for one that would not be continued exactly."""
        cursor = self.state().cursor_from(state)
        self.source().check(cursor)
        self.progress.resume(cursor, state)
        self._checksum.resume(cursor, str(state.get("trail", "")))
        self._latest = None


def shard_uses(source: Plan | SampledSource, dataset: Dataset) -> Callable[[int], list[ShardUse]] | None:
    """Return what says when this rank needs which shard in an epoch; None where that is not known beforehand."""
    if not isinstance(source, Plan) or not isinstance(source.order, StoredWindowsOrder):
        return None
    windows, stored = source.order.windows, dataset.stored_order()
    lanes = {*windows.lanes_of(source.rank.rank, source.rank.world_size), windows.num_lanes}

    def uses_of(epoch: int) -> list[ShardUse]:
        uses = [use for use in windows.uses(epoch) if use.lane in lanes]
        urls = stored.shard_of(np.array([use.group for use in uses], np.int64))
        return [ShardUse(url, use.first_step, use.last_step) for url, use in zip(urls, uses, strict=True)]

    return uses_of
