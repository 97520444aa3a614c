"""Convert into an object store: make the result on a local disk, then write it object by object, the manifest last.

The result has a local directory of its own until it is in the store, so that the same command resumes wherever it was
interrupted. A dataset in a store is complete once its `dataset.json` is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from converters.conversion import convert
from converters.inventory import FoundSet, find_sets
from converters.options import ConvertOptions
from converters.report import OnProgress, Report, ignore_progress
from datapipe.core.errors import DatapipeError, MissingDataError, OptionError, StorageError
from datapipe.core.printable import get_logger
from datapipe.core.private_files import private_directory
from datapipe.core.user_cache import STAGED, user_cache
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, Manifest, parse_document
from datapipe.stores.location import Location
from datapipe.stores.objects import list_names, read_object
from datapipe.stores.uploads import delete, refuse_unwritable, size_of, upload

_AT_ONCE = 4  # objects written at once
_ASKED_AT_ONCE = 16  # for their sizes

logger = get_logger(__name__)


def convert_to_store(options: ConvertOptions, location: Location, on_progress: OnProgress = ignore_progress) -> Report:
    """Convert into a store, or resume an interrupted conversion; the report names the local directory.

    `options.destination` is not used. Needs local disk space for the whole result, in the user's cache directory. An existing
    dataset with the same options is kept; one with others is an OptionError without `overwrite`, which deletes its
    manifest first. Raises what `converters.convert` raises, and StorageError if the store refuses, or if another process
    has written something else to that place meanwhile.
    """
    refuse_unwritable(location)
    if options.part is not None:
        raise OptionError("--part needs a destination on a disk that all parts share; convert there, without it into a store")
    staged = user_cache(STAGED) / _name(options, location)
    try:
        with private_directory(staged):
            pass
    except OSError as exc:
        raise StorageError(
            exc.errno, f"{staged}: cannot be written ({exc.strerror}); set XDG_CACHE_HOME to another disk"
        ) from exc
    there = _manifests(location)
    try:
        if there and not options.overwrite:
            report = _compared(options, location, there, staged / "compared", on_progress)
            _remove_left_claim(location, there)
        else:
            made = staged / "made"
            report = convert(dataclasses.replace(options, destination=made, overwrite=False), on_progress)
            claim = _claimed(staged, made, location, overwrite=options.overwrite)
            _write(find_sets(made), location, there)
            delete(claim)
    except DatapipeError as exc:
        for place in ("made", "compared"):
            if str(staged / place) in str(exc):
                raise type(exc)(str(exc).replace(str(staged / place), str(location))) from exc
        raise
    shutil.rmtree(staged)
    return report


def _name(options: ConvertOptions, location: Location) -> str:
    """Return the name of the local directory: one for each location and set of options, since their results differ."""
    lasting = dataclasses.replace(options, destination=Path(), overwrite=False, num_workers=None, engine="local", address=None)
    return hashlib.sha256(f"{location}\n{lasting!r}".encode(errors="surrogateescape")).hexdigest()[:24]


def _manifests(location: Location) -> dict[str, bytes]:
    """Return the manifests in the store, by split: "" for the location itself."""
    found: dict[str, bytes] = {}
    for name in ("", *(name.rstrip("/") for name in list_names(location) if name.endswith("/"))):
        place = (location / name if name else location) / MANIFEST_NAME
        if not name or MANIFEST_NAME in list_names(location / name):
            try:
                found[name] = read_object(place)
            except MissingDataError as exc:
                if "no such object" not in str(exc):
                    raise
    return found


def _compared(
    options: ConvertOptions, location: Location, there: dict[str, bytes], place: Path, on_progress: OnProgress
) -> Report:
    """Compare the existing dataset with the options and the source, like a finished dataset on a disk.

    `place`: receives the manifests, and for each shard in the store an empty file of its size.
    """
    shutil.rmtree(place, ignore_errors=True)
    for name, text in there.items():
        directory, top = place / name, location / name if name else location
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST_NAME).write_bytes(text)
        shards = [shard.name for shard in parse_document(text, str(top / MANIFEST_NAME)).shards]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            for shard, nbytes in zip(shards, pool.map(lambda one, top=top: size_of(top / one), shards), strict=True):
                if nbytes is not None:
                    with (directory / shard).open("xb") as file:
                        file.truncate(nbytes)
    return convert(dataclasses.replace(options, destination=place), on_progress)


def _claimed(staged: Path, made: Path, location: Location, *, overwrite: bool) -> Location:
    """Write an object that claims the location, before anything else is written; return that object.

    Of two simultaneous conversions, one writes it first; the other continues only if it would write the same.
    """
    digest = _digest((found.directory / MANIFEST_NAME).read_bytes() for found in find_sets(made))
    path, claim = staged / "claim", location / BUILDING_NAME
    path.write_text(digest)
    try:
        upload(path, claim, overwrite=overwrite)
    except StorageError as exc:
        if "holds something else" not in str(exc):
            raise
        raise StorageError(
            None,
            f"{location}: another conversion, of other options or another source, was begun there (it wrote {BUILDING_NAME});"
            " wait for it, choose another place, or pass --overwrite",
        ) from None
    return claim


def _remove_left_claim(location: Location, there: dict[str, bytes]) -> None:
    """Remove the claim that a finished conversion left because it was killed just before removing it."""
    claim = location / BUILDING_NAME
    with contextlib.suppress(MissingDataError):
        if read_object(claim).decode(errors="replace") == _digest(there.values()):
            delete(claim)


def _digest(manifests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(manifests)).hexdigest()


def _write(sets: list[FoundSet], location: Location, there: dict[str, bytes]) -> None:
    """Write all objects, then the manifests. `there`: the objects to be replaced."""
    old: dict[str, Manifest] = {name: parse_document(text, str(location)) for name, text in there.items()}
    for name in there:
        delete((location / name if name else location) / MANIFEST_NAME)
    wanted: list[tuple[Path, Location]] = []
    manifests: list[tuple[Path, Location]] = []
    for found in sets:
        top = location / found.name if found.name else location
        for name in found.files():
            path = found.directory / name
            if path.exists():
                (manifests if name == MANIFEST_NAME else wanted).append((path, top / name))
    _each(wanted, lambda path, place: _write_checked(path, place, overwrite=bool(there)))
    for path, place in manifests:
        if not upload(path, place, overwrite=False):
            logger.warning("%s: another process has finished the same conversion first", place)
    kept = {str(place) for _, place in (*wanted, *manifests)}
    for name, manifest in old.items():
        top = location / name if name else location
        names = FoundSet(name, Path(), manifest).files()
        _each([(Path(), top / one) for one in names if str(top / one) not in kept], lambda _, place: delete(place))


def _write_checked(path: Path, place: Location, *, overwrite: bool) -> None:
    upload(path, place, overwrite=overwrite)
    found = size_of(place)
    if found != path.stat().st_size:
        raise StorageError(
            None, f"{place}: has {found} bytes after {path.stat().st_size} were written; run the same command again"
        )


def _each(jobs: list[tuple[Path, Location]], work: Callable[[Path, Location], None]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = [pool.submit(work, path, place) for path, place in jobs]
        try:
            for job in running:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
