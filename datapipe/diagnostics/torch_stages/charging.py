"""Charges a wait to what was at work during it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter


@dataclass(frozen=True, slots=True)
class Span:
    """Something at work. Times on one clock."""

    what: Hashable
    start_ns: int
    end_ns: int


class SpanIndex:
    """Spans that are asked for by time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans, key=attrgetter("start_ns"))
        self._starts = [span.start_ns for span in self._spans]
        self._longest_ns = max((span.end_ns - span.start_ns for span in self._spans), default=0)

    def during(self, start_ns: int, end_ns: int) -> list[Span]:
        """Those that overlap an interval."""
        first = bisect_left(self._starts, start_ns - self._longest_ns)
        return [span for span in self._spans[first : bisect_right(self._starts, end_ns)] if span.end_ns > start_ns]


def charge(start_ns: int, end_ns: int, layers: Sequence[Sequence[Span]], rest: Hashable) -> dict[Hashable, float]:
    """Nanoseconds of the interval by what was at work; they add up to it.

    A moment goes to the spans of the first layer that has any then, in equal parts, and to `rest` where none has.
    """
    charged: defaultdict[Hashable, float] = defaultdict(float)
    left = [(start_ns, end_ns)] if end_ns > start_ns else []
    for layer in layers:
        left = [gap for start, end in left for gap in _charge_layer(charged, start, end, layer)]
    for start, end in left:
        charged[rest] += end - start
    return charged


def _charge_layer(
    charged: defaultdict[Hashable, float], start_ns: int, end_ns: int, spans: Sequence[Span]
) -> list[tuple[int, int]]:
    """Charge one layer's spans within an interval; the parts of it in which there are none."""
    edges: list[tuple[int, int, Hashable]] = []
    for span in spans:
        first, last = max(span.start_ns, start_ns), min(span.end_ns, end_ns)
        if last > first:
            edges += [(first, 1, span.what), (last, -1, span.what)]
    edges.sort(key=itemgetter(0))
    gaps, active, num_active, now = [], Counter[Hashable](), 0, start_ns
    for time_ns, step, what in [*edges, (end_ns, 0, None)]:
        if time_ns > now:
            if num_active:
                for other, num in active.items():
                    if num:
                        charged[other] += (time_ns - now) * num / num_active
            else:
                gaps.append((now, time_ns))
            now = time_ns
        active[what] += step
        num_active += step
    return gaps
