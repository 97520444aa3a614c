"""Give a loader the sampler, batch sampler and `worker_init_fn` that frameworks expect of a torch DataLoader.

Frameworks set epochs through them, ask them whether data is shuffled, and make torch loaders out of them. A torch loader made
so would silently lose transforms, backend and place, so neither sampler gives any positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, Protocol

from torch.utils.data import SequentialSampler

from datapipe.core.errors import LifecycleError, OptionError
from datapipe.loader.iteration import Epochs
from datapipe.loader.sources import PickSource
from datapipe.order.plan import Rank


class EpochSetter:
    """The `sampler` of a loader: frameworks set epochs through it."""

    def __init__(self, epochs: Epochs, num_samples: int) -> None:
        self._epochs, self._num_samples = epochs, num_samples

    def set_epoch(self, epoch: int) -> None:
        self._epochs.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the samples of an epoch, over all ranks."""
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        _refuse("sampler")


class SequentialEpochSetter(EpochSetter, SequentialSampler):
    """The same for a loader without shuffling: frameworks look for this type before they overfit or validate."""


class HasSteps(Protocol):
    """The part of a loader that its batch sampler needs."""

    @property
    def batch_size(self) -> int: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def sampler(self) -> object: ...

    def __len__(self) -> int: ...


class OwnBatches:
    """The `batch_sampler` of a loader: as long as the loader, with its batch size."""

    def __init__(self, loader: HasSteps) -> None:
        self._loader = loader

    @property
    def batch_size(self) -> int:
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        return self._loader.drop_last

    @property
    def sampler(self) -> object:
        return self._loader.sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        _refuse("batch_sampler")


def leave_random_state(worker: int) -> None:
    """Do nothing. The default `worker_init_fn`: in place of None, Lightning puts a function that seeds the whole process."""


def check_still_alone(frozen: Rank, now: Rank, source: PickSource) -> None:
    """Raise LifecycleError if the rank was resolved before there were several: every rank would take all samples."""
    if frozen.world_size == 1 and now.world_size > 1:
        raise LifecycleError(
            f"this loader's length was requested when its process was alone: {source.num_steps} steps of all samples; now it is "
            f"rank {now.rank} of {now.world_size}. Make the loader, or ask for its length, once torch.distributed is "
            "initialized, or pass rank and world_size"
        )


def _refuse(what: str) -> NoReturn:
    raise OptionError(
        f"positions were requested from the {what} of a datapipe.DataLoader, which has none: something is making a torch "
        "DataLoader of it, which would lose its transforms, its backend and its place in the epoch; pass it to the "
        "framework as docs/hosts.md says"
    )
