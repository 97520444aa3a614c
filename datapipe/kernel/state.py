"""Keep a loader's place in training: its rank, seed and epochs; save the place as JSON-safe values, and resume it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datapipe.core.checks import whole_number
from datapipe.errors import LifecycleError, StateError
from datapipe.kernel.ranks import resolve_rank
from datapipe.kernel.seeding import Seed
from datapipe.order.plan import MAX_SAMPLES, Cursor, Rank

STATE_VERSION = 1
MAX_EPOCH = (1 << 31) - 1  # times the samples of an epoch, it fits 64 bits
_ARGUMENTS = {
    "order": "shuffle, sampler, weights or number of samples",
    "tail": "tail",
    "num_samples": "select()",
}


class Epochs:
    """The epoch of the next pass, and where in it the pass begins. Thread-safe."""

    def __init__(self) -> None:
        self.last = Cursor()  # after the last batch delivered
        self.upcoming = Cursor()  # where the next pass begins
        self._lock = threading.Lock()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over `epoch`: from its beginning, or from where a resumed state stands in it."""
        number = whole_number(epoch, "epoch", least=0, most=MAX_EPOCH)
        with self._lock:
            if self.upcoming.epoch != number:
                self.upcoming = Cursor(number)

    def resume(self, cursor: Cursor) -> None:
        """Continue with the next pass from `cursor`. After the last batch of its epoch, that pass is empty."""
        with self._lock:
            self.last = self.upcoming = cursor

    def claim(self) -> Cursor:
        """Return the place of a pass that begins now; the pass after it belongs to the next epoch."""
        with self._lock:
            claimed = self.upcoming
            self.upcoming = Cursor(claimed.epoch + 1)
            return claimed

    def end(self, epoch: int) -> None:
        """Record that a pass over `epoch` has ended: training now stands before the next epoch."""
        self.last = Cursor(epoch + 1)


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The place after the last batch delivered, and what must be equal for it to mean that place."""

    epoch: int
    samples_done: int  # of the epoch, over all ranks
    global_batch: int  # batch_size x world_size; 0: of no matter
    num_samples: int
    order: str
    seed: int | None  # None: not drawn yet, as no pass has begun; `Seed.resume` checks it
    tail: str
    dataset: str  # fingerprint
    trail: str = ""  # of a sampler's positions, see `SamplerChecksum`

    def to_json(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, **dataclasses.asdict(self)}

    def is_of_this_dataset(self, saved: object) -> bool:
        """Return True if a saved state is one of the same dataset; it may still differ in arguments."""
        return isinstance(saved, Mapping) and (saved.get("version"), saved.get("dataset")) == (STATE_VERSION, self.dataset)

    def cursor_from(self, saved: Mapping[str, Any]) -> Cursor:
        """Return the cursor of a saved state, if this loader (whose present state is `self`) would continue it exactly.

        Raises StateError naming what differs and the value to use.
        """
        if not isinstance(saved, Mapping):
            raise StateError(f"state is {saved!r:.80}: not a state of this loader; pass what state_dict() returned")
        if saved.get("version") != STATE_VERSION:
            raise StateError(f"state version {saved.get('version')!r}, expected {STATE_VERSION}: not a state of this loader")
        missing = [field.name for field in dataclasses.fields(self) if field.name not in saved]
        if missing:
            raise StateError(f"state lacks {', '.join(missing)}: not a state of this loader")
        if saved["dataset"] != self.dataset:
            raise StateError(
                f"the state belongs to another dataset ({saved['dataset']}, {saved['num_samples']} samples) than this one "
                f"({self.dataset}, {self.num_samples} samples); open the dataset it was saved with"
            )
        if saved["global_batch"] != self.global_batch:
            raise StateError(
                f"the state was saved with batch_size x world_size = {saved['global_batch']}, this loader has "
                f"{self.global_batch}; choose batch_size so that the product is {saved['global_batch']}"
            )
        for name, argument in _ARGUMENTS.items():
            if saved[name] != getattr(self, name):
                raise StateError(
                    f"the state was saved with {name}={saved[name]!r}, this loader has {getattr(self, name)!r}; "
                    f"pass the same {argument} as then"
                )
        place = saved["epoch"], saved["samples_done"]
        limits = zip(place, (MAX_EPOCH, MAX_SAMPLES), strict=True)
        if not all(isinstance(number, int) and 0 <= number <= most for number, most in limits):
            raise StateError(f"state has epoch={place[0]!r}, samples_done={place[1]!r}: not a state of this loader, or damaged")
        return Cursor(*place)


class LoaderProgress:
    """How far a loader has come: its rank, its seed, its epochs. All of its passes share them."""

    def __init__(self, seed: Seed, ranks: tuple[int, int] | None) -> None:
        """`ranks`: the rank and the number of ranks, if given."""
        self.seed = seed
        self.epochs = Epochs()
        self._ranks = ranks
        self._rank: Rank | None = None
        resolve_rank(ranks)  # refuse what is no pair here, not at the first batch

    @property
    def rank(self) -> Rank:
        """This process's part of an epoch, as it was when first asked for."""
        if self._rank is None:
            self._rank = resolve_rank(self._ranks)
        return self._rank

    def check_still_alone(self, num_steps: Callable[[], int]) -> None:
        """Raise LifecycleError if the rank was resolved before there were several: every rank would take all samples."""
        now = resolve_rank(self._ranks)
        if self.rank.world_size == 1 and now.world_size > 1:
            raise LifecycleError(
                f"this loader's length was requested when its process was alone: {num_steps()} steps of all samples; now it "
                f"is rank {now.rank} of {now.world_size}. Make the loader, or ask for its length, once torch.distributed is "
                "initialized, or pass ranks=(rank, world_size)"
            )

    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        """Continue with the next pass from `cursor`, which is that of the saved state. Raises StateError for another seed."""
        self.seed.resume(state["seed"])
        self.epochs.resume(cursor)
