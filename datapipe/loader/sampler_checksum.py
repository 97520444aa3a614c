"""Check that a user's sampler repeats itself: a running checksum of its positions, kept in saved states."""

from __future__ import annotations

import hashlib

from datapipe.core.errors import StateError
from datapipe.order.plan import Cursor, Rank

_MAX_KNOWN = 4096  # places after batches that are in the making


class SamplerChecksum:
    """The checksums of a loader's sampler: what a saved state keeps, and the comparison with the state loaded last."""

    def __init__(self) -> None:
        self._resumed = Cursor(), ""
        self._known: dict[Cursor, str] = {}

    def resume(self, place: Cursor, checksum: str) -> None:
        """Prepare for a pass from that place, up to which the sampler must give positions with this checksum."""
        self._resumed = place, checksum
        self._known.clear()

    def begin(self, rank: Rank) -> ChecksumPass:
        """Begin a pass over the sampler, from its beginning."""
        return ChecksumPass(self, f"{rank.rank}/{rank.world_size}")

    def at(self, place: Cursor) -> str:
        """Return the checksum that a state saved there keeps; "" if it is not known."""
        resumed, checksum = self._resumed
        return self._known.get(place, checksum if place == resumed else "")

    def note(self, place: Cursor, checksum: str) -> None:
        """Record a checksum. Raises StateError at the place to continue from if it differs from the saved one.

        States of other ranks, whose samplers give them other positions, are not compared.
        """
        resumed, expected = self._resumed
        rank = checksum.partition(" ")[0]
        if place == resumed and checksum != expected and expected.startswith(f"{rank} "):
            raise StateError(
                "the sampler does not give the positions that it gave before the state was saved, or before Ctrl-C "
                f"(epoch {place.epoch}), so the rest of the epoch is unknown; use datapipe.WeightedSampler, shuffle=True "
                "on dataset.select(...), or a sampler that is seeded again for each epoch in set_epoch(epoch)"
            )
        self._known[place] = checksum
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


class ChecksumPass:
    """One pass over a sampler."""

    def __init__(self, checksum: SamplerChecksum, rank: str) -> None:
        self._checksum, self._rank = checksum, rank
        self._hash = hashlib.sha256()

    def add(self, given: bytes, after: Cursor) -> None:
        """Add the positions of the next batch, and the place after it."""
        self._hash.update(given)
        self._checksum.note(after, f"{self._rank} {self._hash.hexdigest()[:16]}")
