"""Hugging Face Accelerate: do for datapipe's loaders what its `prepare` does for torch's.

`Accelerator.prepare` returns a loader that is not torch's unchanged. Its batches are on the right device and rank anyway,
but the library would not know when an epoch ends, so it would carry the last, incomplete accumulation over into the next one
and leave padding in what `gather_for_metrics` gathers; and `save_state` would not save the place in the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

from datapipe.adapt.torch_loader import TorchLoader
from datapipe.core.environment import is_of_datapipe
from datapipe.errors import LifecycleError, OptionError
from datapipe.kernel.loader import Loader
from datapipe.kernel.prefetching import PrefetchedLoader

OurLoader = Loader | TorchLoader | PrefetchedLoader


def prepare(accelerator: Accelerator, *objects: Any, **options: Any) -> Any:
    """Return `accelerator.prepare(*objects)`, with datapipe's loaders as `PreparedLoader`.

    `accelerator.save_state` and `load_state` save and restore their places; after the latter the next pass continues in
    mid-epoch by itself: `skip_first_batches` is not needed. `options` go to `accelerator.prepare`. Raises OptionError for a
    loader and an accelerator whose ranks, devices or batches do not fit each other.
    """
    others = [value for value in objects if not is_our_loader(value)]
    prepared = accelerator.prepare(*others, **options) if others else ()
    rest = iter(prepared if len(others) > 1 else [prepared])
    result: list[Any] = []
    for value in objects:
        if isinstance(value, PreparedLoader):
            result.append(value)
        elif is_our_loader(value):
            check_fits(accelerator, value)
            accelerator.register_for_checkpointing(value)
            result.append(PreparedLoader(value))
        else:
            result.append(next(rest))
    return result[0] if len(result) == 1 else tuple(result)


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """A loader that tells Accelerate when its last batch comes, and how many samples of that step are not padding.

    All else is the loader's own: `set_epoch`, `dataset`, `state_dict`, ... Steps of a `sampler` or `batch_sampler` of your own
    are gathered whole: only that sampler knows what is padding.
    """

    def __init__(self, loader: OurLoader) -> None:
        self.loader = loader
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[Any]:
        num_steps = len(self.loader)
        self.begin()
        self.remainder = self._num_real_of_the_last_step()
        try:
            for batch in self.loader:
                self.end_of_dataloader = steps_done(self.loader) >= num_steps
                yield batch
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(f"'PreparedLoader' object has no attribute {name!r}")
        return getattr(self.loader, name)

    def _num_real_of_the_last_step(self) -> int:
        """Return the samples of the last step that are not padding, over all ranks; 0: all of them, -1: unknown."""
        state = self.loader.state_dict()
        if state["tail"] == "drop":
            return 0
        sampler: Any = self.loader.sampler
        return -1 if state["order"] == "sampler" else len(sampler) % int(state["global_batch"])


class SkippedLoader:
    """A loader whose next pass leaves out the first steps of its epoch; passes after it are whole."""

    def __init__(self, loader: OurLoader | PreparedLoader, num_batches: int) -> None:
        self._loader, self._num_batches = loader, num_batches
        self._has_epoch = False

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over this epoch, beginning after the steps left out."""
        inner = self._loader.loader if isinstance(self._loader, PreparedLoader) else self._loader
        go_to(inner, epoch=epoch, step=self._num_batches)
        self._has_epoch = True

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining steps. Raises LifecycleError before `set_epoch`."""
        if not self._has_epoch:
            raise LifecycleError(f"{self._num_batches} steps are to be left out of an unknown epoch; call set_epoch first")
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader) - self._num_batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'SkippedLoader' object has no attribute {name!r}")
        return getattr(self._loader, name)


def check_fits(accelerator: Accelerator, loader: OurLoader) -> None:
    """Raise OptionError if loader and accelerator contradict each other."""
    for name in ("split_batches", "dispatch_batches"):
        if getattr(accelerator, name):
            raise OptionError(
                f"the accelerator has {name}=True, but each rank of a datapipe loader makes its own batches of batch_size; "
                "leave it out"
            )
    check_ranks(loader, accelerator.num_processes)
    if accelerator.device_placement and not _is_same(loader.device, accelerator.device):
        raise OptionError(
            f"the loader delivers batches on {loader.device}, the accelerator computes on {accelerator.device}; "
            "pass device=accelerator.device to the loader"
        )


def _is_same(first: torch.device, second: torch.device) -> bool:
    return first.type == second.type and (first.index == second.index or None in (first.index, second.index))


# -- datapipe's loaders ----------------------------------------------------------------------------------


def is_our_loader(value: object) -> TypeGuard[OurLoader]:
    """Return whether `value` is a datapipe loader whose place can be saved."""
    return is_of_datapipe(value) and hasattr(value, "state_dict") and hasattr(value, "set_epoch")


def steps_done(loader: OurLoader) -> int:
    """Return the steps of its epoch that a loader has delivered."""
    state = loader.state_dict()
    return -(-int(state["samples_done"]) // int(state["global_batch"]))


def go_to(loader: OurLoader, *, epoch: int, step: int) -> None:
    """Continue with the next pass after so many steps of that epoch."""
    state = loader.state_dict()
    loader.load_state_dict({**state, "epoch": epoch, "samples_done": step * int(state["global_batch"])})


def check_ranks(loader: OurLoader, num_processes: int) -> None:
    """Raise OptionError for a loader whose ranks are not those of the processes: each would take samples of the others."""
    found = int(loader.state_dict()["global_batch"])
    batch_size = loader.batch_size or 1
    if found != batch_size * num_processes:
        raise OptionError(
            f"the loader's step covers {found} samples over all ranks, but batch_size x processes is {batch_size} x "
            f"{num_processes}: ranks would share samples. Make it without ranks= and after the process group is "
            "initialized; from_torch: pass share_among_ranks=True"
        )
