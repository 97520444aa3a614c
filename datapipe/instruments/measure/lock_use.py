"""What was seen of Python's global lock in a process."""

from __future__ import annotations

import msgspec


class LockHolder(msgspec.Struct, frozen=True):
    """A thread that computed, other than the training's."""

    thread: str  # its name
    where: str  # the user's function that it was in most often when the lock was taken: file:line and its name
    cpu_share: float  # of the CPU time of the process's Python threads


class LockUse(msgspec.Struct, frozen=True):
    """How often the lock was taken when a thread that had slept wanted it."""

    late_share: float  # of its wake-ups, that had to wait for the lock of another thread's Python
    holders: tuple[LockHolder, ...] = ()  # the busiest first; none if no other thread runs much code of the user
