"""Convert into an object store: shards are written there as they are finished, the manifest last.

What is in progress has a local directory of its own, so that the same command resumes wherever it was interrupted. A dataset in a
store is complete once its `dataset.json` is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from converters.conversion import convert
from converters.options import ConvertOptions, OnError, refuse_overlap
from converters.publishing.claims import Present, find_present, read_claim, release_claim
from converters.publishing.delivery import StoreDelivery
from converters.report import OnProgress, Report, ignore_progress
from converters.sources import resolved
from converters.writers import TARGETS
from datapipe.core.user_cache import STAGED, private_directory, user_cache
from datapipe.errors import DatapipeError, OptionError, StorageError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, parse_document
from datapipe.stores.location import Location
from datapipe.stores.transfers import found_object, refuse_unwritable

_ASKED_AT_ONCE = 16  # for their sizes
_MADE, _COMPARED = "made", "compared"  # names in the local directory


def convert_to_store(options: ConvertOptions, location: Location, on_progress: OnProgress = ignore_progress) -> Report:
    """Convert into a store, or resume an interrupted conversion; the report names the local directory.

    `options.destination` is not used. On the local disk, in the user's cache directory, are the plan and a few shards: those that
    workers build and those that are being written. An existing dataset with the same options is kept; one with others is an
    OptionError without `overwrite`, which deletes its manifest first. Raises what `converters.convert` raises, and StorageError
    if the store refuses, or if another process has written something else to that place meanwhile.
    """
    refuse_unwritable(location)
    if options.part is not None:
        raise OptionError("--part needs a destination on a disk that all parts share; convert there, without it into a store")
    refuse_overlap(options.source, location)
    options = resolved(options)
    staged = user_cache(STAGED) / _name(options, location)
    try:
        with private_directory(staged):
            pass
    except OSError as exc:
        raise StorageError(
            exc.errno, f"{staged}: cannot be written ({exc.strerror}); set XDG_CACHE_HOME to another disk"
        ) from exc
    present, claim = find_present(location), read_claim(location)
    was_killed_late = claim is not None and present.is_finished_by(claim)
    if claim is not None and was_killed_late:
        release_claim(present, claim)
    is_finished = bool(present.manifests) and (claim is None or was_killed_late)
    with _naming(location, staged):
        if is_finished and (not options.overwrite or (was_killed_late and _is_made_with(present, options))):
            report = _compared(options, present, staged / _COMPARED, on_progress)
        else:
            made = staged / _MADE
            delivery = StoreDelivery(made, present, TARGETS[options.to], overwrite=options.overwrite)
            with contextlib.closing(delivery):
                report = convert(dataclasses.replace(options, destination=made, overwrite=False), on_progress, delivery=delivery)
    shutil.rmtree(staged)
    return report


def _name(options: ConvertOptions, location: Location) -> str:
    """Return the name of the local directory: one for each location and set of options, since their results differ."""
    lasting = dataclasses.replace(
        options,
        destination=Path(),
        overwrite=False,
        num_workers=None,
        engine="local",
        address=None,
        on_error=OnError.FAIL,
        max_errors=None,
    )
    return hashlib.sha256(f"{location}\n{lasting!r}".encode(errors="surrogateescape")).hexdigest()[:24]


@contextlib.contextmanager
def _naming(location: Location, staged: Path) -> Iterator[None]:
    """Let messages about the local directory name the location, except for those about its disk."""
    try:
        yield
    except DatapipeError as exc:
        text = str(exc)
        for name in (_MADE, _COMPARED):
            place = str(staged / name)
            if isinstance(exc, StorageError) and text.startswith(f"{place}:") and "another process" not in text:
                raise type(exc)(None, f"{location}: {text}; or set XDG_CACHE_HOME to another disk") from exc
            text = re.sub(rf"{re.escape(place)}(?!/\{BUILDING_NAME})", str(location), text)
        if text == str(exc):
            raise
        raise type(exc)(text) from exc


def _is_made_with(present: Present, options: ConvertOptions) -> bool:
    """Return True if the datasets that are there were made with these options."""
    made_with = [parse_document(text, str(present.location)).options for text in present.manifests.values()]
    return all(one == options.as_typed() for one in made_with)


def _compared(options: ConvertOptions, present: Present, place: Path, on_progress: OnProgress) -> Report:
    """Compare the existing dataset with the options and the source, like a finished dataset on a disk.

    `place`: receives the manifests, and for each shard in the store an empty file of its size.
    """
    shutil.rmtree(place, ignore_errors=True)
    for name, text in present.manifests.items():
        directory, top = place / name, present.place_of(name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST_NAME).write_bytes(text)
        shards = [shard.name for shard in parse_document(text, str(top / MANIFEST_NAME)).shards]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            for shard, found in zip(shards, pool.map(lambda one, top=top: found_object(top / one), shards), strict=True):
                if found is not None:
                    with (directory / shard).open("xb") as file:
                        file.truncate(found.nbytes)
    return convert(dataclasses.replace(options, destination=place, overwrite=False), on_progress)
