"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest


class TwoNodes:
    """A cluster of two nodes with one core each, to which this process is connected."""

    def __init__(self, folder: str) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.settings = {"num_cpus": 1, "object_store_memory": 80_000_000, "temp_dir": folder}
        quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**self.settings, "include_dashboard": False, "_system_config": quick}
        )
        self.second = self.cluster.add_node(**self.settings)
        self.address: str = self.cluster.address
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def _registered_by_ray(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return the functions that Ray will have registered to be called at exit."""
    found: list[Any] = []
    register = atexit.register

    def noted(function: Any, *args: Any, **kwargs: Any) -> Any:
        if str(getattr(function, "__module__", "")).startswith("ray"):
            found.append(function)
        return register(function, *args, **kwargs)

    patch.setattr(atexit, "register", noted)
    return found


@contextlib.contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Begin the cluster for the block."""
    short = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)  # as sockets have short names
    with short as folder, pytest.MonkeyPatch.context() as patch:
        # `Cluster` notes its address there, for which it expects a folder `ray`, as it stands in /tmp of whoever used Ray before.
        patch.setenv("RAY_TMPDIR", folder)
        os.mkdir(f"{folder}/ray")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        at_exit = _registered_by_ray(patch)
        patch.delenv("RAY_ADDRESS", raising=False)
        nodes = TwoNodes(folder)
        try:
            yield nodes
        finally:
            nodes.close()
            # A child that a later test forks forgets these at once (Python 3.14's multiprocessing does so), which frees Ray's
            # nodes and their clients; these would wait for threads that only this process has.
            for function in at_exit:
                atexit.unregister(function)
