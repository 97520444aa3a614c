"""Open the passes of a loader of samples: what all of them share, and the place at which the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from datapipe.backends.kept_images import KeptImages
from datapipe.core.observe import Observer, null_observer
from datapipe.fetch.cache.locations import CacheOptions
from datapipe.fetch.files import Files
from datapipe.fetch.remote import RemoteFiles
from datapipe.fetch.shard_cache.schedule import Schedule
from datapipe.loader.images.assembly import assemble
from datapipe.loader.images.batches import SampleBatchMaker
from datapipe.loader.images.caching import open_kept_images
from datapipe.loader.images.choice import BackendRequest, Choice
from datapipe.loader.images.dataset import Dataset
from datapipe.loader.images.evidence import DataEvidence
from datapipe.loader.images.ordering import open_source, shard_uses
from datapipe.loader.iteration import Epochs
from datapipe.loader.options import LoaderOptions
from datapipe.loader.policy import BadSampleLog
from datapipe.loader.ranks import resolve_rank
from datapipe.loader.sampler_checksum import SamplerChecksum
from datapipe.loader.seeding import Seed
from datapipe.loader.sources import PickSource
from datapipe.loader.state import LoaderState
from datapipe.order.plan import Plan, Rank
from datapipe.transforms import Recipe


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
        seed: Seed,
        cache: CacheOptions | None,
        device: Callable[[], torch.device],
        open_loader: Callable[..., Any],
    ) -> None:
        self.dataset = dataset
        self.files = files
        self.seed = seed
        self.epochs = Epochs()
        self.bad_samples = BadSampleLog()
        self.observer: Observer = null_observer
        self.stored_size = dataset.index.manifest.image_size
        self._recipe = recipe
        self._cache = cache
        self._device = device
        self._open_loader = open_loader  # makes a loader from arguments, for measuring backends
        self._checksum = SamplerChecksum()
        self._rank: Rank | None = None
        self._kept: KeptImages | None = None
        self._followed_seed: int | None = None  # of the order by which a cache of shards fetches and evicts
        self._latest: PickSource | None = None  # the source of the latest pass; another one may draw by other weights

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions, request: BackendRequest) -> None:
        """Use these arguments for passes that begin from now on."""
        self._arguments, self._options, self._request = arguments, options, request
        self._choice: Choice | None = None
        self._maker: SampleBatchMaker | None = None

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        self.observer, self._maker = observer, None

    @property
    def rank(self) -> Rank:
        """This process's part of an epoch, as it was when first asked for."""
        if self._rank is None:
            self._rank = self.present_rank()
        return self._rank

    def present_rank(self) -> Rank:
        """Return this process's part of an epoch as it would be resolved now."""
        return resolve_rank(self._arguments["rank"], self._arguments["world_size"])

    def num_steps(self) -> int:
        """Return the steps of a whole epoch on this rank."""
        return self.source().num_steps

    def begin(self) -> tuple[SampleBatchMaker, PickSource]:
        """Return the maker and the source of picks of a pass that begins now."""
        seed = self.seed.settle(self.rank, self.dataset.index.fingerprint)
        self._latest = self.source(seed)
        maker = self.batch_maker(seed)
        if isinstance(self.files, RemoteFiles) and self._followed_seed != seed:
            uses_of = shard_uses(self._latest, self.dataset)
            if uses_of is not None:
                self.files.follow(Schedule(uses_of, num_ahead=maker.options.depth))
                self._followed_seed = seed
        return maker, self._latest

    def source(self, seed: int = 0) -> PickSource:
        """Return the source of picks for a pass with that seed, beginning now; their number depends on no seed."""
        return open_source(
            self.dataset,
            sampler=self._arguments["sampler"],
            batch_sampler=self._arguments["batch_sampler"],
            options=self._options,
            seed=seed,
            rank=self.rank,
            checksum=self._checksum,
        )

    @property
    def choice(self) -> Choice:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring."""
        if self._choice is None:
            self._choice = self._request.choose(self._device(), self.evidence())
        return self._choice

    def evidence(self) -> DataEvidence:
        """Return the facts on which a choice under "auto" is based: the data, and the rates of the backends here."""
        return DataEvidence(self.dataset.index, self.files, self._arguments, self._options, self._device(), self._open_loader)

    def batch_maker(self, seed: int = 0) -> SampleBatchMaker:
        """Return the batch maker with that seed; decoders and memory are shared by all seeds."""
        if self._maker is None:
            self._maker = assemble(
                self.choice,
                index=self.dataset.index,
                recipe=self._recipe,
                options=self._options,
                seed=seed,
                rank=self.rank,
                files=self.files,
                observer=self.observer,
                bad_samples=self.bad_samples,
                stored_size=self.stored_size,
                fields=self.dataset.fields,
                memory_format=self._arguments["memory_format"],
                kept=self.kept_images(),
            )
        if self._maker.seed != seed:
            self._maker = self._maker.with_seed(seed)
        return self._maker

    def kept_images(self) -> KeptImages | None:
        """Return the cache, which the first call opens; None without one. Raises StorageError if it cannot be opened."""
        if self._kept is None and self._cache is not None:
            self._kept = open_kept_images(self._cache, index=self.dataset.index, recipe=self._recipe)
        return self._kept

    def state(self) -> LoaderState:
        """Return the place after the last batch delivered."""
        source, last = self._latest or self.source(), self.epochs.last
        return LoaderState(
            epoch=last.epoch,
            samples_done=last.samples_done,
            global_batch=source.global_batch,
            num_samples=len(self.dataset),
            order=source.order.kind if isinstance(source, Plan) else "sampler",
            trail="" if isinstance(source, Plan) else self._checksum.at(last),
            seed=self.seed.value,
            tail=self._options.tail.value,
            dataset=self.dataset.index.fingerprint,
        )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved state with the next pass. Raises StateError for one that would not be continued exactly."""
        cursor = self.state().cursor_from(state)
        self.source().check(cursor)
        self.seed.resume(state["seed"])
        self._checksum.resume(cursor, str(state.get("trail", "")))
        self._latest = None
        self.epochs.resume(cursor)
