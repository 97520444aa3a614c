"""Look up usable cores, shared memory, the environment, versions of packages and how to install more, whose a class is."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import shlex
import sys
import urllib.parse
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 30


def num_usable_cores() -> int:
    """Return the smallest limit of affinity, the cgroup's quota and SLURM; at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), _cgroup_cores(), positive_environment("SLURM_CPUS_PER_TASK", _UNLIMITED)))


def memory_nbytes() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def positive_environment(name: str, default: int) -> int:
    """Return a count from the environment, or `default` unless it is above 0."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default


def importing_as_here() -> dict[str, str]:
    """Return the environment for another interpreter that is to import what this one would, from whatever directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if isinstance(path, str))}


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


class SharedMemory(NamedTuple):
    """The file system at /dev/shm, through which processes share memory, in bytes."""

    total_nbytes: int
    free_nbytes: int


def shared_memory() -> SharedMemory | None:
    """Return how large /dev/shm is and how much of it is free; None if there is none, and torch shares memory elsewhere."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def install_command(name: str) -> str:
    """Return the line that installs an extra of this package, from where the package itself was installed from."""
    return f"pip install {extra(name)}"


@functools.cache
def extra(name: str) -> str:
    """Return an extra of this package as pip takes it: of the folder or repository that pip noted to be its source (PEP 610)."""
    package = "gpu-datapipe"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        noted = json.loads(importlib.metadata.distribution(package).read_text("direct_url.json") or "{}")
        url = str(noted["url"])
        if "vcs_info" in noted:
            return shlex.quote(f"{package}[{name}] @ {noted['vcs_info']['vcs']}+{url}")
        folder = urllib.parse.unquote(urllib.parse.urlsplit(url).path) if "dir_info" in noted else ""
        package = folder if folder and os.path.isfile(os.path.join(folder, "pyproject.toml")) else package
    return shlex.quote(f"{package}[{name}]")


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
