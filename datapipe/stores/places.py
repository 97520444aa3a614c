"""Parse the path or URL of a user's to a place as it stands now: of a branch on the Hub, the commit at which it stands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from datapipe.core.pinning import opened_at, version_of
from datapipe.errors import OptionError
from datapipe.stores.attempts import retried
from datapipe.stores.hub.commits import commit_of, is_commit
from datapipe.stores.location import HUB_SCHEME, Location, Place, is_url, located
from datapipe.stores.objects import hub_listing, open_timeout_s


def parse_place(text: str) -> Place:
    """Return the path or the location that a text names. Raises what `parse_location` raises."""
    return parse_location(text) if is_url(text) else Path(text)


def parse_location(url: str) -> Location:
    """Return the location that a URL names.

    A dataset on the Hub is the commit at which its branch, or tag, stands; where nothing further is named, and one folder holds
    all its data, that folder. The Hub is asked once on a machine. Raises OptionError for what is no such URL, and
    MissingDataError or StorageError if the Hub does not have it, or does not answer.
    """
    location = located(url)
    if location.scheme != HUB_SCHEME:
        return location
    dataset, _, revision = location.root.rpartition("@")
    if not is_commit(revision):
        commit = version_of(location.top, lambda chosen: _commit(replace(location, root=f"{dataset}@{chosen or revision}")))
        location = replace(location, root=f"{dataset}@{commit}")
    return location if location.key else replace(location, key=hub_listing(location).only_folder())


def version_key(source: str | os.PathLike[str]) -> str:
    """Return the name under which `pinning` has the version of a path or URL."""
    text = os.fspath(source)
    if not is_url(text):
        return str(Path(text).absolute())
    location = located(text)
    return location.top if location.scheme == HUB_SCHEME else str(location)


@contextlib.contextmanager
def opened_at_version(source: object, version: int | str | None) -> Iterator[Mapping[str, str]]:
    """Open a source within the block at a version, None for its latest; yields the versions of its places, as `opened_at` does.

    Raises OptionError if a version is given, and the source has none.
    """
    if version is None:
        with opened_at({}) as found:
            yield found
        return
    if isinstance(version, bool) or not isinstance(version, (int, str)) or version == "":
        raise OptionError(f"version is {version!r:.60}; pass a number, or a name such as that of a tag")
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"version={version!r:.60} is of a path or a URL, and source is {source!r:.60}; leave it out")
    key = version_key(source)
    with opened_at({key: str(version)}) as found:
        yield found
    if key not in found:
        raise OptionError(f"version={version!r:.60}: {source} has no versions, as Lance datasets and the Hub have; leave it out")


def _commit(location: Location) -> str:
    return retried(lambda _: commit_of(location.root), location, timeout_s=open_timeout_s())
