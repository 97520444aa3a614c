"""Group remedies that set one argument to different numbers and make the same step, so that they take one row. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from datapipe.analysis.predict.remedies import WORTH_IT
from datapipe.diagnostics.document import Outlook

_NUMBERED = re.compile(r"(\w+=)(\d+)")  # num_workers=4
# In which remedies of one row must be alike:
_DIFFERENCES = attrgetter("refuted", "needs_edit", "changes_results", "needs_machines")


@dataclass(frozen=True, slots=True)
class RemedyGroup:
    """Remedies as one; the first one's figures and instruction stand for all."""

    members: tuple[Outlook, ...]

    @property
    def first(self) -> Outlook:
        return self.members[0]

    @property
    def name(self) -> str:
        """The name of a single remedy, or one with the range of its numbers: `num_workers=1 to 8`."""
        matches = [match for one in self.members if (match := _NUMBERED.fullmatch(one.name)) is not None]
        if len(matches) < 2:
            return self.first.name
        numbers = sorted(int(match[2]) for match in matches)
        return f"{matches[0][1]}{numbers[0]} to {numbers[-1]}"

    def takes(self, other: Outlook) -> bool:
        """Return whether a remedy is the first one with another number: of the same argument, and with the same step."""
        first, (mine, others) = self.first, (_NUMBERED.fullmatch(one.name) for one in (self.first, other))
        if mine is None or others is None or mine[1] != others[1]:
            return False
        apart_s = abs(other.step_s.value - first.step_s.value)
        return _DIFFERENCES(first) == _DIFFERENCES(other) and apart_s < WORTH_IT * first.step_s.value


def grouped(outlooks: Iterable[Outlook], *, apart: str | None = None) -> list[RemedyGroup]:
    """Return the groups, each at the place of its first remedy. `apart`: the name of a remedy that has a row of its own."""
    groups: list[RemedyGroup] = []
    for one in outlooks:
        place = next((number for number, group in enumerate(groups) if group.first.name != apart and group.takes(one)), None)
        if place is None or one.name == apart:
            groups.append(RemedyGroup((one,)))
        else:
            groups[place] = RemedyGroup((*groups[place].members, one))
    return groups
