"""Conditions for continuous integration: `starvation>10%`, parsed strictly and evaluated on a diagnosis."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from datapipe.core.errors import OptionError
from datapipe.diagnostics.judge.verdict import Verdict, VerdictKind

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_UNITS = {"starvation": {"%": 0.01}, "step": {"s": 1.0, "ms": 1e-3, "us": 1e-6}, "wait": {"s": 1.0, "ms": 1e-3, "us": 1e-6}}
_FORM = re.compile(r"\s*([a-z]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the slowest rank's steady steps that must not hold.

    `name`: "starvation" (waiting for data, as a share of the step), "step" (its mean length) or "wait" (for data, per step).
    """

    name: str
    sign: str
    limit: float  # a share, or seconds
    text: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `NAME SIGN NUMBER UNIT`. Raises OptionError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None or match[1] not in _UNITS or match[4] not in _UNITS[match[1]]:
            raise OptionError(
                f"--fail-if {text!r} is not NAME SIGN NUMBER UNIT with starvation (%), step or wait (s, ms, us) and one of "
                "> >= < <=; such as 'starvation>10%' or 'step>120ms'"
            )
        name, sign, number, unit = match.groups()
        return cls(name, sign, float(number) * _UNITS[name][unit], text.strip())

    def violation(self, verdict: Verdict) -> str | None:
        """Return why the diagnosis fails; None if it does not. A value that was not measured fails."""
        figures = verdict.figures
        share = None if figures.starvation is None else figures.starvation.value
        value = {"starvation": share, "step": figures.step_s, "wait": figures.data_s}[self.name]
        if value is None or verdict.kind in (VerdictKind.NOT_MEASURED, VerdictKind.NOT_ENOUGH):
            return f"--fail-if {self.text}: {self.name} was not measured ({verdict.kind.value}: {verdict.reason})"
        if not _OPERATORS[self.sign](value, self.limit):
            return None
        shown = f"{value:.1%}" if self.name == "starvation" else f"{value * 1e3:.2f} ms"
        return f"--fail-if {self.text}: {self.name} is {shown}"
