"""Tars and archives in stores: which a URL names, and their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from datapipe.containers.listing import is_junk
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.remote_shards import named_shards
from datapipe.core.errors import MissingDataError
from datapipe.stores.location import Location
from datapipe.stores.objects import ListedObject, list_objects, object_facts
from datapipe.stores.random_access import pin_object


def objects_at(
    location: Location, is_wanted: Callable[[bytes], bool], *, what: str
) -> tuple[Location, dict[bytes, ListedObject]]:
    """Return the objects that a URL names, by name, and the prefix that names are below.

    The URL is that of one object of a wanted name, of shards by a pattern or braces, or of a prefix, whose wanted objects are
    taken, sorted. Raises MissingDataError, StorageError, and OptionError where the store cannot list.
    """
    named = None if is_wanted(location.name.encode()) and not _is_pattern(location) else named_shards(str(location))
    if named is not None:
        return named.location, {os.fsencode(one.name): one for one in named.objects}
    if is_wanted(location.name.encode()):
        parent = Location(location.scheme, location.root, location.key.rpartition("/")[0])
        return parent, {location.name.encode(): object_facts(location)}
    found = [one for one in list_objects(location) if is_wanted(one.name.encode()) and not is_junk(one.name.encode())]
    if not found:
        raise MissingDataError(f"{location}: no {what}; pass one, or the prefix that holds them")
    return location, {one.name.encode(): one for one in found}


@contextmanager
def opened_object(root: Location, found: ListedObject, form: str) -> Iterator[ByteSource]:
    """Open the bytes of an object as it was listed. Raises as `byte_source` does, also where it has changed since."""
    url = str(root / found.name)
    if found.etag is not None:
        pin_object(url, etag=found.etag, nbytes=found.nbytes)
    with byte_source(url, form) as data:
        yield data


def _is_pattern(location: Location) -> bool:
    return any(sign in location.name for sign in "*[{")
