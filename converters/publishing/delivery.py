"""Take finished shards to an object store while others are built: verify, write, look, note, remove the local files."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from converters.options import OnError
from converters.planning.plan import ConversionPlan, PlannedShard
from converters.publishing.claims import Claim, Present, find_present, make_claim, refuse_lost_claim, release_claim
from converters.publishing.destination import ERRORS_NAME, FoundSet
from converters.publishing.finalise import DOCUMENTS_NAME
from converters.shards import QUARANTINE_NAME, DoneShard, forget_done, read_done, shard_files
from converters.writers import Target
from datapipe.core import atomic, regular_files
from datapipe.core.printable import get_logger
from datapipe.core.remembering import looking_again
from datapipe.core.waiting import reported_wait
from datapipe.errors import StorageError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, read_document
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.stores.location import Location
from datapipe.stores.objects import ListedObject, list_objects
from datapipe.stores.transfers import delete, found_object, upload

_STORED_NAME = "stored"
_AT_ONCE = 4  # shards written at once, and so on the disk besides those that are being built
_ASKED_AT_ONCE = 16

T = TypeVar("T")
U = TypeVar("U")
logger = get_logger(__name__)


class StoreDelivery:
    """Takes the shards of one conversion to a location, at most four at a time.

    A note of each is kept in the building directory, with the etags of its objects: what is noted is not written again. Close
    it when the conversion ends, in whatever way.
    """

    most_waiting = _AT_ONCE

    def __init__(self, destination: Path, present: Present, target: Target, *, overwrite: bool) -> None:
        """`destination`: the local one. `overwrite`: replace what is at the location."""
        self._building = destination / BUILDING_NAME
        self._present = present
        self._location = present.location
        self._target = target
        self._overwrite = overwrite
        self._claim = Claim("", [], {}, [])  # until `begin`
        self._listed: dict[str, dict[str, ListedObject]] = {}  # by set, what is there in the beginning
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="datapipe-upload")
        self._free = threading.Semaphore(_AT_ONCE)
        self._running: list[Future[None]] = []

    @looking_again()
    def begin(self, plan: ConversionPlan) -> None:
        """Claim the location, and delete the manifests that the conversion replaces. Raises StorageError."""
        self._claim = make_claim(plan, self._present, overwrite=self._overwrite)
        for name in self._present.replaced_by(self._claim):
            delete(self._present.place_of(name) / MANIFEST_NAME)
        if (self._building / _STORED_NAME).exists():
            for planned in plan.sets:
                objects = list_objects(self._present.place_of(planned.name))
                self._listed[planned.name] = {one.name: one for one in objects}
        (self._building / _STORED_NAME).mkdir(exist_ok=True)

    def has(self, shard: PlannedShard, done: DoneShard) -> bool:
        """Return whether an earlier run has taken this shard to the store, where it still is."""
        listed = self._listed.get(shard.set_name, {})
        names = shard_files(shard.stem, self._target)
        is_there = all(name in listed for name in names) and listed[done.info.name].nbytes == done.info.nbytes
        if not is_there:
            self._note_of(shard).unlink(missing_ok=True)
        return self._note_of(shard).exists()

    def take(self, shard: PlannedShard) -> None:
        """Begin to write a shard whose files are complete; waits while four others are being written.

        Raises what one of the earlier ones raised.
        """
        self._free.acquire()
        self._running, ended = [one for one in self._running if not one.done()], [one for one in self._running if one.done()]
        for one in ended:
            one.result()
        future = self._pool.submit(self._write, shard)
        future.add_done_callback(lambda _: self._free.release())
        self._running.append(future)

    def settle(self, plan: ConversionPlan) -> None:
        """Wait for all shards, and look whether they are still there as they were written.

        Raises what writing one raised, and StorageError if another process has written to the location meanwhile.
        """
        with reported_wait(str(self._location), "the last shards are being written to it"):
            for one in self._running:
                one.result()
        self._refuse_replaced(plan)

    def finish(self, plan: ConversionPlan) -> list[FoundSet]:
        """Write the rest, the manifests last, and remove what they replace; return the sets, which local paths name.

        Raises StorageError also if another conversion has taken the location over meanwhile.
        """
        documents = {planned.name: self._building / DOCUMENTS_NAME / planned.name for planned in plan.sets}
        sets = [FoundSet(name, self._building.parent / name, read_document(path)) for name, path in documents.items()]
        for name, manifest in ((one.name, one.manifest) for one in sets):
            place = self._present.place_of(name)
            if (documents[name] / ERRORS_NAME).exists():
                upload(documents[name] / ERRORS_NAME, place / ERRORS_NAME, overwrite=self._is_replacing)
            if OnError(manifest.options["on_error"]) is OnError.QUARANTINE:
                self._write_quarantine(name, place)
        refuse_lost_claim(self._location, self._claim)
        for name, directory in documents.items():
            place = self._present.place_of(name) / MANIFEST_NAME
            if not upload(directory / MANIFEST_NAME, place, overwrite=False):
                logger.warning("%s: another process has finished the same conversion first", place)
        release_claim(find_present(self._location), self._claim)
        return sets

    def close(self) -> None:
        """Begin no further object, and wait for those that are being written."""
        self._pool.shutdown(cancel_futures=True)

    @property
    def _is_replacing(self) -> bool:
        return bool(self._claim.replaces)

    def _note_of(self, shard: PlannedShard) -> Path:
        return self._building / _STORED_NAME / f"{shard.stem}.json"

    def _write(self, shard: PlannedShard) -> None:
        """Write the objects of a shard, note that, and remove its files."""
        names = shard_files(shard.stem, self._target)
        top = self._present.place_of(shard.set_name)
        if not self._note_of(shard).exists():
            self._verify(shard)
            refuse_lost_claim(self._location, self._claim)
            etags: dict[str, str | None] = {}
            for name in names:
                path = self._building / name
                upload(path, top / name, overwrite=self._is_replacing)
                etags[name] = _checked(top / name, path.stat().st_size)
            atomic.write_json(self._note_of(shard), etags)
        for name in names:
            (self._building / name).unlink(missing_ok=True)

    def _verify(self, shard: PlannedShard) -> None:
        """Compare the files with the checksums taken while they were written. Raises StorageError."""
        done = read_done(self._building, shard)
        assert done is not None
        for name, expected in ((done.info.name, done.info.sha256), (done.info.name + SIDECAR_SUFFIX, done.info.index_sha256)):
            path = self._building / name
            if _sha256_of(path) != expected:
                forget_done(self._building, shard)
                raise StorageError(
                    None,
                    f"{path}: differs from what was written to it; check the local disk, and run the same command again",
                )

    def _refuse_replaced(self, plan: ConversionPlan) -> None:
        """Raise StorageError if an object is no longer the one that was written, and forget that it was."""
        jobs = [
            (shard, self._present.place_of(shard.set_name) / name, etag)
            for shard in plan.shards
            for name, etag in json.loads(regular_files.read_bytes(self._note_of(shard))).items()
        ]
        facts = _each(lambda job: found_object(job[1]), jobs)
        for (shard, place, etag), found in zip(jobs, facts, strict=True):
            if found is None or found.etag != etag:
                self._note_of(shard).unlink()
                raise StorageError(
                    None,
                    f"{place}: {'is gone' if found is None else 'was replaced'} since this conversion wrote it;"
                    " make sure that nothing else writes there, and run the same command again",
                )

    def _write_quarantine(self, name: str, place: Location) -> None:
        top = self._building / QUARANTINE_NAME / name
        paths = [Path(folder, file) for folder, _, files in os.walk(top) for file in files]
        _each(
            lambda path: upload(path, place / f"{QUARANTINE_NAME}/{path.relative_to(top)}", overwrite=self._is_replacing),
            paths,
        )


def _checked(place: Location, nbytes: int) -> str | None:
    """Return the etag of an object that was just written. Raises StorageError if it has another size."""
    found = found_object(place)
    if found is None or found.nbytes != nbytes:
        has = "is not there" if found is None else f"has {found.nbytes} bytes"
        raise StorageError(None, f"{place}: {has} after {nbytes} bytes were written; run the same command again")
    return found.etag


def _sha256_of(path: Path) -> str:
    with regular_files.open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any file has what its stub asks for


def _each(work: Callable[[T], U], jobs: Iterable[T]) -> list[U]:
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(work, jobs))
