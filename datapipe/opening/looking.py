"""Look at many files or objects for an index, which is kept in the user's cache for as long as they do not change."""

from __future__ import annotations

import hashlib
import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from datapipe.containers.foreign import UNREAD, cached_home, index_stamp, progress, stamp_of, write_stamp
from datapipe.core import atomic
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError
from datapipe.index.media import MediaIndex, MediaSource
from datapipe.stores.location import is_url
from datapipe.stores.random_access import pin_each

_T = TypeVar("_T")
_Index = TypeVar("_Index", bound=MediaIndex)
_Look = Callable[[MediaSource], Any]  # returns an entry of the index

_CHUNK = 64  # files whose waits are judged together
_NUM_THREADS = 16  # which wait for a store or a slow disk most of the time
_MAX_AHEAD = 64  # looks that are held for those before them


@dataclass(frozen=True, slots=True)
class KeptForm(Generic[_Index]):
    """The form in which the index of files of one kind is kept."""

    name: str  # "videos"
    unit: str  # "video"
    version: str
    read: Callable[[Path, str], _Index]  # by the fingerprint; raises FormatError
    write: Callable[[IO[bytes], Iterable[Any]], None]
    identity: Callable[[Any], bytes]  # what tells an entry from another, wherever it lies


def open_kept(form: KeptForm[_Index], sources: Sequence[MediaSource], look: _Look, *, where: str) -> _Index:
    """Return the index of these files, in this order: the kept one, if none has changed since; else one made now.

    Those that have changed alone are looked at, as sizes and times show. `where`: the path of the data, for messages and to find
    the kept index again. Raises StorageError if nothing can be kept.
    """
    digest = hashlib.sha256(repr([tuple(source) for source in sources]).encode(errors="surrogateescape")).hexdigest()
    home = index_directory(INDEXES, cached_home(form.name, where, digest).name)
    with one_at_a_time(home / ".lock"):
        kept = _kept(form, home, len(sources))
        pin_each(dict.fromkeys(source.path for source in sources if is_url(source.path)))  # they are the same from now on
        if kept is not None and _are_current(kept, sources):
            return kept
        with reported_wait(f"the index of {where}", "the files are looked at once, for as long as they do not change"):
            return _made(form, home, sources, _look_again(sources, kept, look), where)


def _kept(form: KeptForm[_Index], home: Path, num: int) -> _Index | None:
    stamp = index_stamp(home)
    if stamp.get(form.name) != form.version:
        return None
    try:
        kept = form.read(home / f"{form.name}.arrow", str(stamp.get("fingerprint")))
    except FormatError:
        return None
    return kept if len(kept) == num else None


def _are_current(kept: MediaIndex, sources: Sequence[MediaSource]) -> bool:
    path, stamp = "", UNREAD
    for number, source in enumerate(sources):
        if source.path != path:  # ranges of one file follow each other
            path, stamp = source.path, stamp_of(source.path)
        if stamp == UNREAD or kept.stamp(number) != stamp:
            return False
    return True


def _look_again(sources: Sequence[MediaSource], kept: MediaIndex | None, look: _Look) -> Iterator[Any]:
    """Yield the entries of all files in order, without a look at those that have not changed."""

    def entry(number: int) -> Any:
        if kept is not None and (stamp := stamp_of(sources[number].path)) != UNREAD and kept.stamp(number) == stamp:
            return kept.entry(number)
        return look(sources[number])

    return look_at_each(entry, len(sources), is_remote=any(is_url(source.path) for source in sources))


def _made(form: KeptForm[_Index], home: Path, sources: Sequence[MediaSource], entries: Iterator[Any], where: str) -> _Index:
    digest, path = hashlib.sha256(), home / f"{form.name}.arrow"

    def noted() -> Iterator[Any]:
        for entry in progress(entries, where, total=len(sources), unit=form.unit):
            digest.update(form.identity(entry))
            yield entry

    with atomic.atomic_writer(path, mode=0o600) as file:
        form.write(file, noted())
    fingerprint = digest.hexdigest()[:16]
    write_stamp(home, {form.name: form.version, "fingerprint": fingerprint})
    return form.read(path, fingerprint)


def look_at_each(look: Callable[[int], _T], num: int, *, is_remote: bool) -> Iterator[_T]:
    """Yield what `look` returns for each of the numbers below `num`, in order.

    Threads fight over the interpreter's lock: with files in the page cache, two take 1.4 to 3 times as long as one. So there are
    none until a chunk of files has waited longer than it has computed; for what is `is_remote` there are from the beginning.
    """
    numbers = iter(range(num))
    if not is_remote:
        yield from _until_waiting(look, numbers)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        ahead: deque[Future[_T]] = deque()
        for number in numbers:
            ahead.append(pool.submit(look, number))
            if len(ahead) > _MAX_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _until_waiting(look: Callable[[int], _T], numbers: Iterator[int]) -> Iterator[_T]:
    while chunk := list(itertools.islice(numbers, _CHUNK)):
        before, started = resource.getrusage(resource.RUSAGE_THREAD), time.perf_counter()
        found = [look(number) for number in chunk]
        passed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_THREAD)
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield from found
        # A busy machine lets wait as well, and no thread helps there: who waits for a disk gives the core up by itself.
        if passed > 2 * computed and after.ru_nvcsw - before.ru_nvcsw >= len(chunk):
            return
