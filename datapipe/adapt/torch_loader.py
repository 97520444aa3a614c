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

import numpy as np
import torch
import torch.utils.data

from datapipe.adapt.arguments import length_of, sampler_of
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.loaders import TorchsLoader, arguments_kept
from datapipe.adapt.sample_dataset import SampleDataset
from datapipe.errors import OptionError
from datapipe.loader.iteration import Epochs, OneThread
from datapipe.loader.seeding import Seed, SeedSource
from datapipe.loader.sources import SampledSource
from datapipe.loader.stand_ins import OwnBatches
from datapipe.loader.state import LoaderState
from datapipe.loader.threads import raise_once
from datapipe.loader.trail import Trail
from datapipe.order import ShuffledOrder
from datapipe.plan import Cursor, Picks, Plan, Rank

KeyOf = Callable[[Picks, int], list[Any]]  # what a dataset is asked for, of a batch's picks and the seed


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

    @property
    def trail(self) -> Trail | None:
        """Of a sampler of the user's."""


@dataclass(frozen=True)
class GivenKeys:
    """What a batch sampler of the user's gives, whatever that is: lists, or a slice or dict for `__getitems__`."""

    batch_sampler: Iterable[Any]
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

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[Any, Cursor]]:
        first, walk = start.samples_done // self.global_batch, self.trail.begin(self.whose)
        for step, given in enumerate(self.batch_sampler):
            keys = list(given) if isinstance(given, Iterator) else given  # what can be gone through once
            after = Cursor(start.epoch, (step + 1) * self.global_batch)
            walk.add(_told_apart(keys), after)
            if step >= first:
                yield keys, after

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

    @property
    def trail(self) -> Trail | None:
        return self.source.trail if isinstance(self.source, SampledSource) else None

    def keys(self, start: Cursor, seed: int) -> Iterator[tuple[list[Any], Cursor]]:
        source = self.source
        if isinstance(source, Plan) and isinstance(source.order, ShuffledOrder):
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

    def __iter__(self) -> TorchIterator:
        return TorchIterator(self._begin, self.__len__, self._epochs)

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
        """The place after the last batch handed out: small, JSON-safe. Once a pass has ended: the beginning of the next epoch."""
        return self._state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there. Raises StateError for a state that this loader would not continue exactly."""
        cursor = self._state().cursor_from(state)
        self._source.check(cursor)
        self._seed.resume(state["seed"])
        if self._source.trail is not None:
            self._source.trail.resume(cursor, str(state.get("trail", "")))
        self._epochs.resume(cursor)

    def _begin(self) -> tuple[Iterator[Any], Walk]:
        """torch's iterator of a pass that begins now, and what it is asked for."""
        rank = self._source.rank
        seed = 0 if rank is None else self._seed.settle(rank, self._fingerprint)
        start = self._epochs.claim()
        walk = self._batches.walk = Walk(self._source.keys(start, seed), start.epoch)
        return iter(self._loader), walk

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


class TorchIterator(Iterator[Any]):
    """The batches of one pass over torch's loader, in order. Nothing happens before the first `next()`.

    A batch that fails raises, counts as done, and the next `next()` goes on after it. Not to be shared between threads.
    """

    def __init__(
        self, begin: Callable[[], tuple[Iterator[Any], Walk]], num_steps: Callable[[], int], epochs: Epochs
    ) -> None:
        self._begin, self._num_steps, self._epochs = begin, num_steps, epochs
        self._one_thread = OneThread()
        self._batches: Iterator[Any] | None = None
        self._walk: Walk | None = None
        self._is_over = False

    def __len__(self) -> int:
        """Steps of a whole epoch, whatever is left of this one."""
        return self._num_steps()

    def __next__(self) -> Any:
        with self._one_thread:
            return self._next()

    def close(self) -> None:
        """End the pass. May be called again."""
        self._is_over, self._batches = True, None

    def _next(self) -> Any:
        if self._is_over:
            raise StopIteration
        if self._batches is None or self._walk is None:
            self._batches, self._walk = self._begin()
        walk, num_received = self._walk, self._num_received()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.close()
            if walk.error is not None:
                error, walk.error = walk.error, None
                raise_once(error)
            self._epochs.end(walk.epoch)
            raise
        except Exception:
            if num_received is None or num_received != self._num_received():  # else it is the wait that failed
                self._epochs.last = walk.after.popleft()
            raise
        self._epochs.last = walk.after.popleft()
        return batch

    def _num_received(self) -> int | None:
        """How many batches have come from torch's workers, those that failed included; None where there are no workers."""
        return getattr(self._batches, "_rcvd_idx", None)


class Walk:
    """One pass over the keys: asked in the consumer's thread, as many batches ahead as torch likes."""

    def __init__(self, keys: Iterator[tuple[Any, Cursor]], epoch: int) -> None:
        self._keys = keys
        self.epoch = epoch
        self.after: deque[Cursor] = deque()  # places behind the batches that are asked for and not yet handed out
        self.error: Exception | None = None  # of the sampler, raised once the batches before it are handed out

    def __iter__(self) -> Iterator[Any]:
        try:
            for keys, cursor in self._keys:
                self.after.append(cursor)
                yield keys
        except Exception as exc:
            self.error = exc


class _Batches:
    """What torch takes for a batch sampler: gives the keys of the pass that begins."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self.walk = Walk(iter(()), 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.walk)

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
