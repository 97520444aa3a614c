"""Ceilings: how many samples per second each part of a machine could bring if nothing else took time. Pure.

Samuel Williams, Andrew Waterman, David Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_BAR = 30  # characters
HIGH = 1e9  # samples per second: a higher ceiling is none


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of the machine could bring if nothing else took time."""

    part: str
    per_s: float | None  # samples; None: not measured
    why: str  # what a sample costs of it, and how much there is; or why it was not measured


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a loader, and its ceilings."""

    measured_per_s: float  # samples
    ceilings: tuple[Ceiling, ...]  # the lowest first, those that were not measured last
    demand_per_s: float | None = None  # of the model, if it never waits; None: not given

    @property
    def known(self) -> list[tuple[Ceiling, float]]:
        return [(one, one.per_s) for one in self.ceilings if one.per_s is not None]

    def used(self, per_s: float) -> float:
        """Return how much of a ceiling is used, as a share."""
        return min(1.0, self.measured_per_s / per_s)


def in_order(ceilings: Iterable[Ceiling | None]) -> tuple[Ceiling, ...]:
    """Return the ceilings that there are, the lowest first, those that were not measured last."""
    return tuple(sorted((one for one in ceilings if one is not None), key=lambda one: one.per_s or float("inf")))


def time_in_words(seconds: float) -> str:
    """Return a time in a suitable unit."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def shares_in_words(parts: Mapping[str, float]) -> str:
    """Return what a time consists of, the longest first, after a colon; empty if nothing is known."""
    total = sum(parts.values())
    longest = sorted(parts.items(), key=lambda one: -one[1])
    text = ", ".join(f"{name} {value / total:.0%}" for name, value in longest if value >= 0.01 * total)
    return f": {text}" if text else ""


def as_text(found: Roofline) -> str:
    """Return the rate and the ceilings as lines for people, each with a bar of how much of it is used."""
    measured = found.measured_per_s
    lines = [
        f"  {'measured':<16}{measured:>12,.0f} samples/s",
        "Ceilings, if nothing else took time, and what a sample takes:",
    ]
    for one in found.ceilings:
        if one.per_s is None:
            lines.append(f"  {one.part:<16}{'not measured':>12}  {one.why}")
            continue
        used = found.used(one.per_s)
        bar = "#" * round(used * _BAR)
        lines.append(f"  {one.part:<16}{one.per_s:>12,.0f}  {bar:.<{_BAR}} {used:>4.0%}  {one.why}")
    return "\n".join([*lines, *conclusions(found)])


def conclusions(found: Roofline) -> list[str]:
    """Return which ceiling is the lowest and how far the next is, and whether the demand is met; none if none is known."""
    if not found.known:
        return []
    (lowest, low), *rest = found.known
    used = found.measured_per_s / low
    text = f"The lowest ceiling is {lowest.part}, {used:.0%} used"
    text += f"; with more of that, the next is {rest[0][0].part}, {rest[0][1] / low:.3g} times as high." if rest else "."
    lines = [text]
    if found.demand_per_s is not None:
        ratio = found.measured_per_s / found.demand_per_s
        met = "the loader keeps up" if ratio >= 1 else f"it waits for data {1 - ratio:.0%} of the time"
        beyond = [one.part for one, per_s in found.known if per_s < found.demand_per_s]
        more = f"; too low for it: {', '.join(beyond)}" if beyond else ""
        lines.append(f"The model takes {found.demand_per_s:,.0f} samples/s: {met}{more}.")
    return lines


def as_json(found: Roofline) -> Mapping[str, Any]:
    """Return it as JSON-safe values."""
    builtins: Mapping[str, Any] = msgspec.to_builtins(found)
    return builtins
