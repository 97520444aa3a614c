"""Shards in object stores that others wrote: named by URLs and patterns, indexed in one pass, the index kept locally.

A tar is passed over once, its members' bytes skipped where they are large; of a Parquet file the footer, page headers and small
columns are read. The index counts for as long as every shard has the etag and the size that it had.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datapipe.containers.foreign import ScannedShard, index_stamp, write_index, write_stamp
from datapipe.containers.formats import container_of, only_format, refuse_several_sets, scanner_of
from datapipe.containers.forms import FORMS
from datapipe.containers.shard_lists import ShardList, shard_list, tell_unlisted
from datapipe.core.printable import counted
from datapipe.core.remembering import recall
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, StorageError, UnfinishedError
from datapipe.index.manifest import BUILDING_NAME, Manifest, read_manifest
from datapipe.index.remote_set import RemoteSet, nothing_there
from datapipe.index.sample_index import SampleIndex
from datapipe.stores.location import Location
from datapipe.stores.objects import ListedObject, list_objects, object_facts
from datapipe.stores.places import parse_location
from datapipe.stores.random_access import pin_object

_AT_ONCE = 8  # shards that are looked through
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_NAMES = 1_000_000


@dataclass(frozen=True, slots=True)
class ShardListing:
    """Shards of one format under one prefix."""

    location: Location  # of the prefix
    objects: tuple[ListedObject, ...]
    container: str


def listed_shards(url: str) -> ShardListing:
    """Return the shards that a URL names, or that lie under it; listed once within `remembered`. Raises as `shards_under`."""
    return recall(("shards", url), lambda: named_shards(url) or shards_under(parse_location(url)))


def kept_manifest(listing: ShardListing) -> Manifest | None:
    """Return the manifest of the index of shards that is kept, if it is still true; None if it has to be made."""
    home = _home(listing)
    return read_manifest(home) if index_stamp(home).get("objects") == _facts(listing) else None


def named_shards(url: str) -> ShardListing | None:
    """Return the shards that a URL names itself: an object such as `x.tar`, a pattern, or braces; None for any other URL.

    Braces are those of webdataset (`train-{000..099}.tar`, `{a,b}.tar`); patterns have `*` and `[...]`, in the last part alone.
    Raises MissingDataError, StorageError, and FormatError where there are shards of several formats or prefixes.
    """
    if "{" in url:
        return shards_at([parse_location(one) for one in expanded(url)], url)
    location = parse_location(url)
    if "*" in location.name or "[" in location.name:
        prefix = location.parent
        found = [one for one in list_objects(prefix) if fnmatch.fnmatchcase(one.name, location.name)]
        if not found:
            raise MissingDataError(f"{url}: no object matches")
        return _listing(prefix, found, url)
    if "*" in location.key:
        raise FormatError(f"{url}: a pattern may stand in the last part of a URL alone; open the shards of one prefix at a time")
    if container_of(location.name) is None:
        return None
    return _listing(location.parent, _found([location]), url)


def shards_at(locations: Sequence[Location], named: str) -> ShardListing:
    """Return the shards at these places, in this order; `named` is what to call them. Raises what `named_shards` raises."""
    prefixes = {str(location.parent) for location in locations}
    if len(prefixes) > 1:
        raise FormatError(f"{named}: names shards under {len(prefixes)} prefixes; open the shards of one prefix at a time")
    return _listing(locations[0].parent, _found(locations), named)


def shards_under(location: Location) -> ShardListing:
    """Return the shards under a prefix. Raises MissingDataError where there are none, and what `named_shards` raises."""
    objects = list_objects(location)
    for form, facts in FORMS.items():
        if any(one.name in facts.lists for one in objects) and (listed := shard_list(form, location)) is not None:
            tell_unlisted([one.name for one in objects if container_of(one.name) == form], listed.shards, str(location))
            return shards_in_list(form, listed, objects)
    found = [one for one in objects if container_of(one.name) is not None]
    if not found:
        raise nothing_there(location)
    refuse_several_sets([one.name for one in found], str(location))
    return _listing(location, found, str(location))


def shards_in_list(form: str, listed: ShardList, objects: Sequence[ListedObject] = ()) -> ShardListing:
    """Return the shards that a list in a store names, in its order. `objects`: those that lie beside it, where these are known.

    Raises MissingDataError if one is not there, and FormatError for compressed ones.
    """
    folder, known = parse_location(str(listed.folder)), {one.name: one for one in objects}
    packed = next((shard.packed for shard in listed.shards if shard.packed and shard.name not in known), None)
    if packed is not None:
        what = "compressed, so that no sample can be read by itself from a store"
        raise FormatError(f"{folder / packed}: {what}; copy the folder to a disk, or convert the copy")
    asked = [shard.name for shard in listed.shards if shard.name not in known]
    try:
        found = _found([folder / name for name in asked])
    except MissingDataError as exc:
        raise MissingDataError(f"{exc}; {listed.place} names it") from exc
    known |= {name: replace(one, name=name) for name, one in zip(asked, found, strict=True)}
    return ShardListing(folder, tuple(known[shard.name] for shard in listed.shards), form)


def open_remote_shards(listing: ShardListing) -> SampleIndex:
    """Return the index of shards in a store, from where it is kept if it is still true, else made now.

    Raises StorageError, and FormatError where the contents are not understood.
    """
    refuse_unfinished_at(listing.location)
    objects = {one.name: one for one in listing.objects}
    for name, one in objects.items():
        pin_object(str(listing.location / name), etag=one.etag, nbytes=one.nbytes)
    home = _home(listing)
    facts = _facts(listing)
    if index_stamp(home).get("objects") != facts:
        with one_at_a_time(home / ".lock"):
            if index_stamp(home).get("objects") != facts:
                looked = f"{counted(len(objects), 'shard')} are looked through, once for as long as they do not change"
                with reported_wait(f"the index of {listing.location}", looked):
                    _make_index(listing, home, facts)
    manifest = read_manifest(home)
    remote = RemoteSet(listing.location, home, {name: one.etag for name, one in objects.items()})
    return SampleIndex(manifest, data_directory=home / "shards", sidecar_directory=home, remote=remote)


def _facts(listing: ShardListing) -> dict[str, Any]:
    return {one.name: [one.nbytes, one.etag] for one in listing.objects}


def expanded(url: str) -> Iterator[str]:
    """The URLs that braces stand for, in order. Raises FormatError for braces that are none of webdataset's."""
    found = _BRACES.search(url)
    if found is None:
        if "{" in url or "}" in url:
            raise FormatError(f"{url}: braces that do not match; write e.g. train-{{000..099}}.tar")
        yield url
        return
    bounds = _RANGE.fullmatch(found.group(1))
    if bounds:
        first, last = bounds.groups()
        if not 0 <= int(last) - int(first) < _MAX_NAMES:
            raise FormatError(f"{url}: the range {found.group()} counts down, or names too many shards")
        parts = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    else:
        parts = found.group(1).split(",")
    for part in parts:
        yield from expanded(url[: found.start()] + part + url[found.end() :])


