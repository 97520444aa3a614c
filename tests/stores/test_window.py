"""The number of requests under way follows Little's law and gives way when the store throttles."""

from __future__ import annotations

from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.stores.window import MAX_REQUESTS, MIN_REQUESTS, RequestWindow


def run(window: RequestWindow, *, rate: float, latency_s: float, ticks: int, start_s: float = 0.0) -> float:
    """Let so many requests a second be done, a quarter of a second between ticks; the time at the end."""
    now_s = start_s
    window.tick(now_s)
    for _ in range(ticks):
        for _ in range(int(rate / 4)):
            window.done(latency_s)
        now_s += 0.25
        window.tick(now_s)
    return now_s


@given(rate=st.floats(1, 1000), latency_s=st.floats(0.001, 5))
@quick
def test_limit_is_half_as_much_again_as_needed(rate: float, latency_s: float) -> None:
    window = RequestWindow()
    run(window, rate=rate, latency_s=latency_s, ticks=4)
    needed = 1.5 * (int(rate / 4) * 4) * latency_s
    assert window.limit == int(min(MAX_REQUESTS, max(MIN_REQUESTS, needed)))


@given(most=st.integers(1, 2000), latency_s=st.floats(0.001, 5))
@quick
def test_limit_is_never_above_what_was_allowed(most: int, latency_s: float) -> None:
    window = RequestWindow(most)
    run(window, rate=500, latency_s=latency_s, ticks=3)
    assert 1 <= window.limit <= most


def test_fewer_count_at_once() -> None:
    window = RequestWindow()
    window.allow(3)
    assert window.limit == 3
    window.allow(MAX_REQUESTS)
    run(window, rate=2000, latency_s=0.2, ticks=80)
    assert window.limit == MAX_REQUESTS


def test_throttling_halves_and_the_limit_recovers() -> None:
    window = RequestWindow()
    now_s = run(window, rate=2000, latency_s=0.2, ticks=4)
    assert window.limit == MAX_REQUESTS
    window.throttled()
    assert window.limit == MAX_REQUESTS // 2
    for _ in range(20):
        window.throttled()
    assert window.limit == 8
    run(window, rate=2000, latency_s=0.2, ticks=80, start_s=now_s)
    assert window.limit == MAX_REQUESTS


def test_hedges_wait_for_what_is_usual() -> None:
    window = RequestWindow()
    assert window.hedge_after_s == 1.0
    run(window, rate=100, latency_s=0.9, ticks=2)
    assert window.hedge_after_s == 3.6
