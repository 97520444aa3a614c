"""Read whole objects, and list prefixes: what lies directly under one, or everything below several at once."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.core.printable import listed
from datapipe.core.remembering import current_scope, recall
from datapipe.core.waiting import reported_wait
from datapipe.errors import DatapipeError, MissingDataError, OptionError
from datapipe.stores.attempts import Attempts, answered, retried
from datapipe.stores.failures import NO_ANSWER, examine
from datapipe.stores.hub.commits import HubFile, HubListing, listing
from datapipe.stores.hub.targets import keep_bytes, kept_bytes
from datapipe.stores.location import HUB_SCHEME, WEB_SCHEMES, Location
from datapipe.stores.opening import open_store
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.requests import requests

OPEN_TIMEOUT_S = 20.0  # without success, at most; short, because the name of a host may be mistyped and a user waits


def open_timeout_s() -> float:
    """Return the seconds without success after which what opens a dataset has failed: those that the user set, if fewer."""
    return min(OPEN_TIMEOUT_S, requests().timeout_s)


def read_object(location: Location) -> bytes:
    """Return all of an object. Raises MissingDataError and StorageError."""
    return read_objects([location])[0]


def read_objects(locations: Sequence[Location]) -> list[bytes]:
    """Return all of several objects, read at once; a long wait is reported. Raises the error of the first that failed.

    Those of the Hub are kept for all processes of this machine, as each request counts there.
    """
    timeout_s = open_timeout_s()
    kept = {location: kept_bytes(location.root, location.key) for location in locations if location.scheme == HUB_SCHEME}
    asked = [location for location in locations if kept.get(location) is None]
    wanted = [PendingBytes(RemoteObject(location), is_urgent=True, timeout_s=timeout_s) for location in asked]
    requests().submit(wanted)
    what = listed([str(location) for location in asked], most=1)
    with reported_wait(what, lambda: next((one.trouble for one in wanted if one.trouble), NO_ANSWER)):
        found = {location: pending.wait() for location, pending in zip(asked, wanted, strict=True)}
    for location in kept.keys() & found.keys():
        keep_bytes(location.root, location.key, found[location])
    return [data if (data := kept.get(location)) is not None else found[location] for location in locations]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a store lists it."""

    name: str  # below the prefix that was listed
    nbytes: int
    etag: str | None


def list_objects(location: Location) -> list[ListedObject]:
    """Return the objects directly under a prefix, by name. Raises StorageError, and OptionError where the store cannot list."""
    refuse_unlistable(location)
    found, prefix = _directly_under(location)
    return sorted((_listed_object(meta, prefix) for meta in found["objects"]), key=lambda one: one.name.encode())


def _directly_under(location: Location) -> tuple[Any, str]:
    """Return what the store lists directly under a prefix, asked once within `remembered`, and what its keys begin with."""
    prefix = f"{location.key}/" if location.key else ""
    return recall(("listing", location), lambda: _ask_for_listing(location, prefix)), prefix


def _ask_for_listing(location: Location, prefix: str) -> Any:
    if location.scheme == HUB_SCHEME:
        return _of_commit(location, prefix)
    return answered(lambda store, _: store.list_with_delimiter_async(prefix), location, timeout_s=open_timeout_s())


def _of_commit(location: Location, prefix: str) -> dict[str, Any]:
    """Return what a commit on the Hub has directly under a prefix, as stores answer."""
    metas, folders = [], dict[str, None]()
    for file in hub_listing(location).below(prefix):
        folder, slash, _ = file.path[len(prefix) :].partition("/")
        if slash:
            folders[prefix + folder] = None
        else:
            metas.append(_meta_of(file))
    return {"objects": metas, "common_prefixes": list(folders)}


def _meta_of(file: HubFile) -> dict[str, Any]:
    return {"path": file.path, "size": file.nbytes, "e_tag": f'"{file.digest}"'}


def hub_listing(location: Location) -> HubListing:
    """Return the files of the location's dataset on the Hub. Raises MissingDataError and StorageError."""
    return retried(lambda _: listing(location.root), location, timeout_s=open_timeout_s())


def object_facts(location: Location, *, timeout_s: float | None = None) -> ListedObject:
    """Return the size and etag of an object. Raises MissingDataError and StorageError."""
    timeout_s = open_timeout_s() if timeout_s is None else timeout_s
    if location.scheme == HUB_SCHEME:
        file = hub_listing(location).find(location.key)
        if file is None:
            raise MissingDataError(f"{location}: no such object; check the URL")
        return ListedObject(location.name, file.nbytes, f'"{file.digest}"')
    meta = answered(lambda store, key: store.head_async(key), location, timeout_s=timeout_s)
    return ListedObject(location.name, meta["size"], meta["e_tag"])


