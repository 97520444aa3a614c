"""Whether a sampler of the user's gives again what it gave: a running hash of its positions, kept in saved states."""

from __future__ import annotations

import hashlib

from datapipe.core.errors import StateError
from datapipe.order.plan import Cursor, Rank

_MAX_KNOWN = 4096  # places behind batches that are in the making


class Trail:
    """Of a loader's sampler: what a saved state keeps of it, and the comparison with the state that was loaded last."""

    def __init__(self) -> None:
        self._resumed = Cursor(), ""
        self._known: dict[Cursor, str] = {}

    def resume(self, place: Cursor, trail: str) -> None:
        """A pass is to go on from that place, up to which the sampler is to give what has this trail."""
        self._resumed = place, trail
        self._known.clear()

    def begin(self, rank: Rank) -> Walk:
        """A pass over the sampler, from its beginning."""
        return Walk(self, f"{rank.rank}/{rank.world_size}")

    def at(self, place: Cursor) -> str:
        """What a state saved there keeps; "" where that is not known."""
        resumed, trail = self._resumed
        return self._known.get(place, trail if place == resumed else "")

    def note(self, place: Cursor, trail: str) -> None:
        """Raises StateError at the place to go on from if the trail up to there is another one than then.

        States of other ranks, whose samplers give them other positions, are not compared.
        """
        resumed, expected = self._resumed
        whose = trail.partition(" ")[0]
        if place == resumed and trail != expected and expected.startswith(f"{whose} "):
            raise StateError(
                "the sampler does not give again what it gave before the state was saved, or before Ctrl-C "
                f"(epoch {place.epoch}), so what is left of the epoch is not known; use datapipe.WeightedSampler, shuffle=True "
                "on dataset.select(...), or a sampler that is seeded anew for each epoch in set_epoch(epoch)"
            )
        self._known[place] = trail
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


class Walk:
    """One pass over a sampler."""

    def __init__(self, trail: Trail, whose: str) -> None:
        self._trail, self._whose = trail, whose
        self._hash = hashlib.sha256()

    def add(self, given: bytes, after: Cursor) -> None:
        """What is in the next batch, and the place behind it."""
        self._hash.update(given)
        self._trail.note(after, f"{self._whose} {self._hash.hexdigest()[:16]}")
