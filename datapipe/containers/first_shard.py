"""The first of the shards that a path, a pattern or a URL names, whose contents tell what the others hold."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Mapping

from datapipe.containers.formats import container_of
from datapipe.containers.remote_shards import expanded
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.stores.location import is_url, parse_location
from datapipe.stores.objects import list_names


def are_shards(name: str, looks: Mapping[str, Callable[[str], bool]]) -> bool:
    """Return True if a path, pattern, folder or URL names shards of which the first is as wanted. `looks`: by container.

    Raises StorageError.
    """
    try:
        first = _first_shard(name, looks)
        return first is not None and looks[container_of(os.path.basename(first)) or ""](first)
    except (FormatError, MissingDataError):  # of a URL; what reads it says what is wrong
        return False


def _first_shard(name: str, containers: Collection[str]) -> str | None:
    """Return the first file of one of these containers that a path, pattern or URL names, or that lies in it; None if none does.

    Raises StorageError, and for a URL MissingDataError and FormatError.
    """

    def is_wanted(path: str) -> bool:
        return container_of(os.path.basename(path)) in containers

    if is_url(name):
        name = next(expanded(name)) if "{" in name else name
        location = parse_location(name)
        if is_wanted(location.name) and not glob.has_magic(location.name):
            return name
        if glob.has_magic(location.name):
            location = location.parent
        first = next((one for one in list_names(location) if is_wanted(one)), None)
        return None if first is None else str(location / first)
    if os.path.isdir(name):
        try:
            found = [os.path.join(name, one) for one in sorted(os.listdir(name))]
        except OSError as exc:
            raise StorageError(exc.errno, f"{name}: cannot be read ({exc.strerror}); check its permissions") from exc
    else:
        found = [name] if os.path.isfile(name) else sorted(glob.glob(name))
    return next(filter(is_wanted, found), None)
