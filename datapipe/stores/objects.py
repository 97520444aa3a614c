"""Read whole objects and list prefixes; the caller waits for these small requests."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.stores.failures import examine
from datapipe.stores.location import Location
from datapipe.stores.opening import open_store
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.requests import requests

OPEN_TIMEOUT_S = 20.0  # without success; short, because the name of a host may be mistyped and a user waits


def read_object(location: Location) -> bytes:
    """Return all of an object. Raises MissingDataError and StorageError."""
    return read_objects([location])[0]


def read_objects(locations: Sequence[Location]) -> list[bytes]:
    """Return all of several objects, read at once. Raises the error of the first of them that failed."""
    wanted = [PendingBytes(RemoteObject(location), is_urgent=True, timeout_s=OPEN_TIMEOUT_S) for location in locations]
    requests().submit(wanted)
    return [pending.wait() for pending in wanted]


def list_names(location: Location, *, at_most: int = 1000) -> list[str]:
    """Return the names directly under a prefix, those of further prefixes with a slash at the end, sorted.

    Empty if the store cannot list, as an HTTP server. Raises StorageError if it refuses.
    """
    if location.scheme in ("http", "https", "hf"):
        return []
    requests().check_process()
    prefix = f"{location.key}/" if location.key else ""
    try:
        found = open_store(location).list_with_delimiter(prefix)
    except Exception as exc:
        raise examine(exc, location).error(location) from None
    names = [f"{name.removeprefix(prefix).rstrip('/')}/" for name in found["common_prefixes"]]
    names += [meta["path"].removeprefix(prefix) for meta in found["objects"]]
    return sorted(names)[:at_most]
