"""A torch DataLoader whose place in an epoch can be saved: for datasets that only their own code can read.

torch's workers, collation and pinning are used as they are. What is ours is the batch sampler: it begins where a saved
state says, and notes the place behind every batch that is handed out.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.utils.data

from datapipe.errors import OptionError
from datapipe.loader.iteration import Epochs
from datapipe.loader.sources import PickSource
from datapipe.loader.stand_ins import OwnBatches
from datapipe.loader.state import LoaderState
from datapipe.plan import Cursor, Picks


class KeySource(Protocol):
    """Lists of what a dataset is asked for, one for each batch."""

    @property
    def order(self) -> str:
        """Names the order in saved states."""

    @property
    def num_steps(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def keys(self, start: Cursor, /) -> Iterator[tuple[list[Any], Cursor]]:
        """From `start` on; with each the place behind it."""

    def is_at_end(self, cursor: Cursor, /) -> bool: ...


@dataclass(frozen=True)
class GivenKeys:
    """The lists of a batch sampler of the user's, whatever is in them."""

    batch_sampler: Iterable[list[Any]]
    global_batch: int
    order: str = "sampler"

    @property
    def num_steps(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def keys(self, start: Cursor) -> Iterator[tuple[list[Any], Cursor]]:
        first = start.samples_done // self.global_batch
        for step, listed in enumerate(itertools.islice(self.batch_sampler, first, None), first):
            yield list(listed), Cursor(start.epoch, (step + 1) * self.global_batch)

    def is_at_end(self, cursor: Cursor) -> bool:
        return cursor.samples_done // self.global_batch >= self.num_steps


@dataclass(frozen=True)
class PickedKeys:
    """Picks, as keys of a dataset. `key_of`: from a batch's picks to what the dataset is asked for."""

    source: PickSource
    order: str
    key_of: Callable[[Picks], list[Any]]

    @property
    def num_steps(self) -> int:
        return self.source.num_steps

    @property
    def global_batch(self) -> int:
        return self.source.global_batch

    def keys(self, start: Cursor) -> Iterator[tuple[list[Any], Cursor]]:
        for picks in self.source.steps(start):
            yield self.key_of(picks), picks.after

    def is_at_end(self, cursor: Cursor) -> bool:
        return self.source.is_at_end(cursor)


class TorchLoader:
    """torch's batches, with epochs, `state_dict` and `load_state_dict` as `datapipe.DataLoader` has them.

    `inner`: the loader whose arguments are taken over. `dataset`: read in place of its own, if not the same. Not to be shared
    between threads. Two passes at once are as good as with torch: not where workers persist.
    """

    def __init__(
        self,
        inner: torch.utils.data.DataLoader[Any],
        *,
        dataset: Any,
        source: KeySource,
        seed: int,
        fingerprint: str,
        set_sampler_epoch: Callable[[int], None],
    ) -> None:
        self._inner = inner
        self._source = source
        self._seed = seed
        self._fingerprint = fingerprint
        self._set_sampler_epoch = set_sampler_epoch
        self.origin = ""  # what was taken over, and how, for `explain`
        self.batch_sampler = OwnBatches(self)  # nobody is to make a torch loader of this one
        self._epochs = Epochs()
        self._batches = _Batches(source)
        self._loader = torch.utils.data.DataLoader(dataset, batch_sampler=self._batches, **_taken_over(inner))

    def __iter__(self) -> Iterator[Any]:
        return self._pass()

    def __len__(self) -> int:
        """Batches of an epoch. Raises TypeError for a sampler without a length."""
        return self._source.num_steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'TorchLoader' object has no attribute {name!r}")
        return getattr(self._inner, name)

    @property
    def device(self) -> torch.device:
        """Where batches come: `prefetch` takes them further."""
        return torch.device("cpu")

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch; a sampler that has a `set_epoch` is told."""
        self._epochs.set_epoch(epoch)
        self._set_sampler_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out: small, JSON-safe."""
        return self._state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there. Raises StateError for a state that this loader would not continue exactly."""
        cursor = self._state().cursor_from(state)
        self._epochs.resume(cursor, is_at_end=self._source.is_at_end(cursor))

    def _pass(self) -> Iterator[Any]:
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
            seed=self._seed,
            tail="drop" if self._inner.drop_last else "pad",
            dataset=self._fingerprint,
        )


class _Batches:
    """What torch takes for a batch sampler: asked in the consumer's thread, as many batches ahead as torch likes."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self.start = Cursor()
        self.after: deque[Cursor] = deque()  # places behind the batches that are asked for and not yet handed out

    def __iter__(self) -> Iterator[list[Any]]:
        after = self.after
        for keys, cursor in self._source.keys(self.start):
            after.append(cursor)
            yield keys

    def __len__(self) -> int:
        return self._source.num_steps


_TAKEN_OVER = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip


def _taken_over(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    """The arguments of a loader, but for what is read and in which order."""
    return {name: getattr(loader, name) for name in _TAKEN_OVER if hasattr(loader, name)}


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError as exc:
        raise OptionError(f"dataset is a {type(dataset).__qualname__} without a length; a place in it cannot be saved") from exc
