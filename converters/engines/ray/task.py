"""The task that a node of a cluster runs: compare versions, then build one shard.

Ray sends these functions by value, so that they run on a node without datapipe, too, and say so. Therefore only the standard
library is imported at the top.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REPORT_EVERY_S = 0.25


def versions() -> dict[str, str]:
    """Return the versions, on this machine, of everything that the written bytes may depend on."""
    try:
        from datapipe.core.versions import WRITING
        from datapipe.core.versions import versions as found_here
    except ImportError as exc:
        return {"datapipe": f"not importable ({exc})"}
    return found_here(WRITING)


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
        found = versions()
        if found != expected:
            skew = f"{node_name()} has datapipe {found['datapipe']}"
            with contextlib.suppress(ImportError):
                from datapipe.core.versions import differing

                skew = str(differing(node_name(), found, expected))
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
