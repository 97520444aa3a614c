"""The settings of `Clips`: how clips are visited, and what a batch has."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from datapipe.codecs.video.conversion import Resize
from datapipe.core.checks import whole_number
from datapipe.errors import OptionError
from datapipe.stores.settings import Remote

Layout = Literal["BTCHW", "BCTHW", "BTHWC"]
# Of (b, t, h, w, c) memory.
PERMUTATIONS: dict[Layout, tuple[int, ...]] = {"BTCHW": (0, 1, 4, 2, 3), "BCTHW": (0, 4, 1, 2, 3), "BTHWC": (0, 1, 2, 3, 4)}

MOST_ENGINE_THREADS = 8  # a data centre's GPU has 7 video engines, which more threads slow down
LANES_NBYTES = 2 << 30  # of the decoded clips of a process, where the number of lanes is chosen
_MOST_PER_RANK = 128  # clips of a step of a rank that it is chosen for
_MOST_NUMBER = 1 << 20  # of clips of a visit, and of lanes
_LEAST_VISITS = 8  # of a lane, whose ends divide visits
_MOST_STEPS = 16  # over which the clips of a visit are spread: batches vary as in a full shuffle


@dataclass(frozen=True, slots=True)
class ClipSettings:
    """The settings of `Clips`, which documents each."""

    per_visit: int = 4
    lanes: int | Literal["auto"] = "auto"
    resize: Resize = Resize.EXACT
    layout: Layout = "BTCHW"
    fields: tuple[str, ...] | None = None  # None: the video, and the label if there are labels
    remote: Remote = field(default_factory=Remote)

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_visit", whole_number(self.per_visit, "per_visit", least=1, most=_MOST_NUMBER))
        if self.lanes != "auto":
            object.__setattr__(self, "lanes", whole_number(self.lanes, "lanes", least=1, most=_MOST_NUMBER))
        if self.layout not in PERMUTATIONS:
            raise OptionError(f"layout is {self.layout!r:.40}; choose one of {', '.join(PERMUTATIONS)}")

    def differing(self, other: ClipSettings) -> list[str]:
        """Return the names of the settings that differ."""
        return [one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name)]

    def num_lanes(self, num_clips: int, global_batch: int, clip_nbytes: int) -> int:
        """Return the number of lanes: a multiple of the clips of a step over all ranks, so that each rank has its own."""
        if self.lanes != "auto":
            if self.lanes % global_batch:
                raise OptionError(
                    f"lanes is {self.lanes}, and a step has {global_batch} clips over all ranks; pass a multiple of that, or "
                    "'auto'"
                )
            return self.lanes
        nbytes = self.per_visit * clip_nbytes * min(global_batch, _MOST_PER_RANK)
        visits = num_clips // (self.per_visit * global_batch)  # of each lane, if there were as many lanes as clips of a step
        return global_batch * max(1, min(_MOST_STEPS, LANES_NBYTES // nbytes, visits // _LEAST_VISITS))
