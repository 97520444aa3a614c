"""Import Ray, and connect to a cluster: quietly, without taking the signals of the process."""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import Any

from datapipe.core.environment import extra, install_command
from datapipe.core.waiting import reported_wait
from datapipe.errors import DependencyError, OptionError

_CONNECT_S = 10.0


def import_ray(asked_for: str) -> Any:
    """Return Ray. `asked_for`: the option that needs it. Raises DependencyError."""
    try:
        import ray
    except ImportError as exc:
        raise DependencyError(f"{asked_for}: Ray is not installed; {install_command('ray')}, on every node") from exc
    except Exception as exc:  # a broken installation raises whatever it meets first
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.200}"
        raise DependencyError(
            f"{asked_for}: Ray does not import ({what}); install it again: pip install --force-reinstall {extra('ray')}"
        ) from exc
    return ray


def is_connected(ray: Any, address: str | None, named: str) -> bool:
    """Return whether this process is connected. Raises OptionError if it is, to another cluster than that at `address`."""
    if not ray.is_initialized():
        return False
    connected = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise OptionError(f"{named}: this process is connected to {connected}; call ray.shutdown(), or leave it out")
    return True


def connect(ray: Any, address: str, named: str) -> None:
    """Connect this process to the cluster at `address`, "HOST:PORT" or "auto". `named`: the option, with its value.

    Raises OptionError if no cluster answers, and for addresses of Ray's client.
    """
    if "://" in address:
        raise OptionError(
            f"{named}: Ray's client (ray://) is no part of the cluster; run on a machine of the cluster, or by `ray job submit`,"
            " with the address auto"
        )
    if address != "auto":
        _refuse_silent(address, named)
    try:
        with reported_wait("the Ray cluster", f"this process connects to {address}"):
            begin(ray, address=address)
    except Exception as exc:  # Ray raises errors of many types here, among them plain Exception
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.300}"
        raise OptionError(f"no Ray cluster at {named}: {what}; see docs/clusters.md") from exc


def joined(asked_for: str, address: str | None, named: str) -> Any:
    """Return Ray, with this process connected to the cluster at `address`; None: that of RAY_ADDRESS, or of this machine.

    `asked_for`: the option that needs it; `named`: with its value. Raises what `import_ray`, `is_connected` and `connect` raise.
    """
    ray = import_ray(asked_for)
    if not is_connected(ray, address, named):
        connect(ray, address_of_cluster(address) or "auto", named)
    return ray


def cores_of_others(ray: Any) -> list[int]:
    """Return the cores of each node of the cluster that has some, without the node of this process."""
    here = ray.get_runtime_context().get_node_id()
    cores = (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)
    return [number for number in cores if number]


def begin(ray: Any, **settings: Any) -> None:
    """Call `ray.init`, quietly; the process keeps its own way to end at SIGTERM."""
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    if signal.getsignal(signal.SIGTERM) is not handler:
        signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process without stopping tasks


def address_of_cluster(address: str | None) -> str | None:
    """Return the address that the user gave, by the option or by RAY_ADDRESS."""
    return address or os.environ.get("RAY_ADDRESS")


def _refuse_silent(address: str, named: str) -> None:
    """Raise OptionError if nothing answers at HOST:PORT; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with reported_wait(f"the Ray cluster at {address}", f"no answer yet, for {_CONNECT_S:.0f} s at most"):
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as exc:
        raise OptionError(f"no Ray cluster at {named}: {exc}; `ray status` on a machine of the cluster shows HOST:PORT") from exc
