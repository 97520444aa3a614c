"""What a path or URL of a user's names, as it stands now: on the Hub, a branch is the commit that it stands at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from datapipe.core.pinning import version_of
from datapipe.stores.attempts import retried
from datapipe.stores.hub.commits import commit_of, is_commit, listing
from datapipe.stores.location import HUB_SCHEME, Location, Place, is_url, located
from datapipe.stores.objects import open_timeout_s

_T = TypeVar("_T")


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
        commit = version_of(f"hf://datasets/{location.root}", lambda: _asked(commit_of, location))
        location = replace(location, root=f"{dataset}@{commit}")
    return location if location.key else replace(location, key=_asked(listing, location).only_folder())


def _asked(ask: Callable[[str], _T], location: Location) -> _T:
    return retried(lambda _: ask(location.root), location, timeout_s=open_timeout_s())
