"""Choose what to try, from how batches were made."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.instruments.torch_stages.profile import Making

MOSTLY = 0.5  # share of the time to make a batch from which more workers than cores make sense, if that is waiting


def worker_counts(now: int, cores: int, *, waits: bool) -> list[int]:
    """Return the numbers of workers worth trying instead of `now`, ascending. `waits`: see `mostly_waits`."""
    most = 4 * cores if waits else max(cores, min(now, 2 * cores))
    nums = {max(1, now // 2), 2 * now, cores - 1, cores, *((2 * cores, 4 * cores) if waits else ())}
    return sorted(num for num in nums if 0 < num <= most and num != now)


def mostly_waits(made: Sequence[Making]) -> bool:
    """Return True if workers neither compute nor wait for a core for most of the time that batches take."""
    return waiting_share(made) > MOSTLY


def waiting_share(made: Sequence[Making]) -> float:
    """Return the share of the time to make batches that is spent neither on a core nor waiting for one."""
    busy_ns = sum(one.cpu_ns + (one.counters.queued_ns or 0) for one in made)
    all_ns = sum(one.total_ns for one in made)
    return 1 - busy_ns / all_ns if all_ns else 0.0


def waits_for_storage(made: Sequence[Making]) -> bool:
    """Return True if files came from storage rather than memory, as they then must in trials."""
    nbytes = [one.counters.storage_nbytes for one in made]
    known = [one for one in nbytes if one is not None]
    read = [one.counters.read_nbytes or 0 for one in made]
    return bool(known) and sum(known) > 0.5 * sum(read)
