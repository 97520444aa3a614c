"""A torch DataLoader whose place in an epoch can be saved: for datasets that only their own code can read.

torch's workers, collation and pinning are used as they are. What is ours is the batch sampler: it begins where a saved
state says, and notes the place behind every batch that is handed out.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import DistributedSampler

from datapipe.adapt.arguments import length_of, sampler_of
from datapipe.adapt.deferral.dataset import DeferringDataset
from datapipe.adapt.deferral.reports import DeliveringCollate, Tally
from datapipe.adapt.deferral.taking import WorkerStart, request_of_keys
from datapipe.adapt.explaining import lines_about, lines_about_rows
from datapipe.adapt.loaders import TorchsLoader, made_again
from datapipe.adapt.sample_dataset import SampleDataset
from datapipe.adapt.tensor_rows import WHOLE_BATCHES, TensorRows
from datapipe.adapt.torch_iteration import TorchIterator, Walk
from datapipe.core.errors import OptionError
from datapipe.loader.attributes import FIXED, SETTABLE
from datapipe.loader.iteration import Epochs
from datapipe.loader.policy import BadSample
from datapipe.loader.ranks import is_of_group
from datapipe.loader.seeding import Seed, SeedSource
from datapipe.loader.sources import SampledSource
from datapipe.loader.stand_ins import OwnBatches
from datapipe.loader.state import LoaderState
from datapipe.loader.trail import Trail
from datapipe.order.plan import Cursor, Picks, Plan, Rank
from datapipe.order.row_order import ShuffledRows
from datapipe.order.sample_order import ShuffledOrder

KeyOf = Callable[[Picks, int], Any]  # what a dataset is asked for, of a batch's picks and the seed


class KeySource(Protocol):
    """What a dataset is asked for, batch by batch."""

    @property
    def order(self) -> str:
        """Names the order in saved states."""

    @property
    def num_steps(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def keys(self, start: Cursor, seed: int, /) -> Iterator[tuple[Any, Cursor]]:
        """From `start` on; with each the place behind it."""

    @property
    def rank(self) -> Rank | None:
        """Of those that have to agree on the seed; None where nothing depends on it."""

    def check(self, cursor: Cursor, /) -> None:
        """Raise StateError where no pass could begin at `cursor`."""


@dataclass(frozen=True)
class GivenKeys:
    """What a batch sampler of the user's gives, whatever that is: lists, or a slice or dict for `__getitems__`."""

    batch_sampler: Iterable[Any]
    global_batch: int
    whose: Rank
    trail: Trail
    reseeds: bool  # whether samples are asked for with seeds
    order: str = "sampler"

    @property
    def num_steps(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    @property
    def rank(self) -> Rank | None:
        """Of those that agree on the seed of samples: where a DistributedSampler says that ranks go together."""
        if not self.reseeds:
            return None
        sampler = getattr(self.batch_sampler, "sampler", self.batch_sampler)
        if not isinstance(sampler, DistributedSampler):
            return Rank()
        together = Rank(sampler.rank, sampler.num_replicas)
        return together if is_of_group(together) else Rank()

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[Any, Cursor]]:
        first, walk = start.samples_done // self.global_batch, self.trail.begin(self.whose)
        for step, given in enumerate(self.batch_sampler):
            keys = list(given) if isinstance(given, Iterator) else given  # what can be gone through once
            after = Cursor(start.epoch, (step + 1) * self.global_batch)
            walk.add(_told_apart(keys), after)
            if step >= first:
                yield request_of_keys(keys, seed, start.epoch, step, self.whose.rank) if self.reseeds else keys, after

    def check(self, cursor: Cursor) -> None:
        """Any place may turn out to be one: only the sampler, when asked, says how far it goes."""


def _told_apart(keys: Any) -> bytes:
    if isinstance(keys, torch.Tensor | np.ndarray):  # whose repr leaves values out
        return np.asarray(keys).tobytes()
    return repr(keys).encode()


