"""Settle the seed of a loader: given, drawn when the first pass begins, or taken from a saved state."""

from __future__ import annotations

import warnings

import torch

from datapipe.core.checks import whole_number
from datapipe.errors import OptionError, StateError
from datapipe.kernel.ranks import agree_over_group, is_of_group
from datapipe.order.plan import Rank

SeedSource = int | torch.Generator | None  # the seed itself; its generator; None: torch.initial_seed()


def seed_source(seed: int | None, generator: torch.Generator | None) -> SeedSource:
    """Return what `seed=` and `generator=` say. Raises OptionError for both at once, and for an invalid seed or generator."""
    if generator is None and seed is not None:
        number = whole_number(seed, "seed")
        if not _fits(number):
            raise OptionError(f"seed is {number}; it must fit 64 bits, as torch's seeds do")
        return number
    if generator is None:
        return None
    if not isinstance(generator, torch.Generator):
        raise OptionError(f"generator is {generator!r:.60}; pass a torch.Generator, or seed=")
    if seed is not None:
        raise OptionError(f"seed={seed} and generator exclude each other; pass one")
    return generator


class Seed:
    """The seed of one loader. Together with epoch and sample id it decides every draw of shuffling and augmentation.

    `value` is None until the first pass begins if the seed is to be drawn. Then it stays, from epoch to epoch and in saved
    states, and a loader that loads such a state adopts it.
    """

    def __init__(self, source: SeedSource) -> None:
        self.source = source
        self.value = source if isinstance(source, int) else None
        self._whence = "as given"

    def settle(self, rank: Rank, dataset: str) -> int:
        """Return the seed for a pass that begins now on `rank`; draw it if that has not been done yet.

        Ranks of a torch.distributed process group take the seed that rank 0 draws. Ranks without one cannot agree: each takes its
        own generator's number, or 0 in place of torch.initial_seed(), with a warning. `dataset`: fingerprint. Raises
        LifecycleError if rank 0 draws none within the group's timeout.
        """
        if self.value is None:
            self.value, self._whence = self._draw(rank, dataset)
        return self.value

    def resume(self, saved: object) -> None:
        """Adopt the seed of a saved state, None if none was drawn then. Raises StateError if another seed was given."""
        if isinstance(self.source, int):
            if saved not in (None, self.source):
                given = f"the state was saved with seed={saved!r:.60}, this loader has {self.source}"
                raise StateError(f"{given}; pass the same seed as then, or none")
        elif saved is not None:
            if isinstance(saved, bool) or not isinstance(saved, int) or not _fits(saved):
                raise StateError(f"state has seed={saved!r:.60}: not a state of this loader, or damaged")
            self.value, self._whence = saved, "from the state that was loaded"

    def describe(self) -> str:
        """Return the seed and its origin, for people."""
        if self.value is not None:
            return f"{self.value}, {self._whence}"
        whence = "a number from the generator" if isinstance(self.source, torch.Generator) else "torch.initial_seed()"
        return f"{whence}, once the first pass begins; ranks take that of rank 0"

    def _draw(self, rank: Rank, dataset: str) -> tuple[int, str]:
        if isinstance(self.source, torch.Generator):
            number = torch.empty((), dtype=torch.int64, device=self.source.device).random_(generator=self.source)
            own, whence = int(number.item()), "drawn from the generator"
        else:
            own, whence = torch.initial_seed(), "from torch.initial_seed()"
        if rank.world_size == 1:
            return own, whence
        if is_of_group(rank):
            return agree_over_group(own, rank, f"seed of {dataset}"), f"{whence} of rank 0"
        if isinstance(self.source, torch.Generator):
            return own, whence
        warnings.warn(
            f"rank {rank.rank} of {rank.world_size} has no process group of torch.distributed with these ranks, over which to "
            "agree on a seed: it is 0, whatever torch.manual_seed was given; pass seed=, or begin passes once the group exists",
            RuntimeWarning,
            stacklevel=7,  # at the `next()` of a `DataLoader` that begins the pass
        )
        return 0, "as the ranks have no process group to agree on another one"


def _fits(seed: int) -> bool:
    return -(2**63) <= seed < 2**64
