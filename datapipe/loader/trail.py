"""Whether a sampler of the user's gives again what it gave: a running hash of its positions, kept in saved states."""

from __future__ import annotations

import hashlib

from datapipe.errors import StateError
from datapipe.plan import Cursor, Rank

_MAX_KNOWN = 4096  # places behind batches that are in the making


class Trail:
    """Of one pass on one rank. `resumed`: the place and the trail of a saved state that the pass may go on from."""

    def __init__(self, rank: Rank, resumed: tuple[Cursor, str] = (Cursor(), "")) -> None:
        self._whose = f"{rank.rank}/{rank.world_size}"
        self._resumed = resumed
        self._hash = hashlib.sha256()
        self._known: dict[Cursor, str] = {}

    def add(self, positions: bytes, after: Cursor) -> None:
        """The positions of the next batch, and the place behind it.

        Raises StateError at the place to go on from if what was given up to there is not what was given then. States of other
        ranks, whose samplers give them other positions, are not compared.
        """
        self._hash.update(positions)
        trail = self._known[after] = f"{self._whose} {self._hash.hexdigest()[:16]}"
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        place, expected = self._resumed
        if place == after and trail != expected and expected.startswith(f"{self._whose} "):
            raise StateError(
                f"the sampler does not give again what it gave before the state was saved (epoch {after.epoch}), so what is left "
                "of the epoch is not known; use datapipe.WeightedSampler, shuffle=True on dataset.select(...), or a sampler that "
                "is seeded anew for each epoch in set_epoch(epoch)"
            )

    def at(self, place: Cursor) -> str:
        """What a state saved there keeps; "" where that is not known."""
        resumed, expected = self._resumed
        return self._known.get(place, expected if place == resumed else "")
