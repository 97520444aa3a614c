"""Choose a loader's source of picks and its order from its arguments and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from datapipe.fetch.row_groups import max_lanes
from datapipe.fetch.shard_cache.schedule import ShardUse
from datapipe.loader.images.dataset import Dataset
from datapipe.loader.images.mixing import WeightedSampler, mixed_order
from datapipe.loader.options import LoaderOptions
from datapipe.loader.sampler_checksum import SamplerChecksum
from datapipe.loader.sources import PickSource, SampledSource
from datapipe.order.plan import Plan, Rank, Tail
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder, StoredWindowsOrder, WindowedOrder

_NUM_SHARDS = 5  # of each lane, that are needed at about the same time: a window is two long, and takes part in three
_SHARDS_NBYTES = 8 << 30  # of all lanes: on a disk, or in the memory that the kernel keeps of one


def open_source(
    dataset: Dataset,
    *,
    sampler: Iterable[int] | WeightedSampler | None,
    batch_sampler: Iterable[list[int]] | None,
    options: LoaderOptions,
    seed: int,
    rank: Rank,
    checksum: SamplerChecksum,
) -> PickSource:
    """Return the source of picks of a pass that begins now. `checksum`: the checksum of the loader's own sampler."""
    num = len(dataset)
    if batch_sampler is not None:
        return SampledSource(batch_sampler, None, rank, drop_last=False, num_samples=num, checksum=checksum)
    if sampler is not None and not isinstance(sampler, WeightedSampler):
        drop_last = options.tail is Tail.DROP
        return SampledSource(sampler, options.batch_size, rank, drop_last=drop_last, num_samples=num, checksum=checksum)
    order = _order(dataset, options, seed, rank) if sampler is None else sampler.order(seed)
    return Plan(order, options.batch_size, rank, options.tail)


def shard_uses(source: PickSource, dataset: Dataset) -> Callable[[int], list[ShardUse]] | None:
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


def _lanes_of(shard_nbytes: int) -> int:
    """Lanes of windows of shards. The same on every machine, as orders depend on it."""
    return max(1, _SHARDS_NBYTES // (_NUM_SHARDS * max(1, shard_nbytes)))


def _order(dataset: Dataset, options: LoaderOptions, seed: int, rank: Rank) -> Order:
    if dataset.mixture is not None:
        return mixed_order(dataset.mixture, seed=seed, shuffle=options.shuffle)
    if not options.shuffle:
        return SequentialOrder(len(dataset))
    global_batch = options.batch_size * rank.world_size
    if options.shuffle == "windows":
        stored = dataset.stored_order()
        windows = WindowedOrder(stored.starts, seed, global_batch, max_lanes=_lanes_of(stored.nbytes))
        return StoredWindowsOrder(windows, stored.positions_of)
    grouping = dataset.index.row_grouping([spec.name for spec in dataset.fields.stored])
    if grouping is None:
        return ShuffledOrder(len(dataset), seed)
    return WindowedOrder(grouping.starts, seed, global_batch, max_lanes=max_lanes(grouping.nbytes))
