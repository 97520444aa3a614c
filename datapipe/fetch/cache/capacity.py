"""Choose the capacity of a store if the user gives none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
_V1_UNLIMITED = 1 << 62  # and more, rounded to pages: version 1's value for no limit


def share_of_memory(used: int) -> int:
    """Return half of the available memory, in bytes; `used`: what the store has of it already."""
    return (free_memory() + used) // 2


def share_of_disk(descriptor: int, used: int) -> int:
    """Return four fifths of the free space on the file system of an open file, in bytes; `used`: what the store takes already."""
    status = os.fstatvfs(descriptor)
    return (status.f_bavail * status.f_frsize + used) * 4 // 5


def free_memory(system: Path = Path("/")) -> int:
    """Return what this process could still allocate, in bytes: limited by the machine's available memory and its cgroups.

    `system`: the root of the file system to read.
    """
    available = _UNLIMITED
    for line in _lines(system / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    return max(0, min(available, *_cgroup_headroom(system), _UNLIMITED))


def _cgroup_headroom(system: Path) -> Iterator[int]:
    """Yield the free memory of this process's memory cgroup and its parents, as far as they are visible."""
    for line in _lines(system / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount = system / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = system / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = Path(path)
        for directory in (here, *here.parents):  # in a container only the outermost one is visible
            yield _headroom(mount / str(directory).lstrip("/"), *names)


def _headroom(directory: Path, limit_name: str, usage_name: str, reclaimable: str) -> int:
    try:
        limit = (directory / limit_name).read_text().strip()
        usage = int((directory / usage_name).read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    if not limit.isdecimal() or int(limit) >= _V1_UNLIMITED:
        return _UNLIMITED
    for line in _lines(directory / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == reclaimable:
            usage -= int(value)  # the page cache, which can be reclaimed
    return int(limit) - usage


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