@dataclass(frozen=True)
class PickedKeys:
    """Picks, as keys of a dataset. `source`: of any seed; `key_of`: from a batch's picks to what the dataset is asked for."""

    source: Plan | SampledSource
    order: str
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
        source = self.source
        if isinstance(source, Plan) and isinstance(source.order, ShuffledOrder | ShuffledRows):
            source = dataclasses.replace(source, order=dataclasses.replace(source.order, seed=seed))
        for picks in source.steps(start):
            yield self.key_of(picks, seed), picks.after

    def check(self, cursor: Cursor) -> None:
        self.source.check(cursor)


def places_of(picks: Picks, seed: int) -> list[int]:
    """The positions of a batch, as keys of a dataset of the user's, which draws for itself."""
    return picks.positions.tolist()  # type: ignore[no-any-return]


class TorchLoader:
    """torch's batches, with epochs, `state_dict` and `load_state_dict` as `datapipe.DataLoader` has them.

    `inner`: the loader whose arguments are taken over. `dataset`: read in place of its own, if not the same. `open_source`: asked
    again for each pass what that asks for, as the dataset may have another length by then. Attributes may be assigned as with
    torch: batch_size, batch_sampler, sampler, drop_last, dataset and persistent_workers raise ValueError, others take effect
    with the next pass. Not to be shared between threads. Two passes at once are as good as with torch: not where workers
    persist. Pickles as its arguments.
    """

    def __init__(
        self,
        inner: TorchsLoader,
        *,
        dataset: Any,
        open_source: Callable[[Trail], KeySource],
        seed: SeedSource,
        fingerprint: str,
        origin: str = "",
        is_seeded: bool = True,
    ) -> None:
        self._inner = inner
        self._is_seeded = is_seeded  # whether what samples draw depends on the seed alone
        self._dataset = dataset
        self._trail = Trail()  # of a sampler of the user's
        self._open_source = open_source
        self._seed = Seed(seed)
        self._fingerprint = fingerprint
        self.origin = origin  # what was taken over, and how, for `explain`
        self._epochs = Epochs()
        self._batches = _Batches(open_source, self._trail)
        changes = WHOLE_BATCHES if isinstance(dataset, TensorRows) else {}
        self._tally = Tally()
        self._loader = made_again(inner, dataset=dataset, batch_sampler=self._batches, changes=changes)
        if isinstance(dataset, DeferringDataset):
            for name in ("collate_fn", "worker_init_fn"):
                setattr(self._loader, name, self._as_read(name, getattr(inner, name)))

    def __iter__(self) -> TorchIterator:
        return TorchIterator(self._begin, self.__len__, self._epochs, self._tally)

    def __len__(self) -> int:
        """Batches of an epoch. Raises TypeError for a sampler without a length."""
        return self._source.num_steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'TorchLoader' object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in FIXED | SETTABLE | {"generator"}:
            super().__setattr__(name, value)
            return
        if name == "in_order" and not value:
            raise OptionError("in_order=False is not available: batches come in order, which a place that can be saved needs")
        gathers = isinstance(self._dataset, TensorRows) and name in WHOLE_BATCHES
        if gathers and name == "collate_fn":
            raise OptionError("collate_fn cannot be set: batches are gathered whole; give it to torch's loader before from_torch")
        setattr(self._inner, name, value)  # torch refuses what may not change
        if not gathers:
            setattr(self._loader, name, self._as_read(name, value))

    def _as_read(self, name: str, value: Any) -> Any:
        """The value of an attribute as the loader that reads `self._dataset` has it."""
        if not isinstance(self._dataset, DeferringDataset):
            return value
        if name == "collate_fn":
            self._dataset.stacks = value is torch.utils.data.default_collate
        return {"collate_fn": DeliveringCollate, "worker_init_fn": WorkerStart}.get(name, lambda same: same)(value)

    @property
    def _source(self) -> KeySource:
        """What a pass that begins now asks for."""
        return self._open_source(self._trail)

    def __reduce__(self) -> tuple[Any, ...]:
        about = self._fingerprint, self.origin, self._is_seeded
        return _restore, (self._inner, self._dataset, self._open_source, self._seed.source, about)

    @property
    def batch_sampler(self) -> OwnBatches:
        """As long as the loader, without positions: nobody is to make a torch loader of this one."""
        return OwnBatches(self)

    @property
    def bad_samples(self) -> list[BadSample]:
        """The samples skipped or replaced as their `__getitem__` raised, the latest 1,000. Steps count from the pass's first."""
        return list(self._tally.bad.latest)

    @property
    def read_dataset(self) -> Any:
        """What torch's workers read in place of `dataset`, which is the user's."""
        return self._dataset

    @property
    def device(self) -> torch.device:
        """Where batches come: `prefetch` takes them further."""
        return torch.device("cpu")

    @property
    def seed(self) -> int | None:
        """What our part of order and augmentation depends on; None until it is drawn, when the first pass begins."""
        return self._seed.value

    @property
    def explanation(self) -> list[str]:
        """What is done by whom, line by line, for `explain`."""
        recipe = self._dataset.recipe if isinstance(self._dataset, SampleDataset) else None
        seed = [] if self._source.rank is None else [f"seed      {self._seed.describe()}"]
        if isinstance(self._dataset, TensorRows):
            return [*seed, *lines_about_rows(self._dataset)]
        deferral = self._tally.lines() if isinstance(self._dataset, DeferringDataset) and self._dataset.defers else None
        return [*seed, *lines_about(self._inner, recipe, deferral)]

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch; a sampler that has a `set_epoch` is told."""
        self._epochs.set_epoch(epoch)
        tell = getattr(sampler_of(self._inner), "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out: small, JSON-safe. Once a pass has ended: the beginning of the next epoch."""
        return self._state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there. Raises StateError for a state that this loader would not continue exactly."""
        cursor = self._state().cursor_from(state)
        self._source.check(cursor)
        self._seed.resume(state["seed"])
        self._trail.resume(cursor, str(state.get("trail", "")))
        self._epochs.resume(cursor)
        if cursor.samples_done and not self._is_seeded:
            warnings.warn(
                f"the place in the epoch is resumed, the random state is not: what {type(self._inner.dataset).__qualname__} "
                "draws for the rest of the epoch, such as crops, differs from a run that was not interrupted; leave "
                "reseed=False out",
                stacklevel=2,
            )

    def _begin(self) -> tuple[Iterator[Any], Walk]:
        """torch's iterator of a pass that begins now, and what it is asked for."""
        source = self._source
        rank = source.rank
        seed = 0 if rank is None else self._seed.settle(rank, self._fingerprint)
        start = self._epochs.claim()
        walk = self._batches.walk = Walk(source.keys(start, seed), start.epoch)
        return iter(self._loader), walk

    def _state(self) -> LoaderState:
        source = self._source
        return LoaderState(
            epoch=self._epochs.last.epoch,
            samples_done=self._epochs.last.samples_done,
            global_batch=source.global_batch,
            num_samples=_length(self._inner.dataset),
            order=source.order,
            seed=self._seed.value,
            tail="drop" if self._inner.drop_last else "pad",
            dataset=self._fingerprint,
            trail=self._trail.at(self._epochs.last),
        )


class _Batches:
    """What torch takes for a batch sampler: gives the keys of the pass that begins."""

    def __init__(self, open_source: Callable[[Trail], KeySource], trail: Trail) -> None:
        self._open_source, self._trail = open_source, trail
        self.walk = Walk(iter(()), 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.walk)

    def __len__(self) -> int:
        return self._open_source(self._trail).num_steps


def _length(dataset: Any) -> int:
    length = length_of(dataset)
    if length is None:
        raise OptionError(f"dataset is a {type(dataset).__qualname__} without a length; a place in it cannot be saved")
    return length


def _restore(
    inner: TorchsLoader,
    dataset: Any,
    open_source: Callable[[Trail], KeySource],
    seed: SeedSource,
    about: tuple[str, str, bool],
) -> TorchLoader:
    fingerprint, origin, is_seeded = about
    return TorchLoader(
        inner,
        dataset=dataset,
        open_source=open_source,
        seed=seed,
        fingerprint=fingerprint,
        origin=origin,
        is_seeded=is_seeded,
    )
