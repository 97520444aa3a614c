"""Save a loader's place as JSON-safe values, and check whether a loader may resume it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datapipe.core.errors import StateError
from datapipe.order.plan import Cursor

STATE_VERSION = 1
_ARGUMENTS = {
    "order": "shuffle, sampler, weights or number of samples",
    "tail": "tail",
    "num_samples": "select()",
}


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The place after the last batch delivered, and what must be equal for it to mean that place."""

    epoch: int
    samples_done: int  # of the epoch, over all ranks
    global_batch: int  # batch_size x world_size
    num_samples: int
    order: str
    seed: int | None  # None: not drawn yet, as no pass has begun; `Seed.resume` checks it
    tail: str
    dataset: str  # fingerprint
    trail: str = ""  # of a sampler's positions, see `SamplerChecksum`

    def to_json(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, **dataclasses.asdict(self)}

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
        if not all(isinstance(number, int) and number >= 0 for number in place):
            raise StateError(f"state has epoch={place[0]!r}, samples_done={place[1]!r}: not a state of this loader, or damaged")
        return Cursor(*place)
