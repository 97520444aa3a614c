"""The keys with which a Dataset is read, batch by batch, and the place after each of them; a Dataset read by keys of its own."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import DistributedSampler

from datapipe.adapt.loaders import TorchDataLoader, arguments_of, length_of, sampler_of
from datapipe.datasets import Original
from datapipe.deferral.requests import BatchRequest, request_of_keys, request_of_picks
from datapipe.fetch.local import LocalFiles
from datapipe.index.concat import AnyIndex, Repeats
from datapipe.kernel.bad_samples import located
from datapipe.kernel.ranks import is_of_group, resolve_rank
from datapipe.kernel.samplers import SampledSource, SamplerChecksum
from datapipe.kinds.images.fields import IMAGE, BatchFields
from datapipe.kinds.images.images_cpu import BlockWorker
from datapipe.order.draws import Draws, apart
from datapipe.order.plan import Cursor, Picks, Plan, Rank, Tail
from datapipe.order.row_order import ShuffledRows
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.transforms import Recipe

KeyOf = Callable[[Picks, int, Rank], Any]  # from a batch's picks, the seed and the rank to the key of the dataset


@dataclass(frozen=True)
class GivenKeys:
    """The keys that a user's batch sampler gives, of any kind: lists, or a slice or dict for `__getitems__`."""

    batch_sampler: Iterable[Any]
    global_batch: int
    own_rank: Rank
    checksum: SamplerChecksum
    reseeds: bool  # whether requests for samples carry seeds
    order: str = "sampler"  # its name in saved states

    @property
    def num_steps(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    @property
    def rank(self) -> Rank | None:
        """The rank among those that agree on the seed of samples: several if a DistributedSampler divides the samples."""
        if not self.reseeds:
            return None
        sampler = getattr(self.batch_sampler, "sampler", self.batch_sampler)
        if not isinstance(sampler, DistributedSampler):
            return Rank()
        together = Rank(sampler.rank, sampler.num_replicas)
        return together if is_of_group(together) else Rank()

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the keys from `start` on, each with the place after it."""
        first, add = start.samples_done // self.global_batch, self.checksum.begin(self.own_rank)
        for step, given in enumerate(self.batch_sampler):
            # an iterator can be read only once
            keys = list(given) if type(given) is not list and isinstance(given, Iterator) else given
            after = Cursor(start.epoch, (step + 1) * self.global_batch)
            add(_key_bytes(keys), after)
            if step >= first:
                yield request_of_keys(keys, seed, start.epoch, step, self.own_rank) if self.reseeds else keys, after

    def check(self, cursor: Cursor) -> None:
        """Accept any place: only iterating the sampler tells how far it goes."""


def _key_bytes(keys: Any) -> bytes | tuple[int, ...]:
    if type(keys) is list and keys and type(keys[0]) is int:
        return tuple(keys)
    if isinstance(keys, (torch.Tensor, np.ndarray)):  # their repr leaves values out
        return np.asarray(keys).tobytes()
    return repr(keys).encode()


@dataclass(frozen=True)
class PickedKeys:
    """Picks, as keys of a dataset. `source`: with any seed; `key_of`: from a batch's picks to the key of the dataset."""

    source: Plan | SampledSource
    order: str  # its name in saved states
    key_of: KeyOf

    @property
    def num_steps(self) -> int:
        return self.source.num_steps

    @property
    def global_batch(self) -> int:
        return self.source.global_batch

    @property
    def rank(self) -> Rank:
        return self.source.rank

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the keys from `start` on, each with the place after it."""
        source = self.source
        if isinstance(source, Plan) and isinstance(source.order, ShuffledOrder | ShuffledRows):
            source = dataclasses.replace(source, order=dataclasses.replace(source.order, seed=seed))
        for picks in source.steps(start):
            yield self.key_of(picks, seed, self.rank), picks.after

    def check(self, cursor: Cursor) -> None:
        """Raise StateError if no pass could begin at `cursor`."""
        self.source.step_at(cursor)


KeySource = GivenKeys | PickedKeys


def given_keys(checksum: SamplerChecksum, *, loader: TorchDataLoader, reseeds: bool) -> GivenKeys:
    """Return the keys of a pass that begins now, as the loader's batch sampler gives them."""
    assert loader.batch_sampler is not None
    sampler = sampler_of(loader)
    replicas = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
    global_batch = (getattr(loader.batch_sampler, "batch_size", None) or 1) * replicas
    return GivenKeys(loader.batch_sampler, global_batch, resolve_rank(), checksum, reseeds)


def picked_keys(
    checksum: SamplerChecksum,
    *,
    loader: TorchDataLoader,
    key_of: KeyOf,
    shares: bool,
    original: Original | None = None,
    shuffled: Callable[[int, int], Order] = ShuffledOrder,
) -> PickedKeys:
    """Return the keys of a pass that begins now. If the files of the dataset were seen, checks that it is unchanged."""
    if original is not None:
        original.check_unchanged()
    num_samples = length_of(loader.dataset) or 0
    arguments = arguments_of(loader, None, shares=shares)
    rank = resolve_rank(arguments.get("ranks"))
    if "batch_sampler" in arguments:
        batches = arguments["batch_sampler"]
        listed = SampledSource(batches, None, rank, drop_last=False, num_samples=num_samples, checksum=checksum)
        return PickedKeys(listed, "sampler", key_of)
    batch_size, drop_last = arguments["batch_size"], arguments["drop_last"]
    if "shuffle" in arguments:
        order = shuffled(num_samples, 0) if arguments["shuffle"] else SequentialOrder(num_samples)
        return PickedKeys(Plan(order, batch_size, rank, Tail.DROP if drop_last else Tail.PAD), order.kind, key_of)
    sampler = sampler_of(loader)
    sampled = SampledSource(sampler, batch_size, rank, drop_last=drop_last, num_samples=num_samples, checksum=checksum)
    return PickedKeys(sampled, "sampler", key_of)


def places_of(picks: Picks, seed: int, rank: Rank) -> list[int]:
    """Return the positions of a batch, as keys of a user's dataset, which draws random numbers itself."""
    return picks.positions.tolist()  # type: ignore[no-any-return]


class KeyPass:
    """One pass over the keys: iterated in the consumer's thread, as many batches ahead as torch likes."""

    def __init__(self, keys: Iterator[tuple[Any, Cursor]], epoch: int) -> None:
        self._keys = keys
        self.epoch = epoch
        self.after: deque[Cursor] = deque()  # places after the batches that are requested and not yet delivered
        self.error: Exception | None = None  # an error of the sampler, raised once the batches before it are delivered
        self.is_over = False  # no more keys will be asked for

    def __iter__(self) -> Iterator[Any]:
        try:
            for keys, cursor in self._keys:
                self.after.append(cursor)
                yield keys
        except Exception as exc:
            self.error = exc
        finally:
            self.is_over = True


# -- samples that datapipe decodes and cuts, for user's code that ends the chain of transforms ---------------


class SampleKey(NamedTuple):
    """A sample to read, and what its random crop depends on."""

    position: int
    seed: int
    epoch: int
    occurrence: int


def keys_of(picks: Picks, seed: int, rank: Rank, *, repeats: Repeats | None) -> list[SampleKey]:
    """Return the keys of a batch."""
    occurrences = np.zeros(len(picks.positions), np.int64) if picks.occurrences is None else picks.occurrences
    if repeats is not None:
        occurrences = repeats.occurrences(picks.positions, occurrences)
    pairs = zip(picks.positions.tolist(), occurrences.tolist(), strict=True)
    return [SampleKey(position, seed, picks.after.epoch, occurrence) for position, occurrence in pairs]


def request_of_samples(picks: Picks, seed: int, rank: Rank, *, repeats: Repeats | None) -> BatchRequest:
    """Return the request for a batch by `SampleKey`s, with seeds for what the user's transforms and `collate_fn` draw."""
    return request_of_picks(picks, seed, rank, keys_of(picks, seed, rank, repeats=repeats))


def handover_point(image: Any) -> Any:
    """Return the image unchanged. Marks the point in a chain of transforms from which torch's workers continue."""
    return image


class SampleDataset(torch.utils.data.Dataset[Any]):
    """(image, label) by `SampleKey`, the image as the whole recipe makes it. Opens its files and decoder in each process."""

    def __init__(self, index: AnyIndex, recipe: Recipe) -> None:
        self._index = index
        self.recipe = recipe
        self._has_label = BatchFields.of(index, None).has_label
        self._worker: BlockWorker | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleDataset, (self._index, self.recipe)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, key: SampleKey) -> tuple[Any, ...]:
        """Return a sample. Raises DecodeError, IntegrityError, StorageError, and what the user's transforms raise."""
        if self._worker is None:
            self._worker = BlockWorker(self.recipe, LocalFiles())
        ids = self._index.ids(np.array([key.position], np.int64))
        entries = self._index.look_up(ids, IMAGE)
        draws = Draws(key.seed, key.epoch, apart(ids, np.array([key.occurrence], np.int64)))
        (image,), report = self._worker.load_each(entries, range(1), draws)
        for bad in report.bad:
            raise located(bad.reason, self._index.describe(int(ids[0]))) from bad.reason
        return (image, int(entries.labels[0])) if self._has_label else (image,)
