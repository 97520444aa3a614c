"""A torch DataLoader whose place in an epoch can be saved: for datasets that only their own code can read.

torch's workers, collation and pinning are used as they are. What is ours is the batch sampler: it begins where a saved
state says, and notes the place behind every batch that is handed out.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.utils.data

from datapipe.adapt.arguments import length_of, sampler_of
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.loaders import TorchsLoader, arguments_kept
from datapipe.adapt.sample_dataset import SampleDataset
from datapipe.errors import OptionError
from datapipe.loader.iteration import Epochs
from datapipe.loader.seeding import Seed, SeedSource
from datapipe.loader.sources import SampledSource
from datapipe.loader.stand_ins import OwnBatches
from datapipe.loader.state import LoaderState
from datapipe.loader.trail import Trail
from datapipe.order import ShuffledOrder
from datapipe.plan import Cursor, Picks, Plan, Rank

KeyOf = Callable[[Picks, int], list[Any]]  # what a dataset is asked for, of a batch's picks and the seed


class KeySource(Protocol):
    """Lists of what a dataset is asked for, one for each batch."""

    @property
    def order(self) -> str:
        """Names the order in saved states."""

    @property
    def num_steps(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def keys(self, start: Cursor, seed: int, /) -> Iterator[tuple[list[Any], Cursor]]:
        """From `start` on; with each the place behind it."""

    @property
    def rank(self) -> Rank | None:
        """Of those that have to agree on the seed; None where nothing depends on it."""

    def is_at_end(self, cursor: Cursor, /) -> bool: ...

    @property
    def trail(self) -> Trail | None:
        """Of a sampler of the user's."""


@dataclass(frozen=True)
class GivenKeys:
    """The lists of a batch sampler of the user's, whatever is in them."""

    batch_sampler: Iterable[list[Any]]
    global_batch: int
    whose: Rank
    order: str = "sampler"
    trail: Trail = field(default_factory=Trail)

    @property
    def num_steps(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    @property
    def rank(self) -> None:
        """The sampler draws, if anything does."""

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[list[Any], Cursor]]:
        first, walk = start.samples_done // self.global_batch, self.trail.begin(self.whose)
        for step, listed in enumerate(self.batch_sampler):
            keys, after = list(listed), Cursor(start.epoch, (step + 1) * self.global_batch)
            walk.add(repr(keys).encode(), after)
            if step >= first:
                yield keys, after

    def is_at_end(self, cursor: Cursor) -> bool:
        return cursor.samples_done // self.global_batch >= self.num_steps


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

    @property
    def trail(self) -> Trail | None:
        return self.source.trail if isinstance(self.source, SampledSource) else None

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[list[Any], Cursor]]:
        source = self.source
        if isinstance(source, Plan) and isinstance(source.order, ShuffledOrder):
            source = dataclasses.replace(source, order=dataclasses.replace(source.order, seed=seed))
        for picks in source.steps(start):
            yield self.key_of(picks, seed), picks.after

    def is_at_end(self, cursor: Cursor) -> bool:
        return self.source.is_at_end(cursor)


def places_of(picks: Picks, seed: int) -> list[int]:
    """The positions of a batch, as keys of a dataset of the user's, which draws for itself."""
    return picks.positions.tolist()  # type: ignore[no-any-return]


class TorchLoader:
    """torch's batches, with epochs, `state_dict` and `load_state_dict` as `datapipe.DataLoader` has them.

    `inner`: the loader whose arguments are taken over. `dataset`: read in place of its own, if not the same. Not to be shared
    between threads. Two passes at once are as good as with torch: not where workers persist. Pickles as its arguments.
    """

    def __init__(
        self,
        inner: TorchsLoader,
        *,
        dataset: Any,
        source: KeySource,
        seed: SeedSource,
        fingerprint: str,
        origin: str = "",
    ) -> None:
        self._inner = inner
        self._dataset = dataset
        self._source = source
        self._seed = Seed(seed)
        self._fingerprint = fingerprint
        self.origin = origin  # what was taken over, and how, for `explain`
        self._epochs = Epochs()
        self._batches = _Batches(source)
        self._loader = torch.utils.data.DataLoader(dataset, batch_sampler=self._batches, **arguments_kept(inner))

    def __iter__(self) -> Iterator[Any]:
        return self._pass()

    def __len__(self) -> int:
        """Batches of an epoch. Raises TypeError for a sampler without a length."""
        return self._source.num_steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'TorchLoader' object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._inner, self._dataset, self._source, self._seed.source, self._fingerprint, self.origin)

    @property
    def batch_sampler(self) -> OwnBatches:
        """As long as the loader, without positions: nobody is to make a torch loader of this one."""
        return OwnBatches(self)

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
        return [*seed, *lines_about(self._inner, recipe)]

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch; a sampler that has a `set_epoch` is told."""
        self._epochs.set_epoch(epoch)
        tell = getattr(sampler_of(self._inner), "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out: small, JSON-safe."""
        return self._state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there. Raises StateError for a state that this loader would not continue exactly."""
        cursor = self._state().cursor_from(state)
        is_at_end = self._source.is_at_end(cursor)
        self._seed.resume(state["seed"])
        if self._source.trail is not None:
            self._source.trail.resume(cursor, str(state.get("trail", "")))
        self._epochs.resume(cursor, is_at_end=is_at_end)

    def _pass(self) -> Iterator[Any]:
        rank = self._source.rank
        self._batches.seed = 0 if rank is None else self._seed.settle(rank, self._fingerprint)
        self._batches.start = self._epochs.claim()
        after = self._batches.after = deque()
        for batch in self._loader:
            self._epochs.last = after.popleft()
            yield batch

    def _state(self) -> LoaderState:
        return LoaderState(
            epoch=self._epochs.last.epoch,
            samples_done=self._epochs.last.samples_done,
            global_batch=self._source.global_batch,
            num_samples=_length(self._inner.dataset),
            order=self._source.order,
            seed=self._seed.value,
            tail="drop" if self._inner.drop_last else "pad",
            dataset=self._fingerprint,
            trail="" if self._source.trail is None else self._source.trail.at(self._epochs.last),
        )


class _Batches:
    """What torch takes for a batch sampler: asked in the consumer's thread, as many batches ahead as torch likes."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self.start = Cursor()
        self.seed = 0
        self.after: deque[Cursor] = deque()  # places behind the batches that are asked for and not yet handed out

    def __iter__(self) -> Iterator[list[Any]]:
        after = self.after
        for keys, cursor in self._source.keys(self.start, self.seed):
            after.append(cursor)
            yield keys

    def __len__(self) -> int:
        return self._source.num_steps


def _length(dataset: Any) -> int:
    length = length_of(dataset)
    if length is None:
        raise OptionError(f"dataset is a {type(dataset).__qualname__} without a length; a place in it cannot be saved")
    return length


def _restore(
    inner: TorchsLoader, dataset: Any, source: KeySource, seed: SeedSource, fingerprint: str, origin: str
) -> TorchLoader:
    return TorchLoader(inner, dataset=dataset, source=source, seed=seed, fingerprint=fingerprint, origin=origin)
