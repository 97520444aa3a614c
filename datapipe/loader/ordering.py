"""Choose a loader's source of picks and its order from its arguments and its data."""

from __future__ import annotations

from collections.abc import Iterable

from datapipe.fetch.row_groups import max_lanes
from datapipe.loader.dataset import Dataset
from datapipe.loader.mixing import WeightedSampler, mixed_order
from datapipe.loader.options import LoaderOptions
from datapipe.loader.sampler_checksum import SamplerChecksum
from datapipe.loader.sources import PickSource, SampledSource
from datapipe.order.plan import Plan, Rank, Tail
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder, WindowedOrder


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


def _order(dataset: Dataset, options: LoaderOptions, seed: int, rank: Rank) -> Order:
    if dataset.mixture is not None:
        return mixed_order(dataset.mixture, seed=seed, shuffle=options.shuffle)
    if not options.shuffle:
        return SequentialOrder(len(dataset))
    grouping = dataset.index.row_grouping([spec.name for spec in dataset.fields.stored])
    if grouping is None:
        return ShuffledOrder(len(dataset), seed)
    global_batch = options.batch_size * rank.world_size
    return WindowedOrder(grouping.starts, seed, global_batch, max_lanes=max_lanes(grouping.nbytes))
