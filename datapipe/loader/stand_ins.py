"""What stands where a torch DataLoader has a sampler, a batch sampler and a `worker_init_fn`, if the user passed none.

Frameworks set epochs through them, ask them whether data is shuffled, and make torch loaders out of them. The last would
lose transforms, backend and place without a word, so neither gives any positions.
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
    """What `loader.sampler` is: frameworks set epochs through it."""

    def __init__(self, epochs: Epochs, num_samples: int) -> None:
        self._epochs, self._num_samples = epochs, num_samples

    def set_epoch(self, epoch: int) -> None:
        self._epochs.set_epoch(epoch)

    def __len__(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        _refuse("sampler")


class SequentialEpochSetter(EpochSetter, SequentialSampler):
    """The same for a loader without shuffling: frameworks look for this type before they overfit or validate."""


class HasSteps(Protocol):
    """The loader, as far as its batch sampler speaks for it."""

    @property
    def batch_size(self) -> int: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def sampler(self) -> object: ...

    def __len__(self) -> int: ...


class OwnBatches:
    """What `loader.batch_sampler` is: as long as the loader, and of its batch size."""

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
    """What `loader.worker_init_fn` is: where there is None, Lightning puts a function that seeds the whole process."""


def check_still_alone(frozen: Rank, now: Rank, source: PickSource) -> None:
    """Raises LifecycleError where the rank was asked for before there were several, and every rank would take all samples."""
    if frozen.world_size == 1 and now.world_size > 1:
        raise LifecycleError(
            f"this loader's length was asked for when its process was alone: {source.num_steps} steps of all samples; now it is "
            f"rank {now.rank} of {now.world_size}. Make the loader, or ask for its length, once torch.distributed is "
            "initialized, or pass rank and world_size"
        )


def _refuse(what: str) -> NoReturn:
    raise OptionError(
        f"positions were asked of the {what} of a datapipe.DataLoader, which has none to give: something is making a torch "
        "DataLoader of it, which would lose its transforms, its backend and its place in the epoch; hand it over by the "
        "framework's own way in docs/hosts.md"
    )
