"""List everything below prefixes, several of them at once; memory does not grow with the number of objects."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from datapipe.core.errors import DatapipeError
from datapipe.stores.failures import examine
from datapipe.stores.location import Location
from datapipe.stores.objects import ListedObject, listed_object, refuse_unlistable
from datapipe.stores.opening import open_store
from datapipe.stores.requests import requests
from datapipe.stores.retries import TIMEOUT_S, pause_s

_PREFIXES_AT_ONCE = 16
_PAGE = 1000  # objects: what stores return in one answer
_PAGES_HELD = 32
_LOOK_S = 0.2


def list_below(location: Location) -> Generator[list[ListedObject]]:
    """Yield all objects under a prefix, at any depth, page by page, by key; names are those below the prefix.

    Raises StorageError, and OptionError where the store cannot list.
    """
    refuse_unlistable(location)
    requests().check_process()
    prefix = f"{location.key}/" if location.key else ""
    last: str | None = None
    attempts, last_s = 0, time.monotonic()
    while True:
        try:
            options: dict[str, Any] = {} if last is None else {"offset": last}
            for page in open_store(location).list(prefix, chunk_size=_PAGE, **options):
                if page:
                    yield [listed_object(meta, prefix) for meta in page]
                    last, attempts, last_s = page[-1]["path"], 0, time.monotonic()
            return
        except DatapipeError:
            raise
        except Exception as exc:
            failure = examine(exc, location)
            if not failure.may_pass or time.monotonic() - last_s >= TIMEOUT_S:
                raise failure.error(location) from None
            time.sleep(pause_s(attempts))
            attempts += 1


def list_each(locations: Sequence[Location]) -> Generator[tuple[int, list[ListedObject]]]:
    """Yield the objects under several prefixes, page by page, as they arrive, each page with the number of its prefix.

    Sixteen prefixes are listed at once. Raises what `list_below` raises.
    """
    pages: queue.Queue[tuple[int, list[ListedObject]] | BaseException | None] = queue.Queue(_PAGES_HELD)
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
                for page in list_below(locations[number]):
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