def object_exists(location: Location) -> bool:
    """Return whether there is such an object. Raises StorageError."""
    try:
        object_facts(location)
    except MissingDataError:
        return False
    return True


def _listed_object(meta: Any, prefix: str) -> ListedObject:
    """Return an object of a listing, named below `prefix`; its etag is quoted as in the answers to other requests."""
    etag = meta["e_tag"]
    if etag is not None and not etag.startswith(('"', "W/")):  # Azure's listings leave the quotes out
        etag = f'"{etag}"'
    return ListedObject(meta["path"].removeprefix(prefix), meta["size"], etag)


def refuse_unlistable(location: Location) -> None:
    """Raise OptionError where the store cannot list."""
    if location.scheme in WEB_SCHEMES:
        raise OptionError(f"{location}: a web server does not list what it has; name the objects, as in train-{{000..099}}.tar")


def list_names(location: Location, *, at_most: int = 1000) -> list[str]:
    """Return the names directly under a prefix, those of further prefixes with a slash at the end, sorted.

    Empty if the store cannot list, as an HTTP server. Raises StorageError if it refuses.
    """
    if location.scheme in WEB_SCHEMES:
        return []
    found, prefix = _directly_under(location)
    names = [f"{name.removeprefix(prefix).rstrip('/')}/" for name in found["common_prefixes"]]
    names += [meta["path"].removeprefix(prefix) for meta in found["objects"]]
    return sorted(names)[:at_most]


_PREFIXES_AT_ONCE = 16
_PAGE = 1000  # objects: what stores return in one answer
_PAGES_HELD = 32
_LOOK_S = 0.2


def list_below(location: Location) -> Generator[list[ListedObject]]:
    """Yield all objects under a prefix, at any depth, page by page, by key; names are those below the prefix.

    Raises StorageError, and OptionError where the store cannot list.
    """
    refuse_unlistable(location)
    shared, prefix = requests(), f"{location.key}/" if location.key else ""
    if location.scheme == HUB_SCHEME:
        files = hub_listing(location).below(prefix)
        while some := list(itertools.islice(files, _PAGE)):
            yield [_listed_object(_meta_of(file), prefix) for file in some]
        return
    last: str | None = None
    attempts = Attempts(location, timeout_s=shared.timeout_s)
    while True:
        try:
            options: dict[str, Any] = {} if last is None else {"offset": last}
            pages = open_store(location).list(prefix, chunk_size=_PAGE, **options)
            while (page := shared.call(lambda: next_of(pages), attempts.left_s)) is not None:  # noqa: B023
                if page:
                    yield [_listed_object(meta, prefix) for meta in page]
                    last = page[-1]["path"]
                    attempts.succeeded()
            return
        except DatapipeError:
            raise
        except Exception as exc:
            attempts.failed(examine(exc, location))


def look_below(location: Location) -> list[ListedObject]:
    """Return the first page of the objects under a prefix; within `remembered`, `list_each` goes on from there."""
    pages = list_below(location)
    first = next(pages, [])
    scope = current_scope()
    if scope is None:
        pages.close()
    else:
        scope.values["begun", location] = itertools.chain([first], pages)
        scope.closing.callback(pages.close)
    return first


def _pages_of(location: Location) -> Iterable[list[ListedObject]]:
    """Return the pages of a prefix, those that were taken before first."""
    scope = current_scope()
    begun = None if scope is None else scope.values.pop(("begun", location), None)
    return list_below(location) if begun is None else begun


async def next_of(pages: Any) -> Any:
    """Return what comes next of an asynchronous iterator, None at its end."""
    return await anext(pages, None)


def list_each(locations: Sequence[Location]) -> Generator[tuple[int, list[ListedObject]]]:
    """Yield the objects under several prefixes, page by page, as they arrive, each page with the number of its prefix.

    Sixteen prefixes are listed at once. Raises what `list_below` raises.
    """
    pages: queue.Queue[tuple[int, list[ListedObject]] | BaseException | None] = queue.Queue(_PAGES_HELD)
    listings = [_pages_of(location) for location in locations]
    numbers = iter(range(len(locations)))
    lock, is_over = threading.Lock(), threading.Event()

    def put(found: tuple[int, list[ListedObject]] | BaseException | None) -> bool:
        while not is_over.is_set():
            with contextlib.suppress(queue.Full):
                pages.put(found, timeout=_LOOK_S)
                return True
        return False

    def work() -> None:
        try:
            while not is_over.is_set():
                with lock:
                    number = next(numbers, None)
                if number is None:
                    break
                for page in listings[number]:
                    if not put((number, page)):
                        return
        except BaseException as exc:
            put(exc)
        put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_PREFIXES_AT_ONCE, len(locations)))]
    for thread in threads:
        thread.start()
    try:
        num_running = len(threads)
        while num_running:
            found = pages.get()
            if found is None:
                num_running -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
