"""Look up usable cores, counts in environment variables, versions of distributions and of the driver, and whose an object is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

_UNLIMITED = 1 << 30


def num_usable_cores() -> int:
    """Return the smallest limit of affinity, the cgroup's quota and SLURM; at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), _cgroup_cores(), positive_environment("SLURM_CPUS_PER_TASK", _UNLIMITED)))


def positive_environment(name: str, default: int) -> int:
    """Return a count from the environment, or `default` unless it is above 0."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default


def _cgroup_cores() -> int:
    """Return the quota of cgroup v2 or v1, in whole cores, rounded up; a very large number if there is none."""
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            words = Path(path).read_text().split()
            period = words[1] if len(words) > 1 else Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text()
            if words[0] != "max" and int(words[0]) > 0:
                return max(1, -(-int(words[0]) // int(period)))
        except (OSError, ValueError, IndexError):
            continue
    return _UNLIMITED


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str:
    """Return the version of NVIDIA's kernel driver from its files; "" if there is none."""
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return ""


def is_of_datapipe(value: object) -> bool:
    """Return whether the class of `value` is datapipe's own."""
    return type(value).__module__.startswith("datapipe.")