def refuse_unfinished_at(location: Location) -> None:
    """Raise UnfinishedError for shards of a conversion that is under way: those of others come without its claim."""
    try:
        object_facts(location / BUILDING_NAME)
    except (MissingDataError, StorageError):  # also where the store forbids to ask for what is not there
        return
    raise UnfinishedError(
        f"{location}: a conversion into it has not ended (it holds {BUILDING_NAME}); run the same `datapipe convert` again"
    )


def _found(locations: Sequence[Location]) -> list[ListedObject]:
    """Sizes and etags of named objects. Raises MissingDataError for the first that is not there."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(object_facts, locations))


def _listing(prefix: Location, objects: list[ListedObject], url: str) -> ShardListing:
    strange = [one.name for one in objects if container_of(one.name) is None]
    if strange:
        raise FormatError(f"{prefix / strange[0]}: not a shard; name tars or Parquet files alone")
    container = only_format([one.name for one in objects], url, pattern="*.tar")
    if not FORMS[container].in_stores:
        read = ", ".join(name for name, facts in FORMS.items() if facts.shards and facts.in_stores)
        raise FormatError(f"{url}: {container} is not read from stores, {read} are; copy or convert the files")
    return ShardListing(prefix, tuple(objects), container)


def _home(listing: ShardListing) -> Path:
    """The directory in the user's cache that the index is kept in."""
    names = [one.name for one in listing.objects]
    digest = hashlib.sha256(json.dumps([listing.container, str(listing.location), names]).encode()).hexdigest()
    return index_directory(INDEXES, digest[:24])


def _make_index(listing: ShardListing, home: Path, facts: dict[str, Any]) -> None:
    """Look through several shards at once, and write the index in their order."""
    index_shard = scanner_of(listing.container)
    urls = [str(listing.location / one.name) for one in listing.objects]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        found = zip(listing.objects, urls, pool.map(index_shard, urls), strict=True)
        scanned = (ScannedShard(one.name, url, *indexed, one.nbytes) for one, url, indexed in found)
        write_index(home, listing.container, scanned, where=str(listing.location))
    finally:
        pool.shutdown(cancel_futures=True)
    write_stamp(home, {"objects": facts})
