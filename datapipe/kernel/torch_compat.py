"""Give a loader the sampler, batch sampler, `worker_init_fn` and attributes that are expected of a torch DataLoader.

Frameworks set epochs through them, ask them whether data is shuffled, and make torch loaders out of them. A torch loader made
so would silently lose transforms, backend and place, so neither sampler gives any positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data import SequentialSampler

from datapipe.errors import OptionError
from datapipe.kernel.state import Epochs


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


class OwnBatches:
    """The `batch_sampler` of a loader: as long as the loader, with its batch size."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.batch_size, self.drop_last, self.sampler = loader.batch_size, loader.drop_last, loader.sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        _refuse("batch_sampler")


def names_of(loader: object) -> frozenset[str]:
    """Return the attributes that a loader has once it is made; all others are those of scripts and frameworks."""
    return frozenset(vars(loader)) | {"_names"}


def added_attributes(loader: Any) -> dict[str, Any] | None:
    """Return what scripts and frameworks have set on a loader, which a copy of it gets too; None if there is nothing."""
    return {name: value for name, value in vars(loader).items() if name not in loader._names} or None


def leave_random_state(worker: int) -> None:
    """Do nothing. The default `worker_init_fn`: in place of None, Lightning puts a function that seeds the whole process."""


def _refuse(what: str) -> NoReturn:
    raise OptionError(
        f"positions were requested from the {what} of a datapipe.DataLoader, which has none: something is making a torch "
        "DataLoader of it, which would lose its transforms, its backend and its place in the epoch; pass it to the "
        "framework as docs/hosts.md says"
    )
