"""The task that a node of a cluster runs: compare versions, then build one shard.

Ray sends these functions by value, so that they run on a node without datapipe, too, and say so. Therefore only the standard
library is imported at the top.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGES = ("pyarrow", "h5py", "numpy", "pillow", "simplejpeg", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
_REPORT_EVERY_S = 0.25


def versions() -> dict[str, str]:
    """Return the versions, on this machine, of everything that the written bytes may depend on."""
    found = {name: _installed(name) for name in _PACKAGES}
    found["datapipe"] = f"{_installed('gpu-datapipe')} (source {_source_digest()})"
    with contextlib.suppress(ImportError):
        found["HDF5"] = importlib.import_module("h5py").version.hdf5_version
    with contextlib.suppress(ImportError):
        features = importlib.import_module("PIL.features")
        for name in ("jpg", "libjpeg_turbo", "zlib", "webp"):
            found[f"pillow's {name}"] = str(features.version(name))
    found["processor"] = platform.machine()
    return found


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _source_digest() -> str:
    """Return eight digits that stand for the text of the two packages, since a version may be that of many commits."""
    digest = hashlib.sha256()
    for package in ("converters", "datapipe"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            return "absent"
        top = Path(spec.origin).parent
        for path in sorted(top.rglob("*.py")):
            digest.update(os.fsencode(path.relative_to(top)) + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def differing(node: str, found: dict[str, str], expected: dict[str, str]) -> str | None:
    """Return how a node's versions differ from those of the command, None if they do not."""
    names = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if not names:
        return None
    absent = "not installed"
    return f"{node} has " + ", ".join(
        f"{name} {found.get(name, absent)} instead of {expected.get(name, absent)}" for name in names
    )


def node_name() -> str:
    """Return the name and address of this machine."""
    import ray

    return f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"


def look() -> tuple[str, dict[str, str]]:
    """Return (name, versions) of the node."""
    return node_name(), versions()


def build(
    job: dict[str, Any], shard: tuple[Any, ...], stop: str, expected: dict[str, str], compared: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Build one shard; yield {"samples": [number, bad ones]} now and then, or in the end {"error": class, "message": text}.

    The first answer says that it has begun. `job`: a ShardJob as JSON. `shard`: the values of a PlannedShard. `stop`: a
    file that says, if it is there, that nothing is to be built any more. `expected`: the versions of the command. `compared`: ids
    of the nodes whose versions have been found to be these; others may have joined since.
    """
    import ray

    if os.path.exists(stop):
        return
    yield {"samples": [0, 0]}
    if ray.get_runtime_context().get_node_id() not in compared:
        skew = differing(node_name(), versions(), expected)
        if skew is not None:
            yield {"error": "DependencyError", "message": f"{skew}; install the same versions on every node"}
            return
    from converters.planning.plan import PLAN_NAME, PlannedShard, open_samples
    from converters.runs import from_json
    from converters.shards import ShardJob, build_shard, error_to_json
    from converters.writers import TARGETS
    from datapipe.errors import StorageError
    from datapipe.stores.location import is_url

    try:
        opened, planned = from_json(job, ShardJob), PlannedShard(*shard)
        for path in (opened.building / PLAN_NAME, *(() if is_url(opened.root) else (Path(opened.root),))):
            if not path.exists():
                raise StorageError(
                    f"{path}: not found on node {node_name()}; source and destination must be on a disk that every node sees"
                    " at the same path"
                )
        num_samples = num_bad = 0
        reported = time.monotonic()
        with (
            open_samples(opened.building / PLAN_NAME) as samples,
            contextlib.closing(build_shard(opened, TARGETS[opened.target], planned, samples)) as progress,
        ):
            for more, more_bad in progress:
                num_samples += more
                num_bad += more_bad
                if num_bad or time.monotonic() - reported > _REPORT_EVERY_S:
                    yield {"samples": [num_samples, num_bad]}
                    num_samples = num_bad = 0
                    reported = time.monotonic()
        yield {"samples": [num_samples, num_bad]}
    except Exception as exc:
        yield error_to_json(exc)
