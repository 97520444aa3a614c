"""Decide how many requests may be in progress at once, from their measured times. Pure arithmetic; times are passed in."""

from __future__ import annotations

from collections import deque

MIN_REQUESTS, MAX_REQUESTS = 64, 512
MAX_NBYTES = 256 << 20
_LEAST_AFTER_THROTTLING = 8
_HEADROOM = 1.5  # of the requests that the rate and the latency come to
_RECOVERY = 1.1  # per tick, after throttling
_KEPT = 512  # latencies


class RequestWindow:
    """The limit of requests in flight: 1.5 x rate x p95 latency, from 64 to `most`, halved when the store throttles."""

    def __init__(self, most: int = MAX_REQUESTS) -> None:
        self.most = most
        self._ceiling = float(most)
        self._latencies: deque[float] = deque(maxlen=_KEPT)
        self._num_done = 0
        self._last_tick_s: float | None = None
        self.limit = min(MIN_REQUESTS, most)
        self.p95_s = 0.0
        self.rate = 0.0  # requests per second, between the last two ticks

    def allow(self, most: int) -> None:
        """Let the limit be `most` at most, from now on."""
        self.most, self.limit = most, min(self.limit, most)

    def done(self, latency_s: float) -> None:
        """Count a request that succeeded."""
        self._latencies.append(latency_s)
        self._num_done += 1

    def throttled(self) -> None:
        """Halve the limit, because the store throttles."""
        self._ceiling = max(_LEAST_AFTER_THROTTLING, min(self._ceiling, self.limit) / 2)
        self.limit = min(self.limit, int(self._ceiling))

    def tick(self, now_s: float) -> None:
        """Set the limit from the results since the last tick."""
        if self._last_tick_s is not None and now_s > self._last_tick_s:
            self.rate = self._num_done / (now_s - self._last_tick_s)
        self._last_tick_s, self._num_done = now_s, 0
        if self._latencies:
            ordered = sorted(self._latencies)
            self.p95_s = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        wanted = max(MIN_REQUESTS, _HEADROOM * self.rate * self.p95_s)
        self._ceiling = min(self.most, self._ceiling * _RECOVERY)
        self.limit = max(1, int(min(wanted, self._ceiling)))

    @property
    def hedge_after_s(self) -> float:
        """The age of an attempt at which a second one starts, in seconds."""
        return max(1.0, 4 * self.p95_s)
